"""sum(do * o) of each row, which the gradients of scores need: some lanes per row, 16 bytes each, whatever the rows' strides."""
import functools
from typing import Callable, NamedTuple

from ...device import cuda, device_function, i32, i64, jit
from ...device.convert import element
from ...device.fastmath import fma
from ...device.groups import access_words, make_reader
from ...device.index import Divisor, ceil_div, divide_remainder, divisor
from ...device.vec import advance
from ...device.warp import add, make_reduce
from ...host.launch import Argument, Launch
from .._parameters import Strides, kind_of

THREADS, TURNS = 128, 4  # of a block, and rows of a thread


class RowStats(NamedTuple):
    """Where the workspace has what of rows: from byte `begin` on, for each head `rows` deltas in the order of `delta_launch`, or, with a
    `width`, lse and deltas as `flash_wgmma.workspace` orders them; sums may lie from byte `end` on."""
    begin: int
    rows: int
    width: int
    end: int


class Sizes(NamedTuple):
    """Queries, keys and heads of an array; queries of a head in the workspace."""
    rows: i32
    keys: i32
    heads: i32
    padded: i32


class Dots(NamedTuple):
    """How rows of do and o are multiplied.

    lanes : int
        Threads of a row, neighbours.
    total : device function ``total(do, o, i, there, elements, do_strides, o_strides, lane)``
        The sum of row i of the heads at do and o, in all lanes; 0 where it is not there. All lanes of a warp call it.
    """
    lanes: int
    total: Callable

    @property
    def per_block(self):
        """Rows of a block, of which each thread has TURNS."""
        return THREADS // self.lanes * TURNS


def dots_of(problem) -> Dots:
    """Of a problem: 16 bytes at a time where strides allow it."""
    p = problem
    chunk = 16 // p.do.itemsize
    words = tuple(access_words(t, chunk, p.strides(t)[:-1]) if p.strides(t)[-1] == 1 and p.dv % chunk == 0 else 0 for t in (p.do, p.o))
    if not all(words):
        chunk, words = 1, (0, 0)
    lanes = min(32, 1 << (ceil_div(p.dv, chunk) - 1).bit_length()) if p.dv else 1
    return make_dots(kind_of(p).real, p.dtype, chunk, words, lanes)


@functools.cache
def make_dots(T, dtype, chunk, words, lanes) -> Dots:
    """`words` are the 32-bit words of accesses to do and o, by `chunk` elements."""
    (RAW, LENGTH, fetch, unpack), (RAW_O, LENGTH_O, fetch_o, unpack_o) = (make_reader(dtype, chunk, n) for n in words)
    of_lanes = make_reduce(add, lanes)

    @device_function
    def total(do, o, i, there, elements, do_strides, o_strides, lane):
        raw, raw_o = cuda.local.array(LENGTH, RAW), cuda.local.array(LENGTH_O, RAW_O)
        a, b = cuda.local.array(chunk, T), cuda.local.array(chunk, T)
        sum_ = T(0)
        for column in range(lane * chunk, elements, lanes * chunk):
            at, at_o = i * do_strides.row + column * do_strides.column, i * o_strides.row + column * o_strides.column
            fetch(raw, 0, advance(do, at if there else i64(0)), 0, i32(there))
            fetch_o(raw_o, 0, advance(o, at_o if there else i64(0)), 0, i32(there))
            unpack(a, 0, raw, 0)
            unpack_o(b, 0, raw_o, 0)
            for c in range(chunk):
                sum_ = fma(a[c], b[c], sum_)
        return of_lanes(sum_)
    return Dots(lanes, total)


def delta_launch(problem):
    """The launch that leaves them in the workspace, in the order of images, heads and rows."""
    p, dots = problem, dots_of(problem)
    tiles, pointer = ceil_div(p.rows, dots.per_block), element(p.dtype).pointer
    arguments = (Argument(pointer, "do"), Argument(pointer, "o"), Argument(f"{p.compute}*", "workspace"), Argument("int32", p.rows),
                 Argument("int32", p.dv), Argument(Divisor, divisor(tiles)), Argument(Divisor, divisor(p.heads)),
                 *(Argument(Strides, p.strides(t)) for t in (p.do, p.o)))
    return Launch(delta_kernel(dots), (tiles * p.images * p.heads, 1, 1), (THREADS, 1, 1), arguments)


@functools.cache
def delta_kernel(dots):
    """Rows of one head a block."""
    LANES, total = dots.lanes, dots.total
    ROWS = THREADS // LANES

    @jit(launch_bounds=(THREADS, 4))
    def sdpa_delta(do, o, delta, rows, elements, tiles, heads_of, do_strides, o_strides):
        image_head, tile = divide_remainder(cuda.blockIdx.x, tiles)
        image, h = divide_remainder(image_head, heads_of)
        lane, line = cuda.threadIdx.x % LANES, cuda.threadIdx.x // LANES
        of_do = advance(do, image * do_strides.batch + h * do_strides.head)
        of_o = advance(o, image * o_strides.batch + h * o_strides.head)
        for turn in range(TURNS):
            i = (tile * TURNS + turn) * ROWS + line
            sum_ = total(of_do, of_o, i, i < rows, elements, do_strides, o_strides, lane)
            if lane == 0 and i < rows:
                delta[image_head * i64(rows) + i] = sum_
    return sdpa_delta
