"""Sixteen neighbours per thread, which are a block or a part of one: neighbouring lanes have the others.

A thread loads its elements in units of 16 bytes, keeps them, and stores 16 or, of four bits, 8 bytes at once. Quantizing, the lanes of a
block exchange their largest magnitudes, and the first writes the scale. Bound by memory: each array is touched once.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, f32, jit, u32
from ...device.convert import element
from ...device.numeric import float_bits
from ...device.vec import advance
from ...device.warp import shuffle_xor
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, tail
from ...engine.offsets import LIMIT, make_offsets, offset_arguments
from ...engine.values import make_unpack
from ...engine.vectors import make_unit_moves, word_of
from ...host.canonical import aligned_to
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from ._formats import e2m1_to_float, make_scale, make_scale_load, make_scaled, to_e2m1
from ._problem import BLOCK_SCALES
from .block_scale_naive import pairs

COST = constants("transform/cast_vector")

THREADS, RUN = 256, 16


@dataclass(frozen=True)
class Config:
    """Whether it quantizes, element types, lanes of a block, dimensions, 64-bit offsets."""
    quantizes: bool
    wide: str
    narrow: str
    scale: str
    lanes: int
    dims: int
    is_wide: bool

    def __str__(self):
        return f"{self.lanes} lanes"


def supports(problem):
    """Blocks of 16 to 512 elements, a power of two, that are contiguous and aligned in both arrays."""
    p = problem
    if p.block not in (16, 32, 64, 128, 256, 512):
        return f"blocks of {p.block} elements; expected 16, 32, 64, 128, 256 or 512"
    if p.steps != (1, 1):
        return f"elements of a block are {' and '.join(map(str, p.steps))} apart; expected 1 in both arrays"
    for t, stride, unit in ((p.wide, "wide", 16), (p.narrow, "narrow", RUN // p.packed)):
        if min(aligned_to(t, 0, t.itemsize), 16) < unit or any(getattr(d, stride) * t.itemsize % unit for d in p.dims):
            return f"blocks of {t.dtype} are not aligned to {unit} bytes"
    if p.blocks * (p.block // RUN) >= LIMIT - 2 ** 20:
        return f"{p.blocks} blocks; expected fewer than 2**31 - 2**20 runs of {RUN}"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def _config(problem):
    p = problem
    reach = max(sum((d.size - 1) * abs(getattr(d, s)) for d in p.dims) for s in ("wide", "narrow", "scale"))
    return Config(p.quantizes, p.wide.dtype, p.narrow.dtype, p.scale.dtype, p.block // RUN, len(p.dims), reach + p.block >= LIMIT)


def estimate(problem, device, config):
    """The bytes, and instructions of a thread."""
    threads = problem.blocks * (problem.block // RUN)
    accesses = RUN * problem.wide.itemsize // 16 + 2
    element_cost = COST.element * (4 if problem.packed == 2 and problem.quantizes else 1)  # counted: seven comparisons of four bits
    a_thread = COST.thread + COST.dimension * len(problem.dims) + element_cost * RUN + COST.access * accesses
    work = overlap(memory=memory_seconds(problem.bytes, device), issue=issue_seconds(threads, a_thread, device))
    return LAUNCH + work.slowed(tail=tail(-(-threads // THREADS), COST.blocks, device))


def _make_narrow(config):
    """(words of a run of what is quantized, ``pack(words, values)``, ``unpack(values, words)``)"""
    if config.narrow != "uint8":
        unpack, pack = make_unpack(config.narrow, RUN)
        return RUN // 4, pack, unpack
    return RUN // 8, None, None


@functools.cache
def kernel(config):
    """A run of a block per thread."""
    size, LANES, FOUR = ITEMSIZE[config.wide], config.lanes, config.narrow == "uint8"
    WORDS, NARROW = RUN * size // 4, RUN // (2 if FOUR else 1)
    LOADS, IN_UNIT = WORDS // 4, 16 // size
    load, store, _, _, _ = make_unit_moves(16, size)
    load_narrow, store_narrow, _, _, _ = make_unit_moves(NARROW, 1)
    unpack, pack = make_unpack(config.wide, RUN)
    NARROW_WORDS, pack_narrow, unpack_narrow = _make_narrow(config)
    offsets = make_offsets(config.dims, config.is_wide)

    if config.quantizes:
        make, scaled = make_scale(config.scale, config.narrow), make_scaled(config.scale)

        @jit(launch_bounds=(THREADS, 4))
        def block_scale_quantize_lanes(x, y, scale, count, divisors, strides, scale_strides):
            index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
            ok = 1 if index < count else 0
            index = min(index, count - 1)
            words = cuda.local.array(WORDS, u32)
            values = cuda.local.array(RUN, f32)
            made = cuda.local.array(NARROW_WORDS, u32)
            block, run = index // LANES, index % LANES
            x_at, y_at = offsets(block, divisors, strides)
            scale_at, _ = offsets(block, divisors, scale_strides)
            x = advance(x, x_at + run * RUN)
            for n in range(LOADS):
                load(words, 4 * n, advance(x, n * IN_UNIT), ok)
            unpack(values, words)
            magnitude = float_bits(values[0]) & 0x7FFFFFFF
            for k in range(1, RUN):
                magnitude = max(magnitude, float_bits(values[k]) & 0x7FFFFFFF)
            lane = LANES // 2
            while lane:
                magnitude = max(magnitude, shuffle_xor(magnitude, lane))
                lane //= 2
            code, value, inverse = make(magnitude)
            if ok and run == 0:
                scale[scale_at] = code
            if FOUR:
                for w in range(NARROW_WORDS):
                    word = to_e2m1(values[8 * w], value)
                    for k in range(1, 8):
                        word |= to_e2m1(values[8 * w + k], value) << (4 * k)
                    made[w] = word
            else:
                for k in range(RUN):
                    values[k] = scaled(values[k], value, inverse)
                pack_narrow(made, values)
            if ok:
                store_narrow(advance(y, y_at + run * NARROW), made, 0)
        return block_scale_quantize_lanes
    load_scale = make_scale_load(config.scale)

    @jit(launch_bounds=(THREADS, 4))
    def block_scale_dequantize_lanes(y, x, scale, count, divisors, strides, scale_strides):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < count:
            words = cuda.local.array(WORDS, u32)
            values = cuda.local.array(RUN, f32)
            given = cuda.local.array(NARROW_WORDS, u32)
            block, run = index // LANES, index % LANES
            y_at, x_at = offsets(block, divisors, strides)
            scale_at, _ = offsets(block, divisors, scale_strides)
            load_narrow(given, 0, advance(x, x_at + run * NARROW), 1)
            value = load_scale(scale, scale_at)
            if FOUR:
                for w in range(NARROW_WORDS):
                    for k in range(8):
                        values[8 * w + k] = e2m1_to_float(given[w] >> (4 * k))
            else:
                unpack_narrow(values, given)
            for k in range(RUN):
                values[k] = values[k] * value
            pack(words, values)
            y = advance(y, y_at + run * RUN)
            for n in range(LOADS):
                store(advance(y, n * IN_UNIT), words, 4 * n)
    return block_scale_dequantize_lanes


def build(problem, device, config):
    """One launch."""
    p, config = problem, _config(problem)
    forms, scales = pairs(p.dims)
    divisors, strides = offset_arguments(forms, config.is_wide)
    _, scale_strides = offset_arguments(scales, config.is_wide)
    wide, narrow = ("x", "y") if p.quantizes else ("y", "x")
    count, pointer = p.blocks * config.lanes, "uint8*" if p.scale.itemsize == 1 else element(p.scale.dtype).pointer
    arguments = (Argument(word_of(p.wide.itemsize)[1] + "*", wide), Argument("uint8*", narrow), Argument(pointer, "scale"),
                 Argument("int32", count), divisors, strides, scale_strides)
    return (Launch(kernel(config), (-(-count // THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="lanes", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in BLOCK_SCALES)
