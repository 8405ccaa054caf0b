"""Rows that stay rows: the fastest dimension of y is the fastest of x.

Then rows stay as they are, and a thread copies units of up to 16 bytes, several of them in flight, neighbouring threads
neighbouring units. Where a unit lies in x and y follows from its flat index by one multiplication and one shift a dimension
(`device.index`). It runs at the rate of a copy where rows have 32 bytes or more and everything is aligned; rows shorter than that leave
sectors half used in x, and `tiled` moves them as elements.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, i32, i64, jit, u32
from ...device.index import ceil_div
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.ahead import make_follow
from ...engine.constants import constants
from ...engine.cost import LAUNCH, SECTOR, flight_rate, issue_seconds, memory_seconds, overlap, sector_waste, tail
from ...engine.offsets import LIMIT, make_offsets, offset_arguments
from ...engine.vectors import make_unit_moves, unit_of, word_of
from ...host.canonical import Canonical, Dim
from ...host.launch import Argument, Launch
from .._problem import MOVES

COST = constants("transform/copy")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Bytes of an element and of a unit, units a thread, dimensions, 64-bit offsets."""
    itemsize: int
    unit: int
    units: int
    dims: int
    wide: bool

    def __str__(self):
        return f"{self.units} x {self.unit} bytes"


def _unit(problem):
    form = problem.canonical
    *rest, last = form.dims
    return unit_of(min(problem.alignments(form)), last.size, *(v for d in rest for v in (d.x, d.y)), itemsize=form.itemsize)


def _units(problem):
    """The form with units as elements, strides still counted in elements."""
    form, unit = problem.canonical, _unit(problem)
    *rest, last = form.dims
    per = unit // form.itemsize
    return Canonical((*rest, Dim(last.size // per, per, per)), form.itemsize, form.x_first, form.y_first)


def supports(problem):
    """Rows that are contiguous in both arrays."""
    last = problem.canonical.dims[-1]
    if (last.x, last.y) != (1, 1):
        return f"the dimension that is contiguous in y has strides {last.y} in y and {last.x} in x; expected 1 in both"
    if _units(problem).size >= LIMIT - 2 ** 20:
        return f"{_units(problem).size} units of {_unit(problem)} bytes; expected fewer than 2**31 - 2**20"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Several units a thread, and one for problems with few."""
    form, unit = problem.canonical, _unit(problem)
    return [Config(form.itemsize, unit, n, len(form.dims), form.is_wide) for n in ({16: 2, 8: 4, 4: 4}.get(unit, 8), 1)]


def estimate(problem, device, config):
    """Sectors, and what short units cost: to find, and where rows of y leave sectors incomplete."""
    count = _units(problem).size
    run = problem.canonical.dims[-1].size * config.itemsize
    moved = memory_seconds(problem.read_bytes * sector_waste(run, config.unit) + problem.y.nbytes, device)
    *outer, row = problem.canonical.dims
    if config.unit < 8 and outer and outer[-1].y != row.size and any(d.y * config.itemsize % SECTOR for d in outer):
        moved *= COST.ragged  # neighbours in memory are written by other launches, or not at all
    elif config.unit < 4:
        moved *= COST.short
    work = overlap(memory=moved / flight_rate(config.unit * config.units, COST.in_flight),
                   issue=issue_seconds(count, COST.thread + COST.dimension * config.dims, device))
    return LAUNCH + work.slowed(tail=tail(ceil_div(count, THREADS * config.units), COST.blocks, device))


@functools.cache
def kernel(config, dependent):
    """y[...] = x[...], `units` units a thread, all of them loaded before the first is stored."""
    offsets, begin = make_offsets(config.dims, config.wide), make_follow(dependent)
    load, store, _, _, WORDS = make_unit_moves(config.unit, config.itemsize)
    UNITS, Int = config.units, i64 if config.wide else i32
    SIZE, SPAN = WORDS * UNITS, THREADS * config.units

    @jit(launch_bounds=THREADS)
    def transpose_copy(x, y, count, x_first, y_first, divisors, strides):
        begin()
        words = cuda.local.array(SIZE, u32)
        targets = cuda.local.array(UNITS, Int)
        x, y = advance(x, x_first), advance(y, y_first)
        first = cuda.blockIdx.x * SPAN + cuda.threadIdx.x
        for n in range(UNITS):
            index = first + n * THREADS
            x_at, y_at = offsets(index, divisors, strides)
            targets[n] = y_at
            load(words, n * WORDS, advance(x, x_at), i32(index < count))
        for n in range(UNITS):
            if first + n * THREADS < count:
                store(advance(y, targets[n]), words, n * WORDS)
    return transpose_copy


def build(problem, device, config, source=("x", 0), target=("y", 0)):
    """One launch. `source` and `target` are the names of the two pointers and byte offsets to them."""
    form = _units(problem)
    _, name, scale = word_of(form.itemsize)
    arguments = (Argument(name + "*", source[0], offset=source[1]), Argument(name + "*", target[0], offset=target[1]),
                 Argument("int32", form.size), Argument("int64", form.x_first * scale), Argument("int64", form.y_first * scale),
                 *offset_arguments(form.dims, config.wide, scale))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), (ceil_div(form.size, THREADS * config.units), 1, 1), (THREADS, 1, 1), arguments,
                   dependent=dependent),)


ALGORITHMS = tuple(Algorithm(op=op, name="copy", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in MOVES)
