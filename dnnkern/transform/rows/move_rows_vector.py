"""Units of 16 bytes of a row, or what alignment leaves of them: neighbours have neighbouring units of a row. A thread has a few
of them, a block's width apart: it loads the numbers of their rows together, then the units.
"""
import functools
from dataclasses import dataclass, replace

from ...device import cuda, i32, jit, u32
from ...device.index import divide_remainder, divisor
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.ahead import make_follow
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, overlap, sector_waste, tail
from ...engine.vectors import make_unit_moves, unit_of, word_of
from ...host.launch import Argument, Launch

COST, FLIGHTS = constants("transform/cast_vector"), constants("embedding/fwd_rows")

THREADS, BLOCKS, LIMIT = 256, 8, 2 ** 31 - 2 ** 20  # of a block; of a multiprocessor; units


@dataclass(frozen=True)
class Config:
    """Bytes of an element and of a unit, whether rows are numbered in x and in y, units of a thread."""
    itemsize: int
    unit: int
    source: bool
    target: bool
    flight: int = 4

    def __str__(self):
        return f"{self.flight} x {self.unit} bytes"


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


def configs(problem, device):
    """Four units a thread, or two, or one."""
    return [replace(_config(problem), flight=n) for n in (4, 2, 1)]


def estimate(problem, device, config):
    """Sectors, instructions of units, and waves of blocks that wait for the numbers of their rows and for units of them."""
    unit, units = config.unit, problem.count * _units(problem)
    moved = problem.bytes * sector_waste(problem.x.shape[1] * problem.x.itemsize, unit)
    a_thread = COST.thread + 2 * COST.dimension + 2 * COST.access
    waves = max(1.0, units / (config.flight * THREADS * BLOCKS * device.sms))
    work = overlap(memory=memory_seconds(moved, device), issue=issue_seconds(units, a_thread, device),
                   waits=waves * (FLIGHTS.turn + FLIGHTS.turn_unit * config.flight))
    work = work.slowed(tail=tail(-(-units // THREADS), COST.blocks, device), slower=FLIGHTS.single if config.flight == 1 else 1.0)
    return LAUNCH + Cost(waves=FLIGHTS.flight * config.flight) + work


@functools.cache
def kernel(config, dependent):
    """y[target[i]] = x[source[i]], some units a thread, a block's width apart."""
    load, store, _, _, WORDS = make_unit_moves(config.unit, config.itemsize)
    SOURCE, TARGET, IN_UNIT = config.source, config.target, config.unit * word_of(config.itemsize)[2] // config.itemsize
    follow, FLIGHT = make_follow(dependent), config.flight
    BUFFER = FLIGHT * WORDS

    @jit(launch_bounds=THREADS)
    def move_rows_vector(x, source, target, y, count, units, x_rows, y_rows, x_row, y_row, source_step, target_step):
        follow()
        words, from_rows, to_rows = cuda.local.array(BUFFER, u32), cuda.local.array(FLIGHT, i32), cuda.local.array(FLIGHT, i32)
        first = cuda.blockIdx.x * (FLIGHT * THREADS) + cuda.threadIdx.x
        for u in range(FLIGHT):
            i = first + u * THREADS
            row, _ = divide_remainder(i, units)
            from_rows[u], to_rows[u] = -1, row
            if i < count:
                from_rows[u] = row
                if SOURCE:
                    from_rows[u] = source[row * source_step]
                if TARGET:
                    to_rows[u] = target[row * target_step]
        for u in range(FLIGHT):
            _, unit = divide_remainder(first + u * THREADS, units)
            a, b = from_rows[u], to_rows[u]
            ok = 1 if a >= 0 and a < x_rows and b >= 0 and b < y_rows else 0
            load(words, u * WORDS, advance(x, (a if ok else 0) * x_row + unit * IN_UNIT), ok)
        for u in range(FLIGHT):
            _, unit = divide_remainder(first + u * THREADS, units)
            a, b = from_rows[u], to_rows[u]
            if a >= 0 and a < x_rows and b >= 0 and b < y_rows:
                store(advance(y, b * y_row + unit * IN_UNIT), words, u * WORDS)
    return move_rows_vector


def build(problem, device, config):
    """One launch; an array of rows that is missing has x's in the arguments."""
    p, rows = problem, (problem.source, problem.target)
    _, word, scale = word_of(p.x.itemsize)
    count = p.count * _units(p)
    pointers = [Argument("int32*", name) if t is not None else Argument(word + "*", "x") for name, t in zip(("source", "target"), rows)]
    arguments = (Argument(word + "*", "x"), *pointers, Argument(word + "*", "y"), Argument("int32", count),
                 Argument("uint32x3", divisor(_units(p))), Argument("int32", p.x.shape[0]), Argument("int32", p.y.shape[0]),
                 *(Argument("int64", t.strides[0] * scale) for t in (p.x, p.y)),
                 *(Argument("int64", 0 if t is None else t.strides[0]) for t in rows))
    dependent, blocks = device.capability >= (9, 0), -(-count // (config.flight * THREADS))
    return (Launch(kernel(config, dependent), (blocks, 1, 1), (THREADS, 1, 1), arguments, dependent=dependent),)


ALGORITHM = Algorithm(op="move_rows", name="vector", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs)
