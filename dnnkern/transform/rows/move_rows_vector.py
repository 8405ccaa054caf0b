"""One thread per 16 bytes of a row, or what alignment leaves of them: neighbours have neighbouring units of a row."""
import functools
from dataclasses import dataclass

from ...device import cuda, jit, u32
from ...device.index import divide_remainder, divisor
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.ahead import make_begin
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, sector_waste, tail
from ...engine.vectors import make_unit_moves, unit_of, word_of
from ...host.launch import Argument, Launch

COST = constants("transform/cast_vector")

THREADS, LIMIT = 256, 2 ** 31 - 2 ** 20


@dataclass(frozen=True)
class Config:
    """Bytes of an element and of a unit, whether rows are numbered in x and in y."""
    itemsize: int
    unit: int
    source: bool
    target: bool

    def __str__(self):
        return f"{self.unit} bytes"


def supports(problem):
    """Rows that are contiguous in x and y."""
    for name, t in (("x", problem.x), ("y", problem.y)):
        if t.strides[1] != 1 and t.shape[1] > 1:
            return f"elements of a row are {t.strides[1]} apart in {name}; expected 1"
    units = problem.count * _units(problem)
    return None if units < LIMIT else f"{units} units; expected fewer than 2**31 - 2**20"


def workspace(problem, device, config):
    """None."""
    return 0


def _config(problem):
    p = problem
    unit = unit_of(min(p.x.alignment, p.y.alignment), p.x.shape[1], p.x.strides[0], p.y.strides[0], itemsize=p.x.itemsize)
    return Config(p.x.itemsize, unit, p.source is not None, p.target is not None)


def _units(problem):
    return problem.x.shape[1] * problem.x.itemsize // _config(problem).unit


def estimate(problem, device, config):
    """Sectors, and instructions of units."""
    unit, units = _config(problem).unit, problem.count * _units(problem)
    moved = problem.bytes * sector_waste(problem.x.shape[1] * problem.x.itemsize, unit)
    a_thread = COST.thread + 2 * COST.dimension + 2 * COST.access
    work = overlap(memory=memory_seconds(moved, device), issue=issue_seconds(units, a_thread, device))
    return LAUNCH + work.slowed(tail=tail(-(-units // THREADS), COST.blocks, device))


@functools.cache
def kernel(config, dependent):
    """y[target[i]] = x[source[i]], a unit a thread."""
    load, store, _, _, WORDS = make_unit_moves(config.unit, config.itemsize)
    SOURCE, TARGET, IN_UNIT = config.source, config.target, config.unit * word_of(config.itemsize)[2] // config.itemsize

    begin = make_begin(dependent)

    @jit(launch_bounds=THREADS)
    def move_rows_vector(x, source, target, y, count, units, x_rows, y_rows, x_row, y_row, source_step, target_step):
        begin()
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < count:
            words = cuda.local.array(WORDS, u32)
            row, unit = divide_remainder(index, units)
            a, b = row, row
            if SOURCE:
                a = source[row * source_step]
            if TARGET:
                b = target[row * target_step]
            if a >= 0 and a < x_rows and b >= 0 and b < y_rows:
                load(words, 0, advance(x, a * x_row + unit * IN_UNIT), 1)
                store(advance(y, b * y_row + unit * IN_UNIT), words, 0)
    return move_rows_vector


def build(problem, device, config):
    """One launch; an array of rows that is missing has x's in the arguments."""
    p, config, rows = problem, _config(problem), (problem.source, problem.target)
    _, word, scale = word_of(p.x.itemsize)
    count = p.count * _units(p)
    pointers = [Argument("int32*", name) if t is not None else Argument(word + "*", "x") for name, t in zip(("source", "target"), rows)]
    arguments = (Argument(word + "*", "x"), *pointers, Argument(word + "*", "y"), Argument("int32", count),
                 Argument("uint32x3", divisor(_units(p))), Argument("int32", p.x.shape[0]), Argument("int32", p.y.shape[0]),
                 *(Argument("int64", t.strides[0] * scale) for t in (p.x, p.y)),
                 *(Argument("int64", 0 if t is None else t.strides[0]) for t in rows))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), (-(-count // THREADS), 1, 1), (THREADS, 1, 1), arguments, dependent=dependent),)


ALGORITHM = Algorithm(op="move_rows", name="vector", supports=supports, workspace=workspace, estimate=estimate, build=build)
