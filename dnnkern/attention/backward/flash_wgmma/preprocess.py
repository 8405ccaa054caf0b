"""Before the kernel: lse and delta of each query for its steps, and zeros where it adds."""
import functools

from ....device import cuda, device_function, i64, jit, u32
from ....device.convert import element
from ....device.index import Divisor, ceil_div, divide_remainder, divisor
from ....device.vec import advance, store4
from ....device.warp import any_lane
from ....host.launch import Argument, Launch
from ..._parameters import RowStrides, Sequences, Strides, kind_of, sequence_arguments
from ..._scores import between, load_row_lse
from .._delta import THREADS, TURNS, dots_of
from .tiles import make_rows
from .workspace import NO_TILES, RowSizes


def preprocess_launch(problem, space):
    """The launch."""
    p, dots, pointer = problem, dots_of(problem), element(problem.dtype).pointer
    tiles = ceil_div(space.rows, dots.per_block)
    first, vectors = space.cleared
    arguments = (Argument(pointer, "do"), Argument(pointer, "o"), Argument("float32*", "lse"),
                 Argument("float32*", "workspace"), Argument("uint32*", "workspace", first), Argument("int64", vectors),
                 Argument("int32", ceil_div(vectors, tiles * space.lines * THREADS)),
                 Argument(RowSizes, (p.rows, p.keys, space.rows, p.dv, p.batch)), Argument(Divisor, divisor(tiles)),
                 Argument(Divisor, divisor(p.heads)), *(Argument(Strides, p.strides(t)) for t in (p.do, p.o)),
                 Argument(RowStrides, p.lse_strides), *sequence_arguments(p))
    return Launch(kernel(kind_of(p), dots, space.width), (tiles * space.lines, 1, 1), (THREADS, 1, 1), arguments)


@functools.cache
def kernel(kind, dots, width):
    """Rows of one head per block. Where packed sequences' offsets decrease, tiles of keys are not what rows wait for: there are
    none then."""
    LANES, total, find, PACKED = dots.lanes, dots.total, make_rows(kind, width).find, kind.packed
    ROWS = THREADS // LANES

    @device_function
    def decrease(offsets, step, batch, count):
        """Whether offsets do, in some lane."""
        found = False
        for b in range(cuda.threadIdx.x, batch, 32):
            if between(offsets[b * step], 0, count) > between(offsets[(i64(b) + 1) * step], 0, count):
                found = True
        return any_lane(found)

    @jit(launch_bounds=(THREADS, 4))
    def sdpa_bwd_preprocess(do, o, lse, stats, cleared, vectors, clears, sizes, tiles, heads_of, do_strides, o_strides, lse_strides,
                            of_rows, of_keys, row_step, key_step):
        line, tile = divide_remainder(cuda.blockIdx.x, tiles)
        image, h = divide_remainder(line, heads_of)
        lane, row_of_turn, last = cuda.threadIdx.x % LANES, cuda.threadIdx.x // LANES, vectors - PACKED
        nothing = u32(0)
        for turn in range(clears):
            vector = (turn * i64(cuda.gridDim.x) + cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
            if vector < last:
                store4(cleared, 4 * vector, (nothing, nothing, nothing, nothing))
        if PACKED and cuda.blockIdx.x == 0 and cuda.threadIdx.x < 32:
            wrong_rows = decrease(of_rows, row_step, sizes.batch, sizes.rows)
            wrong_keys = decrease(of_keys, key_step, sizes.batch, sizes.keys)
            ticket = u32(NO_TILES) if wrong_rows or wrong_keys else nothing
            if cuda.threadIdx.x == 0:
                store4(cleared, 4 * last, (ticket, ticket, nothing, nothing))
        of_do = advance(do, image * do_strides.batch + h * do_strides.head)
        of_o = advance(o, image * o_strides.batch + h * o_strides.head)
        of_lse = image * lse_strides.batch + h * lse_strides.head
        for turn in range(TURNS):
            i = (tile * TURNS + turn) * ROWS + row_of_turn
            first, row, rows = find(image, i, Sequences(of_rows, of_keys, row_step, key_step), sizes.batch, sizes.rows, sizes.keys)
            delta = total(of_do, of_o, first + row, row < rows, sizes.columns, do_strides, o_strides, lane)
            if lane == 0 and i < sizes.padded:
                at = (line * i64(sizes.padded) + (i & -width)) * 2 + (i & (width - 1))
                stats[at] = load_row_lse(lse, of_lse + (first + row) * lse_strides.row, row < rows)
                stats[at + width] = delta
    return sdpa_bwd_preprocess
