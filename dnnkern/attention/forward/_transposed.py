"""Values of 8 bits, transposed: Hopper's tensor cores take only 16-bit operands that are not contiguous along the sum, here the keys.

A block of 32 keys of a head becomes 32 * `columns` bytes, 16 of its keys after the other 16, of each column 16 bytes: what wgmma reads
without a swizzle. A tile of any number of blocks, from any one on, is one piece of memory, and comes by one bulk copy. The keys of a block
lie in the order in which a thread has their probabilities in the accumulators of the scores, so that four of those are a word of its left
operand as they are (`_fragments`)::

    byte 16 g + 4 c + 2 u + e of a column = key 16 g + 8 u + 2 c + e of the block            c < 4;  g, u, e < 2

What lies past a sequence's last key, and beyond the array, is zero.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, i64, jit, u32
from ...device.dependent import launch_dependent_grids, wait_for_previous_grid
from ...device.index import Divisor, ceil_div, divide_remainder, divisor
from ...device.numeric import permute_bytes
from ...device.vec import advance, as_u32, load1_nc_if, store4
from ...device.warp import shuffle_xor
from ...host.launch import Argument, Launch
from .._fragments import make_factors
from .._parameters import Sequences, Strides, kind_of, sequence_arguments
from .._quantization import quantization_argument, quantized
from .._scores import make_terms

BLOCK = 32      # keys: a step of wgmma
THREADS = 128


@dataclass(frozen=True)
class Transposed:
    """How values lie: in `columns` columns, those of v and zeros, for tiles of `width` keys, which may begin with any block."""
    problem: object
    columns: int
    width: int

    @property
    def blocks(self):
        """Of a head."""
        return ceil_div(self.problem.keys, BLOCK) + self.width // BLOCK - 1

    @property
    def steps(self):
        """Bytes from one image to the next, and from one head to the next."""
        head = self.blocks * BLOCK * self.columns
        return self.problem.kv_heads * head, head

    @property
    def nbytes(self):
        """Of all heads; a counter follows."""
        return self.problem.batch * self.steps[0]


@functools.cache
def kernel(kind, elements, words, quantized):
    """Sixteen keys of four columns a thread; they are loaded as words, if `words`. Thread 0 sets the counter, and maxima, to zero."""
    terms, WORDS, reset_maxima, MAXIMA = make_terms(kind), words, make_factors(quantized).reset, quantized.amax_s or quantized.amax_o

    @device_function
    def fetch(row, column, step, there):
        """Four neighbours of a row, zeros of one that is not there."""
        word = u32(0)
        if WORDS:
            word = load1_nc_if(as_u32(advance(row, column)), 0, there)
        else:
            for b in range(4):
                if there and column + b < elements:
                    word = word | u32(row[(column + b) * step]) << u32(8 * b)
        return word

    @jit(launch_bounds=THREADS)
    def sdpa_transpose_values(v, transposed, counter, count, groups, halves, heads, v_strides, rows, keys, of_rows, of_keys, row_step,
                              key_step, quantization):
        launch_dependent_grids()
        wait_for_previous_grid()
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index == 0:
            counter[0] = 0
            if MAXIMA:
                reset_maxima(quantization)
        exists = index < count  # of two neighbours both or none: there are whole groups of 8 columns
        rest, group = divide_remainder(index, groups)
        line, half = divide_remainder(rest, halves)
        image, g = divide_remainder(line, heads)
        keys_there = 0
        if exists:
            _, _, _, keys_there = terms.lengths(image, Sequences(of_rows, of_keys, row_step, key_step), rows, keys)
        column, first = 4 * group, 16 * half
        at = advance(v, image * v_strides.batch + g * v_strides.head + first * v_strides.row)
        given = cuda.local.array(16, u32)
        for key in range(16):
            there = first + key < keys_there and column < elements
            given[key] = fetch(advance(at, key * v_strides.row), column, v_strides.column, there)
        turns = cuda.local.array(16, u32)
        for c in range(4):
            a, b, d, e = given[2 * c], given[2 * c + 1], given[8 + 2 * c], given[9 + 2 * c]
            low, high = permute_bytes(a, b, 0x5140), permute_bytes(d, e, 0x5140)
            turns[c], turns[4 + c] = permute_bytes(low, high, 0x5410), permute_bytes(low, high, 0x7632)
            low, high = permute_bytes(a, b, 0x7362), permute_bytes(d, e, 0x7362)
            turns[8 + c], turns[12 + c] = permute_bytes(low, high, 0x5410), permute_bytes(low, high, 0x7632)
        # two neighbours write 32 bytes of a column pair together: a thread has the first or the second columns of both
        odd = cuda.threadIdx.x & 1
        for k in range(4):
            for pair in range(2):
                mine, other = turns[8 * pair + k], turns[8 * pair + 4 + k]
                got = shuffle_xor(mine if odd else other, 1)
                turns[8 * pair + k], turns[8 * pair + 4 + k] = (got, other) if odd else (mine, got)
        if exists:
            to = advance(transposed, i64(index - odd) * 16 + 4 * odd)
            for pair in range(2):
                for of in range(2):
                    k = 8 * pair + 4 * of
                    store4(to, 16 * of + 8 * pair, (turns[k], turns[k + 1], turns[k + 2], turns[k + 3]))
    return sdpa_transpose_values


def transpose_launch(transposed):
    """The launch."""
    p = transposed.problem
    *steps, step = p.strides(p.v)
    words = p.v.alignment % 4 == 0 and step == 1 and all(s % 4 == 0 for s in steps) and p.dv % 4 == 0
    groups, halves = transposed.columns // 4, 2 * transposed.blocks
    count = p.batch * p.kv_heads * halves * groups
    arguments = (Argument("uint8*", "v"), Argument("uint32*", "workspace"), Argument("uint32*", "workspace", offset=transposed.nbytes),
                 Argument("int32", count), Argument(Divisor, divisor(groups)), Argument(Divisor, divisor(halves)),
                 Argument(Divisor, divisor(p.kv_heads)), Argument(Strides, p.strides(p.v)), Argument("int32", p.rows),
                 Argument("int32", p.keys), *sequence_arguments(p), quantization_argument(p))
    made = kernel(kind_of(p), p.dv, words, quantized(p))
    return Launch(made, (ceil_div(count, THREADS), 1, 1), (THREADS, 1, 1), arguments, dependent=True)
