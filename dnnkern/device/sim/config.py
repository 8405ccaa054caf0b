"""Settings of the simulator; every field may be changed between launches."""
from dataclasses import dataclass, field

from .. import _environment

POLICIES = "fifo", "lifo", "random"


@dataclass
class Config:
    """What `dnnkern.device.sim.config` is an instance of.

    Attributes
    ----------
    policy : str
        Which ready thread runs next: "fifo", "lifo" or "random". DNNKERN_SIM_POLICY sets the default.
    seed : int
        Of policy "random": the same seed gives the same run. DNNKERN_SIM_SEED sets the default.
    track_shared, track_global : bool
        Raise `Race` for unordered accesses to shared memory, to global memory.
    resident_blocks : int
        Blocks (whole clusters) that run interleaved from the start. More are started when those running can only wait for others.
    resident_limit : int
        Blocks that can be resident at all in an ordinary launch: a grid that needs more of them at once deadlocks, as on a GPU.
    shared_limit : int
        Bytes of shared memory a block may have, below 256 KB.
    shared_base : int
        Address of the dynamic shared array. CUDA promises 16-byte alignment, no more: a kernel that wants more must align by itself.
    lines : bool
        A launch that raises `Race` is run a second time, to find the source lines of both accesses. What a kernel prints comes twice then.
    spin_limit : int
        Consecutive polls, by all threads together, none of which sees or causes a change, that count as a deadlock.
    integers : str
        Of kernels of `dnnkern.device.jit`: "plain", or "checked", where an int32 that overflows outside `wrapping`, and an operation on a
        signed and an unsigned integer, is an error. Some three times slower. DNNKERN_CHECK=integers sets the default.
    """
    policy: str = field(default_factory=lambda: _environment.word("DNNKERN_SIM_POLICY", POLICIES, "fifo"))
    seed: int = field(default_factory=lambda: _environment.integer("DNNKERN_SIM_SEED"))
    track_shared: bool = True
    track_global: bool = True
    resident_blocks: int = 2
    resident_limit: int = 132
    shared_limit: int = 232448
    shared_base: int = 0x410
    lines: bool = True
    spin_limit: int = 500000
    integers: str = field(default_factory=lambda: "checked" if "integers" in _environment.checks() else "plain")


config = Config()
