"""Registers that move between the warpgroups of a block (sm_90a)."""
import functools

from . import instruction

REGISTERS = 65536  # of a multiprocessor


def check_register_budget(launch_threads, shares, blocks=1):
    """Raise ValueError, with the arithmetic, where the moves of a kernel can never be met: on a GPU it would hang.

    Parameters
    ----------
    launch_threads : int
        Threads of a block.
    shares : tuple of (int, int)
        (threads, registers a thread after the moves) of each part of the block.
    blocks : int
        Blocks that `launch_bounds` asks to fit on a multiprocessor.
    """
    terms = " + ".join(f"{threads} * {registers}" for threads, registers in shares)
    threads = sum(threads for threads, _ in shares)
    if threads != launch_threads or any(t < 128 or t % 128 for t, _ in shares):
        raise ValueError(f"check_register_budget: the shares {terms} are of {threads} threads, the block has {launch_threads}; "
                         "each is of whole warpgroups of 128")
    for _, registers in shares:
        _check("check_register_budget", registers)
    given = REGISTERS // (blocks * launch_threads) // 8 * 8
    total = sum(threads * registers for threads, registers in shares)
    if total > given * launch_threads:
        raise ValueError(f"check_register_budget: {terms} = {total} registers are more than the {launch_threads} * {given} = "
                         f"{given * launch_threads} that a launch of {launch_threads} threads, {blocks} blocks a multiprocessor, is given; "
                         "the kernel would wait for ever")


def _check(what, count):
    if count not in range(24, 257, 8):
        raise ValueError(f"{what}: {count} registers a thread; it is a multiple of 8 from 24 to 256")


@functools.cache
def make_register_release(count):
    """Device function: the warpgroup keeps `count` registers a thread and gives the others to the block's pool."""
    _check("make_register_release", count)
    return instruction(f"setmaxnreg.dec.sync.aligned.u32 {count};", (), (), memory=True, twin=None)


@functools.cache
def make_register_claim(count):
    """Device function: the warpgroup takes registers from the block's pool until it has `count` a thread, and waits until there are so many."""
    _check("make_register_claim", count)
    return instruction(f"setmaxnreg.inc.sync.aligned.u32 {count};", (), (), memory=True, twin=None)
