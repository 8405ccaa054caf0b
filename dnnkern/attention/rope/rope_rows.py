"""Sixteen bytes a load: a thread has as many neighbouring pairs as are 16 bytes of either half of a row, or of both together where pairs
are neighbours, twice as many.

All loads are under way before the first product; angles are shared by the rows of other heads and batches, and come from caches. Elements
behind the pairs are copied by further threads. Where a row has fewer pairs, or an array is not aligned, accesses are shorter, on that side
alone. In place a thread reads what it writes and nothing else.
"""
import functools
import math
from dataclasses import dataclass

from ...device import cuda, f32, f64, i32, jit
from ...device.convert import element
from ...device.groups import access_words, make_reader, make_writer
from ...device.index import Divisor, ceil_div, divide_remainder, divisor
from ...device.rows import make_row_offsets, row_arguments
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, tail
from ...engine.offsets import LIMIT
from ...host.launch import Argument, Launch
from ._problem import ROPES
from ._rotate import make_rotate

COST = constants("attention/rope_rows")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Element types, direction, which elements are pairs, pairs a thread, words of an access of each array, dimensions besides the row,
    whether there is something behind the pairs."""
    dtype: str
    angles: str
    forward: bool
    interleaved: bool
    count: int
    x_words: int
    y_words: int
    cos_words: int
    sin_words: int
    dims: int
    rest: bool
    in_place: bool

    @property
    def whole(self):
        """Elements of one access of x: of a half of each pair, or of the pairs."""
        return self.count * (2 if self.interleaved else 1)

    def __str__(self):
        return f"{self.count} pairs"


def supports(problem):
    """Rows that are contiguous in all arrays."""
    if any(s != 1 and n > 1 for s, n in zip(problem.steps, (problem.length, problem.pairs, problem.pairs, problem.length))):
        return f"rows have the steps {problem.steps}; expected 1 in all arrays"
    threads = problem.form.rows * _items(problem)
    return None if threads + THREADS < LIMIT else f"{threads} threads; expected fewer than 2**31 - {THREADS}"


def workspace(problem, device, config):
    """None."""
    return 0


def _count(problem):
    """Pairs a thread: a power of two that divides them, and what is behind them."""
    return math.gcd(math.gcd(problem.pairs, problem.length), 16 // problem.x.itemsize)


def _items(problem):
    """Threads of a row."""
    return (problem.length - problem.pairs) // _count(problem)


def _config(problem):
    p, count, outer = problem, _count(problem), problem.form.outer
    steps = [[d.strides[a] for d in outer] for a in range(4)]
    whole = count * (2 if p.interleaved else 1)
    halves = [] if p.interleaved else [p.pairs]
    x, y = (access_words(t, whole, [*steps[a], *halves]) for a, t in ((0, p.x), (3, p.y)))
    rest = [2 * p.pairs, count] if p.length > 2 * p.pairs else []
    if rest:  # copies of what is behind the pairs are of `count` elements
        x, y = (min(words, access_words(t, count, [*steps[a], *rest])) for words, a, t in ((x, 0, p.x), (y, 3, p.y)))
    return Config(p.dtype, p.cos.dtype, p.op == "rope_fwd", p.interleaved, count, x, y, access_words(p.cos, count, steps[1]),
                  access_words(p.sin, count, steps[2]), max(1, len(outer)), bool(rest), p.in_place)


def estimate(problem, device, config):
    """Bytes, or the instructions."""
    config, threads = _config(problem), problem.form.rows * _items(problem)
    accesses = sum(config.whole * problem.x.itemsize / (4 * words or problem.x.itemsize) for words in (config.x_words, config.y_words))
    a_thread = COST.thread + COST.dimension * config.dims + COST.element * config.count + COST.access * accesses
    work = overlap(memory=memory_seconds(problem.bytes, device), issue=issue_seconds(threads, a_thread, device))
    return LAUNCH + work.slowed(tail=tail(ceil_div(threads, THREADS), COST.blocks, device))


@functools.cache
def kernel(config):
    """`count` pairs a thread."""
    COUNT, INTERLEAVED, WHOLE = config.count, config.interleaved, config.whole
    HALVES, VALUES, REST = 1 if config.interleaved else 2, 2 * config.count, config.rest
    T = f64 if element(config.dtype).compute == "float64" else f32
    X, X_LENGTH, fetch, unpack = make_reader(config.dtype, WHOLE, config.x_words, not config.in_place)
    put = make_writer(config.dtype, WHOLE, config.y_words)
    COPY, COPY_LENGTH, fetch_rest, unpack_rest = make_reader(config.dtype, COUNT, config.x_words, not config.in_place)
    put_rest = make_writer(config.dtype, COUNT, config.y_words)
    C, C_LENGTH, fetch_cos, unpack_cos = make_reader(config.angles, COUNT, config.cos_words)
    S, S_LENGTH, fetch_sin, unpack_sin = make_reader(config.angles, COUNT, config.sin_words)
    rotate, row_offsets, LENGTH = make_rotate(config.dtype, config.forward), make_row_offsets(config.dims, 4), HALVES * X_LENGTH

    @jit(launch_bounds=(THREADS, 4))
    def rope_rows(x, cos, sin, y, threads, items, chunks, pairs, divisors, strides):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < threads:
            row, item = divide_remainder(index, items)
            x_at, cos_at, sin_at, y_at = row_offsets(row, divisors, strides)
            x, y = advance(x, x_at), advance(y, y_at)
            if not REST or item < chunks:
                raw, values = cuda.local.array(LENGTH, X), cuda.local.array(VALUES, T)
                raw_cos, raw_sin = cuda.local.array(C_LENGTH, C), cuda.local.array(S_LENGTH, S)
                c, s = cuda.local.array(COUNT, T), cuda.local.array(COUNT, T)
                first = item * WHOLE
                for half in range(HALVES):
                    fetch(raw, half * X_LENGTH, x, first + half * pairs, 1)
                fetch_cos(raw_cos, 0, advance(cos, cos_at), item * COUNT, 1)
                fetch_sin(raw_sin, 0, advance(sin, sin_at), item * COUNT, 1)
                for half in range(HALVES):
                    unpack(values, half * WHOLE, raw, half * X_LENGTH)
                unpack_cos(c, 0, raw_cos, 0)
                unpack_sin(s, 0, raw_sin, 0)
                for k in range(COUNT):
                    if INTERLEAVED:
                        values[2 * k], values[2 * k + 1] = rotate(values[2 * k], values[2 * k + 1], T(c[k]), T(s[k]))
                    else:
                        values[k], values[k + COUNT] = rotate(values[k], values[k + COUNT], T(c[k]), T(s[k]))
                for half in range(HALVES):
                    put(y, first + half * pairs, values, half * WHOLE)
            else:
                rest, some = cuda.local.array(COPY_LENGTH, COPY), cuda.local.array(COUNT, T)
                at = 2 * pairs + i32(item - chunks) * COUNT
                fetch_rest(rest, 0, x, at, i32(1))
                unpack_rest(some, 0, rest, 0)
                put_rest(y, at, some, 0)
    return rope_rows


def build(problem, device, config):
    """One launch."""
    p, config = problem, _config(problem)
    divisors, strides = row_arguments(p.form)
    threads = p.form.rows * _items(p)
    arguments = (Argument(element(p.dtype).pointer, p.names[0]), *(Argument(element(p.cos.dtype).pointer, name) for name in ("cos", "sin")),
                 Argument(element(p.dtype).pointer, p.names[1]), Argument("int32", threads), Argument(Divisor, divisor(_items(p))),
                 Argument("int32", p.pairs // config.count), Argument("int32", p.pairs),
                 Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides))
    return (Launch(kernel(config), (ceil_div(threads, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="rows", supports=supports, workspace=workspace, estimate=estimate, build=build) for op in ROPES)
