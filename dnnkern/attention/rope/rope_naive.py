"""One thread a pair, or an element behind them: straight from the definition.

Any strides, any number of elements; each coordinate costs a division of 64-bit integers.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ...device import cuda, f32, f64, i64, jit
from ...device.convert import element
from ...device.index import ceil_div
from ...device.index import divided
from ...device.rows import make_row_offsets64, row_arguments64
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...host.launch import Argument, Launch
from ._problem import ROPES
from ._rotate import make_rotate

COST = constants("attention/rope_naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Element types, direction, which elements are pairs, number of dimensions besides the row."""
    dtype: str
    angles: str
    forward: bool
    interleaved: bool
    dims: int


class Steps(NamedTuple):
    """Elements from one number of a row to the next."""
    x: i64
    cos: i64
    sin: i64
    y: i64


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def items_of(problem):
    """Pairs of a row, and elements behind them."""
    return problem.length - problem.pairs


def estimate(problem, device, config):
    """A sector an access where elements of neighbouring threads are apart, and the divisions."""
    spread = sum(min(32, max(abs(s), 1) * t.itemsize) * t.size for s, t in zip(problem.steps[::3], (problem.x, problem.y)))
    issue = issue_seconds(problem.x.size, COST.element + COST.dimension * max(1, len(problem.form.outer)), device)
    return LAUNCH + overlap(issue=issue, memory=memory_seconds(spread, device))


@functools.cache
def kernel(config):
    """An item a thread."""
    load, store, load_angle = element(config.dtype).load, element(config.dtype).store, element(config.angles).load
    rotate, row_offsets = make_rotate(config.dtype, config.forward), make_row_offsets64(config.dims, 4)
    INTERLEAVED, T = config.interleaved, f64 if element(config.dtype).compute == "float64" else f32

    @jit(launch_bounds=(THREADS, 2))
    def rope_naive(x, cos, sin, y, threads, items, pairs, sizes, strides, steps):
        index = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if index < threads:
            row, item = divided(index, items)
            x_at, cos_at, sin_at, y_at = row_offsets(row, sizes, strides)
            if item < pairs:
                first, second = item, item + pairs
                if INTERLEAVED:
                    first, second = 2 * item, 2 * item + 1
                c = T(load_angle(cos, cos_at + item * steps.cos))
                s = T(load_angle(sin, sin_at + item * steps.sin))
                a, b = rotate(load(x, x_at + first * steps.x), load(x, x_at + second * steps.x), c, s)
                store(y, y_at + first * steps.y, a)
                store(y, y_at + second * steps.y, b)
            else:
                store(y, y_at + (item + pairs) * steps.y, load(x, x_at + (item + pairs) * steps.x))
    return rope_naive


def build(problem, device, config):
    """One launch."""
    p, form = problem, problem.form
    config = Config(p.dtype, p.cos.dtype, p.op == "rope_fwd", p.interleaved, max(1, len(form.outer)))
    sizes, strides = row_arguments64(form.outer, 4)
    threads = form.rows * items_of(p)
    arguments = (Argument(element(p.dtype).pointer, p.names[0]), *(Argument(element(p.cos.dtype).pointer, name) for name in ("cos", "sin")),
                 Argument(element(p.dtype).pointer, p.names[1]), Argument("int64", threads), Argument("int64", items_of(p)),
                 Argument("int64", p.pairs), Argument(f"int64x{len(sizes)}", sizes), Argument(f"int64x{len(strides)}", strides),
                 Argument(Steps, Steps(*p.steps)))
    return (Launch(kernel(config), (ceil_div(threads, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build) for op in ROPES)
