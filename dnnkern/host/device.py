"""Devices: their limits, and the primary contexts that every framework shares."""
import ctypes
import functools
import os
import re
from dataclasses import dataclass

from ..device import DEVICE, HOST_MEMORY, SIMULATED, _environment, _mode
from . import driver, raw
from .driver import failed


@dataclass(frozen=True)
class Device:
    """What dispatch and plans need to know of a GPU, or of the processor.

    `arch` is the target kernels are compiled for ("sm_90a"). Rates are nominal and serve `estimate` alone: bytes a second, and float32
    multiply-adds counted as two operations a second. `index` is -1 of one that is not here, for which kernels are only compiled.

    The processor alone has a `rate`, that of NumPy's product, in operations a second; its `sms` are the cores that this process may use.
    `arch` is then whose instructions run: Hopper's, clusters, tensor maps and asynchronous products among them.
    """
    index: int
    name: str
    capability: tuple
    arch: str
    sms: int
    shared_per_block: int
    shared_per_sm: int
    registers_per_sm: int
    l2_bytes: int
    clock_hz: float
    bandwidth: float
    memory: int
    rate: float = 0.0

    @property
    def is_here(self):
        return self.index >= 0

    @property
    def is_processor(self):
        return self.rate > 0

    @property
    def is_simulated(self):
        return self.name == _SIMULATOR.name

    @property
    def folder(self):
        """The name of a folder of what is true of such devices."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.name}-{self.arch}-{self.sms}").strip("-")

    @property
    def fp32_rate(self):
        if self.is_processor:
            return self.rate
        lanes = {(7, 0): 64, (7, 2): 64, (7, 5): 64, (8, 0): 64}.get(self.capability, 128)
        return 2.0 * lanes * self.sms * self.clock_hz

    @property
    def fp64_rate(self):
        return self.fp32_rate / (2 if self.capability in ((6, 0), (7, 0), (8, 0), (9, 0)) else 64)

    @property
    def threads_per_sm(self):
        """Most threads of a multiprocessor."""
        return {(7, 5): 1024, (8, 0): 2048}.get(self.capability, 1536 if self.capability[0] in (8, 12) else 2048)

    def clusters(self, size, blocks=1):
        """Clusters of `size` blocks that run at once, `blocks` on a multiprocessor: a cluster stays in one part of the chip, and not all
        parts are multiples of it. The least that cuOccupancyMaxActiveClusters says of an H200: 66, 30, 15 and 7 of 2, 4, 8 and 16."""
        sms = self.sms if size <= 2 else self.sms * 10 // 11 if size <= 8 else self.sms * 28 // 33
        return max(1, sms * blocks // size)

    def supports(self, arch):
        """None where code for `arch` ("sm_80+", or exactly "sm_90a") runs here, else why not."""
        if arch.endswith("+"):
            digits = arch[3:-1]
            need = int(digits[:-1]), int(digits[-1])
            return None if self.capability >= need else f"needs {arch}, device {self.name} is {self.arch}"
        return None if arch == self.arch else f"needs exactly {arch}, device {self.name} is {self.arch}"


# The device of the simulator has an H200's numbers, so that dispatch predicts there what it would on one.
_SIMULATOR = Device(index=0, name="simulator", capability=(9, 0), arch="sm_90a", sms=132, shared_per_block=232448, shared_per_sm=233472,
                    registers_per_sm=65536, l2_bytes=60 << 20, clock_hz=1.98e9, bandwidth=4.8e12, memory=1 << 34)


# What kernels are compiled for on machines without such a GPU: the largest of each architecture, by its data sheet. (name, capability,
# multiprocessors, shared memory of a block and of a multiprocessor, bytes of L2, Hz, bytes a second, bytes of memory)
_BY_ARCH = {
    "sm_70": ("Tesla V100-SXM2-32GB", (7, 0), 80, 98304, 98304, 6 << 20, 1.53e9, 0.9e12, 32 << 30),
    "sm_75": ("Tesla T4", (7, 5), 40, 65536, 65536, 4 << 20, 1.59e9, 0.32e12, 16 << 30),
    "sm_80": ("NVIDIA A100-SXM4-80GB", (8, 0), 108, 166912, 167936, 40 << 20, 1.41e9, 2.04e12, 80 << 30),
    "sm_86": ("NVIDIA A40", (8, 6), 84, 101376, 102400, 6 << 20, 1.74e9, 0.7e12, 48 << 30),
    "sm_89": ("NVIDIA L40S", (8, 9), 142, 101376, 102400, 96 << 20, 2.52e9, 0.86e12, 48 << 30),
    "sm_90a": ("NVIDIA H200", (9, 0), 132, 232448, 233472, 60 << 20, 1.98e9, 4.8e12, 141 * 10 ** 9),
    "sm_100a": ("NVIDIA B200", (10, 0), 148, 232448, 233472, 126 << 20, 1.97e9, 8e12, 180 * 10 ** 9),
    "sm_120a": ("NVIDIA RTX PRO 6000 Blackwell", (12, 0), 188, 101376, 102400, 128 << 20, 2.62e9, 1.79e12, 96 << 30),
}


def described(arch) -> Device:
    """A device of an architecture, to compile for where there is none.

    Raises
    ------
    ValueError
        No device of this architecture is described.
    """
    if arch not in _BY_ARCH:
        raise ValueError(f"arch is {arch!r}; expected one of {', '.join(_BY_ARCH)}")
    name, capability, sms, block, multiprocessor, l2, clock, bandwidth, memory = _BY_ARCH[arch]
    return Device(index=0, name=name, capability=capability, arch=arch, sms=sms, shared_per_block=block, shared_per_sm=multiprocessor,
                  registers_per_sm=65536, l2_bytes=l2, clock_hz=clock, bandwidth=bandwidth, memory=memory)


def arch_of(capability) -> str:
    """What kernels are compiled for on a device of a compute capability."""
    return "sm_%d%d%s" % (*capability, "a" if capability[0] >= 9 else "")


@functools.cache
def device(index=0) -> Device:
    """The device with this index."""
    if HOST_MEMORY:
        if index != 0:
            raise ValueError(f"the {DEVICE} is one device, 0; got {index}")
        if SIMULATED:
            return _SIMULATOR
        from .processor import numbers
        return Device(index=0, capability=(9, 0), arch="sm_90a", shared_per_block=232448, shared_per_sm=233472, registers_per_sm=65536,
                      **numbers())
    count = device_count()
    if not 0 <= index < count:
        raise ValueError(f"device {index} does not exist; there are {count}")
    handle, name = driver.cuDeviceGet(index), ctypes.create_string_buffer(256)
    driver.cuDeviceGetName(name, len(name), handle)

    def get(name):
        return driver.cuDeviceGetAttribute(getattr(raw, "CU_DEVICE_ATTRIBUTE_" + name), handle)

    capability = get("COMPUTE_CAPABILITY_MAJOR"), get("COMPUTE_CAPABILITY_MINOR")
    return Device(index=index, name=name.value.decode(), capability=capability,
                  arch=arch_of(capability), sms=get("MULTIPROCESSOR_COUNT"),
                  shared_per_block=get("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"), shared_per_sm=get("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
                  registers_per_sm=get("MAX_REGISTERS_PER_MULTIPROCESSOR"), l2_bytes=get("L2_CACHE_SIZE"), clock_hz=get("CLOCK_RATE") * 1e3,
                  bandwidth=2.0 * get("MEMORY_CLOCK_RATE") * 1e3 * get("GLOBAL_MEMORY_BUS_WIDTH") / 8,
                  memory=driver.cuDeviceTotalMem(handle))


@functools.cache
def device_count() -> int:
    """Number of devices; 1 where there is no GPU."""
    if HOST_MEMORY:
        return 1
    driver.cuInit(0)
    return driver.cuDeviceGetCount()


@functools.cache
def primary_context(index) -> int:
    """Handle of a device's primary context, which stays from here on."""
    driver.cuInit(0)
    return driver.cuDevicePrimaryCtxRetain(driver.cuDeviceGet(index))


def set_current(index):
    """Make a device's primary context the calling thread's current one; returns the context that was, 0 for none."""
    context, found = primary_context(index), ctypes.c_void_p()
    status = raw.cuCtxGetCurrent(ctypes.byref(found))
    if not status and found.value != context:
        status = raw.cuCtxSetCurrent(context)
    if status:
        failed(status)
    return found.value or 0


class on_device:
    """Within, the device's primary context is current; afterwards the one that was. A thread that had none keeps this one."""
    __slots__ = "index", "before"

    def __init__(self, index):
        self.index = index

    def __enter__(self):
        self.before = 0 if HOST_MEMORY else set_current(self.index)

    def __exit__(self, *_):
        if self.before and self.before != primary_context(self.index):
            status = raw.cuCtxSetCurrent(self.before)
            if status:
                failed(status)


def pointer_device(address) -> int:
    """Index of the device that owns an address."""
    if HOST_MEMORY:
        return 0
    driver.cuInit(0)
    return driver.cuPointerGetAttribute(raw.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, int(address))


def current_device() -> int:
    """The device that calls without arrays mean (`explain`, `find`, graphs): the index in DNNKERN_DEVICE; without one that of the thread's
    current CUDA context, which ``torch.cuda.set_device`` and others make current; 0 where there is none."""
    asked = _mode.asked_for()
    if asked not in (None, DEVICE):
        raise ValueError(f"DNNKERN_DEVICE={asked}, and this process runs on {DEVICE}: the variable is read once, as dnnkern.device is "
                         "first imported")
    if asked or not os.environ.get("DNNKERN_DEVICE"):
        return 0 if HOST_MEMORY else _of_context()
    index = _environment.integer("DNNKERN_DEVICE")
    if index >= device_count():
        raise ValueError(f"DNNKERN_DEVICE={index}; expected a device from 0 to {device_count() - 1}")
    return index


def _of_context():
    """The device of the thread's current context, or 0."""
    count, found = device_count(), ctypes.c_int()
    if count < 2 or raw.cuCtxGetDevice(ctypes.byref(found)):
        return 0
    return next(index for index in range(count) if driver.cuDeviceGet(index) == found.value)
