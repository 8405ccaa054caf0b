"""Operand a of the Hopper main loop that a program makes (see `engine.prologues`): from shared memory to registers, where wgmma takes it.

TMA brings what lies in memory, 64 elements of k a stage, in rows of 64 or 128 bytes. A thread loads the pairs of neighbours that wgmma's
fragment has of it, runs the program and packs the results, 16 of k at a time, while the tensor cores work on the steps before. A word is
left alone until they have read it: they are at most three steps behind.
"""
import functools
import math
from typing import NamedTuple

from ..device import cuda, device_function, u32, u64
from ..device.convert import element
from ..device.fastmath import minimum
from ..device.program import element_of, make_cast, make_program, positions_of
from ..device.program_batches import make_placed
from ..device.program_operands import loaded_type
from ..device.unroll import unrolled
from ..device.vec import as_u32, load2, load_shared_u32
from ..device.wgmma import make_wgmma, make_wgmma_wait
from ..host.dtypes import numpy_dtype
from .constants import constants
from .functions import steps_instructions
from .hopper import ROW
from .hopper_columns import in_pairs, make_column_words

DEPTH = 64  # elements of k in a stage, 128 bytes of what is made
STEP = 16   # of them in a product
STEPS = DEPTH // STEP


COST = constants("engine/hopper_made")
WORDS = 36  # registers of a thread for each 64 rows: 4 steps of 4 words, as many of what they are made of, two rows
OTHERS = 24


def fits_made(tile, making, kept=0):
    """Whether a thread has the registers, those of a stage's columns and so many `kept` numbers among them. Host function."""
    words, _, _ = _make_stage_columns(making.made.program, paired(making))
    return tile.sums + tile.groups * WORDS + words + OTHERS + kept <= tile.registers[1]


def made_step(program, tile, step, pixels=False):
    """Microseconds, at the clock of the tiles' times, of a stage whose products take `step` and whose rows have to be made: the norm of
    both, since warps wait for each result of a program. Of tiles that take turns a stage is of two tiles. `pixels`: rows may lie in the
    padding. Host function."""
    turns = 2 if tile.ping_pong else 1
    cycles = COST.step + COST.function * steps_instructions(program) + COST.pixels * pixels
    making = (COST.waiting + tile.bm // 64 * tile.blocks * turns * cycles) / turns
    return math.hypot(step, 1e6 * making / constants("engine/hopper").clock)


class Rows(NamedTuple):
    """Which elements of the operand a warpgroup makes. A thread has two rows of each 64, 8 apart; `kept` is a local array.

    first : device function (tile, row, operands, kept) -> state
        Of a tile's first stage; `row`: the thread's first row in the tile.
    after : device function (state, tile) -> state
        Of the stage after.
    column : device function (state) -> (first column of the stage, where columns end, the program's operands)
    row : device function (state, n) -> row number n of the thread's, as the program takes it
    mask : device function (state, kept, n) -> uint32, optional
        What is kept of the words of row number n: of a row in the padding nothing is.
    kept : int
        Words of `kept`.
    """
    first: object
    after: object
    column: object
    row: object
    mask: object = None
    kept: int = 0


class MadeRows(NamedTuple):
    """How a warpgroup makes its rows of a.

    rows : Rows
    ahead : device function (columns, state, thread)
        Load what the program reads of the stage's columns to the local array `columns`, before the stage is there.
    multiply : device function (acc, at, b, accumulate, thread, state, kept, columns)
        A stage of the warpgroup's rows, which lie at the shared address `at`, times the matrix of descriptor `b`, in `STEPS` groups of
        products.
    words : int
        Of `columns`.
    pitch : int
        Bytes of a row of a stage.
    """
    rows: Rows
    ahead: object
    multiply: object
    words: int
    pitch: int


@functools.cache
def make_matrix_rows(made):
    """The `Rows` of a matrix, whose `operands` are the program's, m and k. Host function."""
    placed = make_placed(made.program, 1)

    @device_function
    def first(tile, row, operands, kept):
        e, m, k = operands
        return tile.k_begin * DEPTH, tile.row + row, m - 1, k, placed(e, tile.z, ())

    @device_function
    def after(state, tile):
        k, row, last, end, e = state
        return k + DEPTH, row, last, end, e

    @device_function
    def column(state):
        k, row, last, end, e = state
        return k, end, e

    @device_function
    def row(state, n):
        k, first_row, last, end, e = state
        return minimum(first_row + n // 2 * 64 + n % 2 * 8, last)
    return Rows(first, after, column, row)


@functools.cache
def make_made_rows(tile, loader, rows, made, pairs, edge):
    """The `MadeRows` of a tile. Host function. `loader`: as `hopper.make_product` has it; `pairs`: see `paired`; `edge`: columns end
    within a stage."""
    GROUPS, B_STEP, item = tile.groups, 2 if loader.b_major == "k" else 2 * loader.b_width, numpy_dtype(made.source).itemsize
    fill, word, (WORDS, read, values) = _make_fill(item, GROUPS), make_word(made, pairs, edge), _make_stage_columns(made.program, pairs)
    multiply_step = make_wgmma(tile.bn, loader.dtype, loader.b_dtype, steps=1, tiles=GROUPS, a="registers", b_major=loader.b_major)
    wait, (_, _, column_of, row_of, mask, _) = make_wgmma_wait(STEPS - 1, 0), rows
    MASKED, PAIRS = mask is not None, bool(pairs)

    @device_function
    def ahead(columns, state, thread):
        if PAIRS:
            k, end, e = column_of(state)
            read(columns, k, k + 2 * (thread & 3), end, e)

    @device_function
    def given(columns, j):
        if PAIRS:
            return values(columns, j)
        return 0, 0

    @device_function
    def step(i, s):
        acc, found, b, accumulate, thread, state, kept, columns = s
        k, end, e = column_of(state)
        words, column = cuda.local.array(4 * GROUPS, u32), k + STEP * i + 2 * (thread & 3)
        early, late = given(columns, 2 * i), given(columns, 2 * i + 1)
        wait(acc)
        for n in range(2 * GROUPS):
            fragment, row = n // 2 * 4 + n % 2, row_of(state, n)
            at = i * 4 * GROUPS + fragment
            words[fragment] = word(found[at], early, row, column, end, e)
            words[fragment + 2] = word(found[at + 2], late, row, column + STEP // 2, end, e)
            if MASKED:
                bits = mask(state, kept, n)
                words[fragment] &= bits
                words[fragment + 2] &= bits
        multiply_step(acc, words, b + u64(i * B_STEP), accumulate if i == 0 else 1)
    steps = unrolled(STEPS, step)

    @device_function
    def multiply(acc, at, b, accumulate, thread, state, kept, columns):
        found = cuda.local.array(4 * STEPS * GROUPS, u32)
        fill(found, at, thread)
        steps(0, (acc, found, b, accumulate, thread, state, kept, columns))
    return MadeRows(rows, ahead, multiply, WORDS, DEPTH * item)


def _make_fill(item, groups):
    """Device function ``fill(words, at, thread)``: the stage at `at` as it lies, four pairs for each step and 64 rows; all at once, since
    the products of a step wait for its loads."""
    PITCH = DEPTH * item

    @device_function
    def fill(words, at, thread):
        eighth, pair = (thread & 31) >> 2, thread & 3
        first = ((thread >> 5) * 16 + eighth) * PITCH
        for half in range(2 * STEPS):
            if item == 2:  # the swizzle of 128 bytes
                byte = ((half ^ eighth) << 4) + 4 * pair
            else:  # of 64, and two pairs are a word
                byte = ((half // 2 ^ (eighth >> 1 & 3)) << 4) + 8 * (half % 2) + 4 * (pair >> 1)
            for n in range(2 * groups):
                found = load_shared_u32(at + u32(first + (n // 2 * 64 + n % 2 * 8) * PITCH + byte))
                words[(half // 2 * groups + n // 2) * 4 + half % 2 * 2 + n % 2] = found if item == 2 else found >> u32((pair & 1) * 16)
    return fill


def paired(making):
    """Numbers of a program's operands that a thread can load two neighbours of at a time: by column, every second one aligned. Host
    function."""
    return tuple(k for k, ((_, access), tensor, steps) in enumerate(zip(making.made.program.operands, making.extras, making.steps))
                 if access == "column" and in_pairs(tensor, (0, steps.column, *steps.batch)))


@functools.cache
def _make_stage_columns(program, pairs):
    """(words, device functions `read` and `values`) of the operands `pairs`, for the pairs of columns of a stage that a thread makes, see
    `hopper_columns.make_columns`. Host function."""
    def pointer(at):
        return device_function(lambda e: e[at])
    return make_column_words([(pointer(positions_of(program)[k]), program.operands[k][0], False) for k in pairs], ROW // 16)


@functools.cache
def make_columns(program, pairs):
    """Device function ``columns(k, e)``: the values of those operands at column k, which is even, and at the next one. Host function."""
    if not pairs:
        return device_function(lambda k, e: (0, 0))
    values = None
    for number in pairs:
        values = _with_pair(values, element(program.operands[number][0]), positions_of(program)[number])
    return values


def _with_pair(before, kind, AT):
    unpack = kind.unpack
    if kind.per_word == 2:
        pair = device_function(lambda k, e: unpack(as_u32(e[AT])[k >> 1]))
    else:
        pair = device_function(lambda k, e: load2(e[AT], k))
    if before is None:
        @device_function
        def values(k, e):
            low, high = pair(k, e)
            return (low,), (high,)
        return values

    @device_function
    def more_values(k, e):
        lows, highs = before(k, e)
        low, high = pair(k, e)
        return lows + (low,), highs + (high,)
    return more_values


@functools.cache
def make_word(made, pairs, edge):
    """Device function ``word(pair, given, row, k, end, e)``: two neighbours along k, made of two in memory, and of the values of `pairs`; 0
    from `end` on."""
    source = loaded_type(made.source)
    run, unpack, pack = make_program(made.program, source, given=pairs), element_of(made.source).unpack, element(made.dtype).pack
    cast = make_cast(made.program.types(source)[made.program.result], "float32")
    if pairs:
        value = device_function(lambda x, given, row, k, e: cast(run((x,) + given, row, k, e)))
    else:
        value = device_function(lambda x, given, row, k, e: cast(run(x, row, k, e)))

    @device_function
    def word(pair, given, row, k, end, e):
        x = unpack(pair)
        if not edge:
            return pack(value(x[0], given[0], row, k, e), value(x[1], given[1], row, k + 1, e))
        found = pack(value(x[0], given[0], row, minimum(k, end - 1), e), value(x[1], given[1], row, minimum(k + 1, end - 1), e))
        if k + 1 >= end:  # NOTE: of the words alone: a branch around the program would end the products in flight
            found = found & 0xFFFF if k < end else u32(0)
        return found
    return word
