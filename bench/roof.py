"""Roofs, measured in the run they are compared with: the copy rate of device memory and the rates of the arithmetic units.

Copy is a large device-to-device copy by a kernel of ours, 16 bytes a thread, bytes read plus bytes written; the driver's copy node, which
a graph gives to a copy engine, is slower. float32 multiply-adds are a chain kernel of ours, eight independent
sums a thread. Tensor-core rates are a large matrix product through PyTorch where it is installed, else unknown.
"""
import functools

from dnnkern.device import HOST_MEMORY, cuda, f32, i64
from dnnkern.device.vec import load4_nc, store4
from dnnkern.host.timing import Contender, race

COPY_BYTES = 1 << 30
_BLOCKS, _THREADS, _ROUNDS, _STEPS = 8, 256, 512, 16
_FLOPS = 2 * 8 * _ROUNDS * _STEPS  # of one thread


@cuda.jit(launch_bounds=256)
def fma_chain(y, a, b):
    """Eight sums a thread, each ``x = a * x + b`` again and again; kept alive by a store that never happens."""
    x0, x1, x2, x3 = f32(cuda.threadIdx.x), f32(1), f32(2), f32(3)
    x4, x5, x6, x7 = f32(4), f32(5), f32(6), f32(7)
    for _ in range(_ROUNDS):
        for _ in range(_STEPS):
            x0, x1, x2, x3 = f32(a * x0 + b), f32(a * x1 + b), f32(a * x2 + b), f32(a * x3 + b)
            x4, x5, x6, x7 = f32(a * x4 + b), f32(a * x5 + b), f32(a * x6 + b), f32(a * x7 + b)
    total = f32(f32(x0 + x1) + f32(x2 + x3) + f32(x4 + x5) + f32(x6 + x7))
    if total == f32(-1):
        y[i64(cuda.blockIdx.x)] = total


@cuda.jit(launch_bounds=256)
def copy_chunks(x, y):
    """16 bytes a thread, one block a tile."""
    i = i64(i64(cuda.blockIdx.x) * 1024 + 4 * cuda.threadIdx.x)
    store4(y, i, load4_nc(x, i))


def measure_roofs(device, clock, units) -> dict:
    """{"copy": bytes a second, unit: operations a second, ...}; `units` are of "fma", "bfloat16", "float16", "tf32", "int8", "float64",
    "float8_e4m3fn", "float8_e5m2".

    Empty where there is no GPU.
    """
    if HOST_MEMORY:
        return {}
    contenders, work, release = [], {}, []
    try:
        _add_copy(contenders, work, release, device, clock)
        if "fma" in units:
            _add_fma(contenders, work, release, device, clock)
        for unit in units:
            _add_product(contenders, work, unit, clock)
        for c in contenders:
            c.call(0)
        clock.synchronize()
        times = race(contenders, clock, rounds=7, window=10e-3)
        return {name: work[name] / min(s.times) for name, s in times.items()}
    finally:
        clock.release()
        for free in release:
            free()


def _add_copy(contenders, work, release, device, clock):
    from dnnkern.host import driver
    from dnnkern.host.launch import Argument, Executable, Launch
    source, target = (driver.cuMemAlloc(COPY_BYTES) for _ in range(2))
    release += [functools.partial(driver.cuMemFree, a) for a in (source, target)]
    driver.cuMemsetD8(source, 0x5A, COPY_BYTES)
    launch = Launch(copy_chunks, (COPY_BYTES // 4096, 1, 1), (256, 1, 1), (Argument("uint32*", "x"), Argument("uint32*", "y")))
    executable = Executable([launch], (("x", "pointer"), ("y", "pointer")), device.index)
    contenders.append(Contender("copy", lambda k: executable.execute((source, target), clock.stream)))
    work["copy"] = 2 * COPY_BYTES


def _add_fma(contenders, work, release, device, clock):
    from dnnkern.host import driver
    from dnnkern.host.launch import Argument, Executable, Launch
    blocks = _BLOCKS * device.sms
    address = driver.cuMemAlloc(4 * blocks)
    release.append(functools.partial(driver.cuMemFree, address))
    arguments = Argument("float32*", "y"), Argument("float32", "a"), Argument("float32", "b")
    executable = Executable([Launch(fma_chain, (blocks, 1, 1), (_THREADS, 1, 1), arguments)],
                            (("y", "pointer"), ("a", "float32"), ("b", "float32")), device.index)
    contenders.append(Contender("fma", lambda k: executable.execute((address, 0.5, 0.25), clock.stream)))
    work["fma"] = _FLOPS * _THREADS * blocks


def _add_product(contenders, work, unit, clock):
    """A large product through PyTorch: the tensor cores' rate that a library reaches."""
    if unit in ("fma", "copy"):
        return
    try:
        import torch

        from .torch_arrays import TorchContender
    except ImportError:
        return
    if unit == "int8":
        x = torch.randint(-4, 5, (8192, 8192), dtype=torch.int8, device="cuda")
        call = functools.partial(torch._int_mm, x, x.t())
    elif unit.startswith("float8"):
        x, w = (torch.randn(8192, 8192, device="cuda").to(getattr(torch, t)) for t in (unit, "float8_e4m3fn"))
        one = torch.ones((), device="cuda")
        call = functools.partial(torch._scaled_mm, x, w.t(), one, one, out_dtype=torch.bfloat16)
    else:
        x = torch.randn(8192, 8192, device="cuda", dtype=torch.float32 if unit == "tf32" else getattr(torch, unit))
        y = torch.empty_like(x)

        def call():
            torch.backends.cuda.matmul.allow_tf32 = unit == "tf32"
            return torch.matmul(x, x.t(), out=y)
    torch.cuda.synchronize()
    contenders.append(TorchContender(unit, [call], clock))
    work[unit] = 2 * 8192 ** 3


def unit_of(problem) -> str:
    """The arithmetic unit whose rate bounds a problem; "copy" where it has no operations."""
    if not problem.flops:
        return "copy"
    dtype = problem.dtype if hasattr(problem, "dtype") else problem.a.dtype
    if dtype == "float32":
        return "tf32" if getattr(problem, "math", None) else "fma"
    return dtype


def floor_seconds(problem, roofs) -> float | None:
    """The least time the measured roofs allow: bytes through memory or operations through their unit, the longer one. None if unknown."""
    rate = roofs.get(unit_of(problem))
    if not rate or "copy" not in roofs:
        return None
    return max(problem.flops / rate, problem.bytes / roofs["copy"])
