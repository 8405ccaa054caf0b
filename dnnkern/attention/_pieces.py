"""float32 as three bfloat16: how tensor cores multiply it, which take 16 bits in any order, without losing a bit of it.

    high = bfloat16(x), middle = bfloat16(x - high), low = x - high - middle

Differences of neighbouring floats are exact, each piece has 8 bits, and x has 24: nothing is lost, but below 2**-133. The middle is at most
2**-9 of x, the low one 2**-18. Of the nine products of two such numbers those of `PRODUCTS` are summed up; the others are 2**-26 of the
product together, a fourth of what rounding it to float32 may take. What is not finite, or beyond bfloat16's largest number, 3.39e38, has
pieces that are infinite and NaN.

In the workspace the pieces of a tensor lie as [piece][image][head][row][element], rows of `width` elements, those after the last one
zero. Zero are also rows past the end of a sequence: whatever is there takes no part.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, f32, i32, i64, jit, u32
from ..device.convert import element
from ..device.dependent import launch_dependent_grids, wait_for_previous_grid
from ..device.groups import access_words, make_reader
from ..device.index import LIMIT, ceil_div, divide_remainder, divisor
from ..device.vec import advance, store4
from ..host.launch import Argument, Launch
from ..host.tensormap import TensorMap
from ._fragments import split
from ._parameters import Sequences, Strides, kind_of, sequence_arguments
from ._scores import make_terms

PIECES, TYPE = 3, "bfloat16"
HIGH, MIDDLE, LOW = range(PIECES)
PRODUCTS = ((LOW, HIGH), (HIGH, LOW), (MIDDLE, MIDDLE), (MIDDLE, HIGH), (HIGH, MIDDLE), (HIGH, HIGH))
"""Pieces of the left and of the right operand that are multiplied, the smallest products first: while a sum that begins from zero is
still small, adding to it costs as little."""
CHUNK, THREADS, MOST = 8, 256, 4  # elements of a thread; threads of a block; tensors of a launch
ITEM = 2


@dataclass(frozen=True)
class Split:
    """The pieces of a problem's tensor `name`, in the workspace from byte `begin` on, a multiple of 16."""
    problem: object
    name: str
    begin: int = 0

    @property
    def tensor(self):
        return getattr(self.problem, self.name)

    @property
    def sizes(self):
        """Of a piece: images, heads, rows, elements."""
        images, heads, rows, elements = self.problem.sizes(self.tensor)
        return images, heads, rows, ceil_div(elements, CHUNK) * CHUNK

    @property
    def chunks(self):
        """Of a piece, 16 bytes each."""
        images, heads, rows, width = self.sizes
        return images * heads * rows * (width // CHUNK)

    @property
    def end(self):
        """After the last byte."""
        return self.begin + PIECES * 16 * self.chunks

    @property
    def words(self):
        """32-bit words of a load of the tensor; 0: it is read element by element."""
        t, (*steps, step) = self.tensor, self.problem.strides(self.tensor)
        return access_words(t, CHUNK, steps) if step == 1 and t.shape[-1] % CHUNK == 0 else 0

    def map(self, height):
        """Kernel parameter: the tensor map of boxes of `height` rows by 128 bytes; image number i of a piece is i after the images of the
        pieces before it."""
        images, heads, rows, width = self.sizes
        strides = (heads * rows * width, rows * width, width, 1)
        return Argument("tensormap", "workspace", self.begin, TensorMap(TYPE, (PIECES * images, heads, rows, width), strides,
                                                                        (1, 1, height, 64), 128, l2_promotion=256))


def splits_of(problem, names, begin=0):
    """Those of several tensors, one after the other."""
    found = []
    for name in names:
        found.append(Split(problem, name, begin))
        begin = found[-1].end
    return tuple(found)


def countable(splits):
    """Why there are too many pieces to be counted by 32-bit integers, or None."""
    most = max(s.chunks for s in splits)
    return None if most < LIMIT else f"{most} groups of {CHUNK} elements to split; expected fewer than 2**31"


def moved_bytes(splits):
    """Bytes that splitting reads and writes."""
    return sum(s.tensor.nbytes + s.end - s.begin for s in splits)


@functools.cache
def _make_part(kind, words, elements, of_keys):
    """Device function ``part(index, x, pieces, strides, divisors, count, numbers)``: splits group number `index` of a tensor."""
    terms, WHOLE = make_terms(kind), words > 0
    RAW, LENGTH, fetch, unpack = make_reader("float32", CHUNK, words or 1)
    load, LIMITED = element("float32").load, not kind.packed and (kind.limits_keys if of_keys else kind.limits_rows)

    @device_function
    def part(index, x, pieces, strides, divisors, count, numbers):
        line, group = divide_remainder(index, divisors[0:3])
        head, row = divide_remainder(line, divisors[3:6])
        image, h = divide_remainder(head, divisors[6:9])
        there = True
        if LIMITED:
            sequences, rows, keys = numbers
            _, rows, _, keys = terms.lengths(image, sequences, rows, keys)
            there = row < (keys if of_keys else rows)
        column = group * CHUNK
        at = image * strides.batch + h * strides.head + row * strides.row + column * strides.column
        values = cuda.local.array(CHUNK, f32)
        if WHOLE:
            raw = cuda.local.array(LENGTH, RAW)
            fetch(raw, 0, advance(x, at), 0, i32(there))
            unpack(values, 0, raw, 0)
        else:
            for c in range(CHUNK):
                values[c] = f32(0)
                if there and column + c < elements:
                    values[c] = load(x, at + c * strides.column)
        to = advance(pieces, i64(index) * 4)
        a, b = split(values[0], values[1]), split(values[2], values[3])
        c, d = split(values[4], values[5]), split(values[6], values[7])
        step = i64(count) * 4
        store4(to, 0, (a[0], b[0], c[0], d[0]))
        store4(advance(to, step), 0, (a[1], b[1], c[1], d[1]))
        store4(advance(to, 2 * step), 0, (a[2], b[2], c[2], d[2]))
    return part


@functools.cache
def kernel(kind, tensors, counts):
    """A thread a group of 16 bytes of the pieces, row of the grid k for tensor k of `tensors`, (words, elements, of_keys). Thread 0 sets a
    counter to zero, if it `counts`."""
    first, second, third, fourth = (_make_part(kind, *t) for t in (*tensors, *tensors[-1:] * (MOST - len(tensors))))
    COUNT = len(tensors)

    @jit(launch_bounds=THREADS)
    def sdpa_split(a, of_a, a_strides, a_divisors, a_count, b, of_b, b_strides, b_divisors, b_count, c, of_c, c_strides, c_divisors,
                   c_count, d, of_d, d_strides, d_divisors, d_count, counter, rows, keys, of_rows, of_keys, row_step,
                   key_step):
        launch_dependent_grids()
        wait_for_previous_grid()
        index, which = cuda.blockIdx.x * THREADS + cuda.threadIdx.x, cuda.blockIdx.y
        numbers = (Sequences(of_rows, of_keys, row_step, key_step), rows, keys)
        if counts and index == 0 and which == 0:
            counter[0] = u32(0)
        if which == 0 and index < a_count:
            first(index, a, of_a, a_strides, a_divisors, a_count, numbers)
        if COUNT > 1 and which == 1 and index < b_count:
            second(index, b, of_b, b_strides, b_divisors, b_count, numbers)
        if COUNT > 2 and which == 2 and index < c_count:
            third(index, c, of_c, c_strides, c_divisors, c_count, numbers)
        if COUNT > 3 and which == 3 and index < d_count:
            fourth(index, d, of_d, d_strides, d_divisors, d_count, numbers)
    return sdpa_split


def split_launch(splits, counter=None):
    """The launch that splits up to four tensors of a problem, and sets the counter at byte `counter` of the workspace to zero."""
    p, arguments = splits[0].problem, []
    for s in (*splits, *splits[-1:] * (MOST - len(splits))):
        _, heads, rows, width = s.sizes
        arguments += [Argument("float32*", s.name), Argument("uint32*", "workspace", s.begin), Argument(Strides, p.strides(s.tensor)),
                      Argument("uint32x9", (*divisor(width // CHUNK), *divisor(max(rows, 1)), *divisor(max(heads, 1)))),
                      Argument("int32", s.chunks)]
    tensors = tuple((s.words, s.tensor.shape[-1], s.name in ("k", "v")) for s in splits)
    grid = max(1, ceil_div(max(s.chunks for s in splits), THREADS)), len(splits), 1
    return Launch(kernel(kind_of(p), tensors, counter is not None), grid, (THREADS, 1, 1),
                  (*arguments, Argument("uint32*", "workspace", counter or 0), Argument("int32", p.rows), Argument("int32", p.keys),
                   *sequence_arguments(p)), dependent=True)
