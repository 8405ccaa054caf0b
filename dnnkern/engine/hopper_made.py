"""Operand a of the Hopper main loop that a program makes (see `engine.prologues`): from shared memory to registers, where wgmma takes it.

TMA brings what lies in memory, 64 elements of k a stage, in rows of 64 or 128 bytes. A thread loads the pairs of neighbours that wgmma's
fragment has of it, runs the program and packs the results, 16 of k at a time, while the tensor cores work on the steps before. A word is
left alone until they have read it: they are at most three steps behind.
"""
import functools
from typing import NamedTuple

from ..device import cuda, device_function, f32, u32, u64
from ..device.convert import element
from ..device.fastmath import minimum
from ..device.program import element_of, make_cast, make_program
from ..device.program_batches import make_placed
from ..device.program_operands import loaded_type
from ..device.unroll import unrolled
from ..device.vec import load_shared_u32
from ..device.wgmma import make_wgmma, make_wgmma_wait
from ..host.dtypes import numpy_dtype

DEPTH = 64  # elements of k in a stage, 128 bytes of what is made
STEP = 16   # of them in a product
STEPS = DEPTH // STEP


class MadeRows(NamedTuple):
    """How a warpgroup makes its rows of a.

    first : device function (tile, row, operands) -> state
        `row`: the thread's first in the tile; `operands`: the program's, m and k.
    multiply : device function (acc, at, b, k, accumulate, thread, state)
        Stage k of the warpgroup's rows, which lie at the shared address `at`, times the matrix of descriptor `b`, in `STEPS` groups of
        products.
    pitch : int
        Bytes of a row of a stage.
    """
    first: object
    multiply: object
    pitch: int


@functools.cache
def make_made_rows(tile, loader, made, edge):
    """The `MadeRows` of a tile. Host function. `loader`: as `hopper.make_product` has it; `edge`: k is no multiple of a stage's."""
    GROUPS, B_STEP = tile.groups, 2 if loader.b_major == "k" else 2 * loader.b_width
    fill, placed, pitch = _make_fill(made, GROUPS, edge), make_placed(made.program, 1), DEPTH * numpy_dtype(made.source).itemsize
    multiply_step = make_wgmma(tile.bn, loader.dtype, loader.b_dtype, steps=1, tiles=GROUPS, a="registers", b_major=loader.b_major)
    wait = make_wgmma_wait(STEPS - 1, 0)

    @device_function
    def first(tile, row, operands):
        e, m, k = operands
        return tile.row + row, m - 1, k, placed(e, tile.z, ())

    @device_function
    def step(i, s):
        acc, at, b, k, accumulate, thread, state = s
        words = cuda.local.array(4 * GROUPS, u32)
        wait(acc)
        fill(words, at, i, k * DEPTH, thread, state)
        multiply_step(acc, words, b + u64(i * B_STEP), accumulate if i == 0 else 1)
    steps = unrolled(STEPS, step)

    @device_function
    def multiply(acc, at, b, k, accumulate, thread, state):
        steps(0, (acc, at, b, k, accumulate, thread, state))
    return MadeRows(first, multiply, pitch)


def _make_fill(made, groups, edge):
    """Device function ``fill(words, at, i, k, thread, state)``: step i of a stage whose first k is `k`, four words for each 64 rows."""
    item, word = numpy_dtype(made.source).itemsize, make_word(made, edge)
    PITCH = DEPTH * item

    @device_function
    def fill(words, at, i, k, thread, state):
        row, last, end, e = state
        eighth, pair = (thread & 31) >> 2, thread & 3
        first = ((thread >> 5) * 16 + eighth) * PITCH
        for half in range(2):
            if item == 2:  # the swizzle of 128 bytes
                place = (((2 * i + half) ^ eighth) << 4) + 4 * pair
            else:  # of 64, and two pairs are a word
                place = ((i ^ (eighth >> 1 & 3)) << 4) + 8 * half + 4 * (pair >> 1)
            for n in range(2 * groups):
                found = load_shared_u32(at + u32(first + (n // 2 * 64 + n % 2 * 8) * PITCH + place))
                words[n // 2 * 4 + 2 * half + n % 2] = found if item == 2 else found >> u32((pair & 1) * 16)
        for half in range(2):
            column = k + STEP * i + 8 * half + 2 * pair
            for n in range(2 * groups):
                w = n // 2 * 4 + 2 * half + n % 2
                words[w] = word(words[w], minimum(row + n // 2 * 64 + n % 2 * 8, last), column, end, e)
    return fill


def make_word(made, edge):
    """Device function ``word(pair, row, k, end, e)``: two neighbours along k, made of two in memory; 0 from `end` on. Host function."""
    source = loaded_type(made.source)
    run, unpack, pack = make_program(made.program, source), element_of(made.source).unpack, element(made.dtype).pack
    cast = make_cast(made.program.types(source)[made.program.result], "float32")

    @device_function
    def word(pair, row, k, end, e):
        x = unpack(pair)
        if edge:
            low = cast(run(x[0], row, minimum(k, end - 1), e)) if k < end else f32(0)
            high = cast(run(x[1], row, minimum(k + 1, end - 1), e)) if k + 1 < end else f32(0)
            return pack(low, high)
        return pack(cast(run(x[0], row, k, e)), cast(run(x[1], row, k + 1, e)))
    return word
