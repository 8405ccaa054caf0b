"""What all algorithms of attention compute of a row, of a key and of a score, in float32 or float64."""
import functools
from dataclasses import dataclass
from typing import Callable, NamedTuple

from ..device import device_function, f32, f64, i32, i64, u8, u32
from ..device.convert import element
from ..device.fastmath import exp2, fabs, tanh
from ..device.philox import make_stream_seed, philox
from ..host import seeds
from ..host.launch import Argument
from ._checks import SCALES, broadcast_strides

NEG_INF = -float("inf")


class Strides(NamedTuple):
    """Of an array of rows, such as q[batch, head, row, column]; of a bias or a mask rows are queries and columns are keys."""
    batch: i64
    head: i64
    row: i64
    column: i64


class RowStrides(NamedTuple):
    """Of lse[batch, head, row]."""
    batch: i64
    head: i64
    row: i64


class Sequences(NamedTuple):
    """Lengths, or offsets where sequences are packed, of queries and of keys, and the strides of those arrays: what kernels make of
    `sequence_arguments`."""
    rows: object
    keys: object
    row_step: i64
    key_step: i64


@dataclass(frozen=True)
class Kind:
    """What kernels are compiled for, of the options.

    Attributes
    ----------
    dtype : str
        Of q, k and v.
    bias, sink : str
        dtypes; "" for none.
    limits_rows, limits_keys : bool
        Whether there are lengths, packed offsets, of the queries and of the keys.
    packed, bottom, alibi, softcap, dropout, mask : bool
        `bottom`: rows are aligned to the last key, not to the first.
    seed_array, offset_array : bool
        Whether dropout's seed and offset are read from memory.
    """
    dtype: str
    bias: str = ""
    sink: str = ""
    limits_rows: bool = False
    limits_keys: bool = False
    packed: bool = False
    bottom: bool = False
    alibi: bool = False
    softcap: bool = False
    dropout: bool = False
    mask: bool = False
    seed_array: bool = False
    offset_array: bool = False

    @property
    def compute(self):
        return element(self.dtype).compute

    @property
    def real(self):
        """Type to compute with."""
        return f64 if self.compute == "float64" else f32


def kind_of(problem) -> Kind:
    """The kind of a problem."""
    p = problem
    return Kind(p.dtype, p.bias.dtype if p.bias is not None else "", p.sink.dtype if p.sink is not None else "",
                p.packed or p.seq_len_q is not None, p.packed or p.seq_len_kv is not None, p.packed, p.align == "bottom_right", p.alibi,
                p.softcap > 0, p.dropout > 0, p.mask is not None, *seeds.reads(p))


class Terms(NamedTuple):
    """Device functions of a `Kind`.

    find(t, offsets, step, batch)
        The packed sequence that row t may belong to: the last one that begins there or before.
    lengths(b, sequences, rows, keys)
        (first row, rows, first key, keys) of sequence b, never outside the arrays, of `Sequences`.
    shift(rows, keys)
        Query i has position i + shift among the keys.
    key_range(i, rows, keys, bounds)
        Keys (first, end) that query i of a sequence attends to; none if there is no such query.
    query_range(j, rows, keys, bounds)
        Queries (first, end) that attend to key j of a sequence.
    slope(h, heads)
        ALiBi's for a head; 0 without.
    score(dot, distance, slope, bias, at, scale, softcap)
        The score of a product of a row and a key that is `distance` after the row's own place; the bias's element is at `at`.
    score_and_derivative(dot, ...)
        (the score, its derivative by the product but for `scale`, which with a cap is a multiple of the cap).
    permits(mask, at)
        Whether the mask, whose element is at `at`, lets a row attend to a key; True without a mask.
    seed_of(seed, offset)
        The seed of dropout's random words, from what kernels are given; `kept` and others take it.
    kept(p, seed, head, i, j, threshold, factor)
        A probability after dropout: 0 or a multiple of it; `head` is that of all sequences.
    """
    find: Callable
    lengths: Callable
    shift: Callable
    key_range: Callable
    query_range: Callable
    slope: Callable
    score: Callable
    score_and_derivative: Callable
    permits: Callable
    seed_of: Callable
    kept: Callable


@device_function
def between(value, low, high):
    """A 32-bit integer clipped to a range."""
    return min(max(value, low), high)


@device_function
def find(t, offsets, step, batch):
    low, high = i32(0), batch
    while high - low > 1:
        middle = (low + high) >> 1
        if offsets[middle * step] <= t:
            low = middle
        else:
            high = middle
    return low


@functools.cache
def make_lengths(kind):
    """`Terms.lengths`."""
    ROWS, KEYS, PACKED = kind.limits_rows, kind.limits_keys, kind.packed

    @device_function
    def limited(lengths, step, b, most):
        first, count = i32(0), i32(0)
        if PACKED:
            first = between(lengths[b * step], 0, most)
            count = between(lengths[(i64(b) + 1) * step], first, most) - first
        else:
            count = between(lengths[b * step], 0, most)
        return first, count

    @device_function
    def lengths(b, sequences, rows, keys):
        row, key, count, many = i32(0), i32(0), i32(rows), i32(keys)
        if ROWS:
            row, count = limited(sequences.rows, sequences.row_step, b, i32(rows))
        if KEYS:
            key, many = limited(sequences.keys, sequences.key_step, b, i32(keys))
        return row, count, key, many
    return lengths


@device_function
def kept_of_eight(words, threshold):
    """Of four random words, a half for each of eight neighbouring keys, which are kept: bit k is that of key k."""
    bits = u32(0)
    for k in range(4):
        if words[k] << 16 >= threshold:
            bits = bits | u32(1 << 2 * k)
        if words[k] >= threshold:
            bits = bits | u32(2 << 2 * k)
    return bits


@functools.cache
def make_terms(kind) -> Terms:
    """Device functions of a kind."""
    T, BOTTOM, ALIBI, SOFTCAP, DROPOUT = kind.real, kind.bottom, kind.alibi, kind.softcap, kind.dropout
    BIAS, MASK = bool(kind.bias), kind.mask
    load_bias = element(kind.bias or kind.dtype).load

    @device_function
    def shift(rows, keys):
        return keys - rows if BOTTOM else 0

    @device_function
    def key_range(i, rows, keys, bounds):
        first, last = i32(0), i32(0)
        if i >= 0 and i < rows:
            own = i + shift(rows, keys)
            first = max(own - bounds[0], 0)
            last = max(first, min(own + bounds[1] + 1, keys))
        return first, last

    @device_function
    def query_range(j, rows, keys, bounds):
        first, last = i32(0), i32(0)
        if j >= 0 and j < keys:
            own = j - shift(rows, keys)
            first = max(own - bounds[1], 0)
            last = max(first, min(own + bounds[0] + 1, rows))
        return first, last

    @device_function
    def slope(h, heads):
        value = T(0)
        if ALIBI:
            # those of the largest power of two; the others are every other one of twice as many
            power, part = i32(1), T(8)
            while power * 2 <= i32(heads):
                power, part = power * 2, T(part * T(0.5))
            step = i32(h + 1)
            if h >= power:
                step, part = 2 * i32(h - power) + 1, T(part * T(0.5))
            value = exp2(-T(T(step) * part))
        return value

    @device_function
    def score_and_derivative(dot, distance, slope, bias, at, scale, softcap):
        x, derivative = T(dot * scale), T(1)
        if SOFTCAP:
            level = tanh(x)
            x, derivative = T(softcap * level), T(softcap * T(T(1) - T(level * level)))
        if BIAS:
            x = T(x + T(load_bias(bias, at)))
        if ALIBI:
            x = T(x - T(slope * fabs(T(distance))))
        return x, derivative

    @device_function
    def score(dot, distance, slope, bias, at, scale, softcap):
        x, _ = score_and_derivative(dot, distance, slope, bias, at, scale, softcap)
        return x

    @device_function
    def permits(mask, at):
        if MASK:
            return mask[at] != u8(0)
        return True

    @device_function
    def kept(p, seed, head, i, j, threshold, factor):
        if DROPOUT:
            a, b, c, d = philox(seed, (i64(head) << 32) + i, i64(j >> 3))
            word, pair = a, (j >> 1) & 3
            if pair == 1:
                word = b
            if pair == 2:
                word = c
            if pair == 3:
                word = d
            if j & 1 == 0:
                word = word << 16
            p = T(p * factor) if word >= threshold else T(0)
        return p
    return Terms(find, make_lengths(kind), shift, key_range, query_range, slope, score, score_and_derivative, permits,
                 make_stream_seed(kind.seed_array, kind.offset_array), kept)


# ---- kernel parameters

def sequence_arguments(problem):
    """Pointers to lengths, or to offsets where sequences are packed, and their steps: `of_rows`, `of_keys`, `row_step`, `key_step`."""
    names = ("cu_seqlens_q", "cu_seqlens_kv") if problem.packed else ("seq_len_q", "seq_len_kv")
    steps = (t.strides[0] if (t := getattr(problem, name)) is not None else 0 for name in names)
    return (*(Argument("int32*", name) for name in names), *(Argument("int64", s) for s in steps))


def number_arguments(problem):
    """Kernel parameters `bounds`, `scale`, `softcap`, `seed`, `offset`, `threshold`, `factor`."""
    p = problem
    return (Argument("int32x2", p.bounds), Argument(p.compute, softmax_scale(p)), Argument(p.compute, p.softcap), *seeds.arguments(p),
            Argument("uint32", p.threshold), Argument(p.compute, p.factor))


def scaled(problem):
    """Which of q, k and v have a factor."""
    return tuple(getattr(problem, name) is not None for name in SCALES)


def scale_arguments():
    """Kernel parameters `scale_q`, `scale_k`, `scale_v`, null where there is none."""
    return tuple(Argument("float32*", name) for name in SCALES)


def softmax_scale(problem):
    """What products are multiplied by: the scale, with a cap as a multiple of it."""
    return problem.scale / problem.softcap if problem.softcap else problem.scale


def added_arguments(problem):
    """Kernel parameters `bias`, `bias_strides`, `mask`, `mask_strides`, `sink`, `sink_step`."""
    p, pointer = problem, lambda t: element(t.dtype if t is not None else problem.dtype).pointer
    return (Argument(pointer(p.bias), "bias"), Argument(Strides, broadcast_strides(p.bias)), Argument("uint8*", "mask"),
            Argument(Strides, broadcast_strides(p.mask)), Argument(pointer(p.sink), "sink"),
            Argument("int64", p.sink.strides[0] if p.sink is not None else 0))
