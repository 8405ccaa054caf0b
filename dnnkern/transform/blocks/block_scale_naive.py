"""One thread per block: it reads the elements for their largest magnitude, and once more to scale them. Any strides, any number of blocks;
neighbouring threads have blocks that are neighbours in memory, so that blocks along other axes than the fastest are read side by side."""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, i64, jit, u8, u32
from ...device.convert import element
from ...device.numeric import float_bits
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, SECTOR, issue_seconds, memory_seconds, overlap
from ...engine.offsets import make_offsets64, offset_arguments64
from ...host.canonical import Dim as Pair
from ...host.launch import Argument, Launch
from ._formats import e2m1_to_float, make_scale, make_scale_load, make_scaled, to_e2m1
from ._problem import BLOCK_SCALES

COST = constants("transform/naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Whether it quantizes, element types, number of dimensions."""
    quantizes: bool
    wide: str
    narrow: str
    scale: str
    dims: int


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """A sector an access where neighbouring threads are apart, the divisions, and two walks over a block."""
    last = problem.dims[-1]
    apart = min(SECTOR, abs(last.wide) * problem.wide.itemsize) + min(SECTOR, abs(last.narrow))
    moved = memory_seconds(problem.blocks * (problem.block * apart + 1), device)
    walk = COST.dimension * len(problem.dims) + COST.cast * problem.block
    return LAUNCH + overlap(issue=issue_seconds(problem.blocks, walk, device), memory=moved)


def pairs(dims):
    """The dimensions for two walks of `engine.offsets`: (floats and what is quantized; scales alone)."""
    return [Pair(d.size, d.wide, d.narrow) for d in dims], [Pair(d.size, d.scale, 0) for d in dims]


@device_function
def number_of_thread():
    """That of all."""
    return i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x


@functools.cache
def kernel(config):
    """A block per thread; bytes hold one element or two, the first in the lower bits."""
    load, store = element(config.wide).load, element(config.wide).store
    FOUR, PACKED = config.narrow == "uint8", 2 if config.narrow == "uint8" else 1
    narrow = element("float8_e4m3fn" if FOUR else config.narrow)
    load_narrow, store_narrow = narrow.load, narrow.store
    offsets = make_offsets64(config.dims)

    if config.quantizes:
        make, scaled = make_scale(config.scale, config.narrow), make_scaled(config.scale)

        @jit(launch_bounds=THREADS)
        def block_scale_quantize_naive(x, y, scale, blocks, block, x_step, y_step, sizes, strides, scale_strides):
            i = number_of_thread()
            if i < blocks:
                x_at, y_at = offsets(i, sizes, strides)
                scale_at, _ = offsets(i, sizes, scale_strides)
                magnitude = float_bits(load(x, x_at)) & 0x7FFFFFFF
                for k in range(1, block):
                    magnitude = max(magnitude, float_bits(load(x, x_at + k * x_step)) & 0x7FFFFFFF)
                code, value, inverse = make(magnitude)
                scale[scale_at] = code
                if FOUR:
                    for k in range(block // 2):
                        low = to_e2m1(load(x, x_at + 2 * k * x_step), value)
                        high = to_e2m1(load(x, x_at + (2 * k + 1) * x_step), value)
                        y[y_at + k * y_step] = u8(low | (high << 4))
                else:
                    for k in range(block):
                        store_narrow(y, y_at + k * y_step, scaled(load(x, x_at + k * x_step), value, inverse))
        return block_scale_quantize_naive
    load_scale = make_scale_load(config.scale)

    @jit(launch_bounds=THREADS)
    def block_scale_dequantize_naive(y, x, scale, blocks, block, y_step, x_step, sizes, strides, scale_strides):
        i = number_of_thread()
        if i < blocks:
            y_at, x_at = offsets(i, sizes, strides)
            scale_at, _ = offsets(i, sizes, scale_strides)
            value = load_scale(scale, scale_at)
            for k in range(block // PACKED):
                if FOUR:
                    both = u32(x[x_at + k * x_step])
                    store(y, y_at + 2 * k * y_step, e2m1_to_float(both & 15) * value)
                    store(y, y_at + (2 * k + 1) * y_step, e2m1_to_float(both >> 4) * value)
                else:
                    store(y, y_at + k * y_step, load_narrow(x, x_at + k * x_step) * value)
    return block_scale_dequantize_naive


def build(problem, device, config):
    """One launch."""
    p = problem
    forms, scales = pairs(p.dims)
    config = Config(p.quantizes, p.wide.dtype, p.narrow.dtype, p.scale.dtype, len(p.dims))
    sizes, strides = offset_arguments64(forms)
    _, scale_strides = offset_arguments64(scales)
    wide, narrow = ("x", "y") if p.quantizes else ("y", "x")
    pointer = "uint8*" if p.scale.itemsize == 1 else element(p.scale.dtype).pointer
    arguments = (Argument(element(p.wide.dtype).pointer, wide), Argument("uint8*", narrow), Argument(pointer, "scale"),
                 Argument("int64", p.blocks), Argument("int64", p.block), *(Argument("int64", s) for s in p.steps), sizes, strides,
                 scale_strides)
    return (Launch(kernel(config), (-(-p.blocks // THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in BLOCK_SCALES)
