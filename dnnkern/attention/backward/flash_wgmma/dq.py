"""After the kernel: dq, rounded from what it added up in the workspace."""
import functools

from ....device import cuda, device_function, f32, i32, i64, jit
from ....device.convert import element
from ....device.groups import access_words, make_reader, make_writer
from ....device.index import Divisor, ceil_div, divide_remainder, divisor
from ....device.vec import advance, load2_if
from ....host.launch import Argument, Launch
from ..._parameters import Sequences, Strides, kind_of, sequence_arguments, softmax_scale
from .tiles import make_rows
from .workspace import RowSizes

CONVERTERS = 256  # threads of a block


def dq_launch(problem, space):
    """The launch that rounds it, times the scale."""
    p, t = problem, problem.dq
    groups = space.columns // (16 if space.transposed else 8)
    words = access_words(t, 8, p.strides(t)[:-1]) if p.strides(t)[-1] == 1 and p.d % 8 == 0 else 0
    per_block = divisor(ceil_div(4 * space.columns, CONVERTERS))
    blocks_of_a_line = (space.rows if p.packed else ceil_div(p.rows, 64) * 64) // 64
    blocks = space.lines * blocks_of_a_line * per_block[0]
    arguments = (Argument("float32*", "workspace", space.dq), Argument("uint32*", "workspace", space.counts),
                 Argument(element(t.dtype).pointer, "dq"), Argument(Strides, p.strides(t)),
                 Argument(RowSizes, (p.rows, p.keys, space.rows, p.d, p.batch)), Argument("uint32x3", per_block),
                 Argument(Divisor, divisor(groups)), Argument(Divisor, divisor(blocks_of_a_line)),
                 Argument(Divisor, divisor(p.heads)), *sequence_arguments(p), Argument("float32", softmax_scale(p)))
    return Launch(kernel(kind_of(p), words, space.width, space.stored), (blocks, 1, 1), (CONVERTERS, 1, 1), arguments)


@functools.cache
def kernel(kind, words, width, stored):
    """Eight neighbours of two rows per thread, or single elements where they are no group of whole words."""
    RAW, LENGTH, fetch, unpack = make_reader("float32", 16, 4, constant=False)
    put, store, find, PACKED = make_writer(kind.dtype, 8, words), element(kind.dtype).store, make_rows(kind, width).find, kind.packed
    TRANSPOSED, APART, LOG_WIDTH = width < 64, 1 if width < 64 else 8, width.bit_length() - 1  # a thread's two rows are so far apart

    @device_function
    def write(dq, strides, row, column, elements, values, scale):
        for c in range(8):
            values[c] = values[c] * scale
        if words:
            if column < elements:
                put(advance(dq, row * strides.row + column), 0, values, 0)
        else:
            for c in range(8):
                if column + c < elements:
                    store(dq, row * strides.row + (column + c) * strides.column, values[c])

    @device_function
    def position_of(index, groups):
        """(the first row of 64, the first column) of a thread."""
        if TRANSPOSED:
            eight, group = divide_remainder(index >> 3, groups)
            return eight * 8 + (index >> 1 & 3) * 2, group * 16 + (index & 1) * 8
        pair, group = divide_remainder(index, groups)
        return (pair >> 3) * 16 + (pair & 7), group * 8

    @device_function
    def tile_of(own, row):
        """The tile of a row of block `own` of 64 rows."""
        return (own * 64 + row) >> LOG_WIDTH

    @device_function
    def read(upper, lower, added, own, row, column, groups, there):
        if TRANSPOSED:
            block = tile_of(own, row) * groups + (column >> 4)
            at = block * (16 * width) + (((row & (width - 1)) >> 3) * 128 + (row & 6) * 2 + ((column & 8) >> 2))
            for c in range(8):
                upper[c], lower[c] = load2_if(added, at + 16 * c, there)
        else:
            raw, values = cuda.local.array(LENGTH, RAW), cuda.local.array(16, f32)
            at = (own * groups + (column >> 3)) * 512 + ((row >> 4) * 128 + (row & 7) * 16)
            fetch(raw, 0, advance(added, at), 0, there)
            unpack(values, 0, raw, 0)
            for lane in range(4):
                for e in range(2):
                    upper[2 * lane + e], lower[2 * lane + e] = values[4 * lane + e], values[4 * lane + 2 + e]

    @jit(launch_bounds=(CONVERTERS, 2))
    def sdpa_bwd_dq(added, counts, dq, dq_strides, sizes, per_block, groups_of, blocks_of, heads_of, of_rows, of_keys, row_step, key_step,
                    scale):
        block_of_rows, part = divide_remainder(cuda.blockIdx.x, per_block)
        line, block = divide_remainder(block_of_rows, blocks_of)
        image, h = divide_remainder(line, heads_of)
        first, column = position_of(part * CONVERTERS + cuda.threadIdx.x, groups_of)
        if first < 64:
            own = line * i64(sizes.padded >> 6) + block
            first_row, row, rows = find(image, block * 64 + first, Sequences(of_rows, of_keys, row_step, key_step), sizes.batch,
                                        sizes.rows, sizes.keys)
            written = rows if PACKED else sizes.rows
            there = 1
            if stored:
                there = i32(counts[tile_of(own, first)] > 0)
            upper, lower = cuda.local.array(8, f32), cuda.local.array(8, f32)
            read(upper, lower, added, own, first, column, groups_of[0], there)
            for c in range(8):
                upper[c] = upper[c] if row < rows else f32(0)
                lower[c] = lower[c] if row + APART < rows else f32(0)
            to = advance(dq, image * dq_strides.batch + h * dq_strides.head + first_row * dq_strides.row)
            if row < written:
                write(to, dq_strides, row, column, sizes.columns, upper, scale)
            if row + APART < written:
                write(to, dq_strides, row + APART, column, sizes.columns, lower, scale)
    return sdpa_bwd_dq
