"""Rows of contiguous columns, copied in units of up to 16 bytes: neighbouring threads have neighbouring units of a row.

A thread has up to four units, a block's width apart: it loads their indices, then the units, then stores them, so that four loads are in
flight at either step. Rows are copied as words, whatever they hold; the words of an index that is no row become all ones, which is NaN
in every type. What is read of the table more than once comes from the L2.
"""
import functools
from dataclasses import dataclass, replace

from ..device import cuda, i32, i64, jit, u32
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, overlap
from ..engine.offsets import LIMIT
from ..engine.vectors import make_unit_moves, unit_of, word_of
from ..host.launch import Argument, Launch

COST = constants("embedding/fwd_rows")

THREADS = 256
BLOCKS = 6  # of a multiprocessor, as `launch_bounds` says


@dataclass(frozen=True)
class Config:
    """Bytes of a unit, bytes of an element, units of a thread."""
    unit: int
    itemsize: int
    flight: int = 4

    def __str__(self):
        return f"{self.flight} x {self.unit} bytes"


def refusal(problem):
    """Why rows cannot be taken in units."""
    p = problem
    for name, tensor in (("the table", p.table), ("the rows of the positions", p.each)):
        if p.columns > 1 and tensor.strides[-1] != 1:
            return f"columns of {name} are {tensor.strides[-1]} elements apart; expected contiguous columns"
    if p.steps is None:
        return f"indices of shape {p.indices.shape} and their rows differ in {len(p.outer)} dimensions; expected even steps"
    if not p.columns or not p.positions:
        return f"{p.positions} positions of {p.columns} columns; expected one at least"
    return None


def unit_bytes(problem):
    """Of the units in which all rows can be accessed."""
    p = problem
    steps = [s for n, s in ((p.table.shape[0], p.table.strides[0]), (p.positions, p.steps[1])) if n > 1]
    return unit_of(min(p.table.alignment, p.each.alignment), p.columns, *steps, itemsize=p.table.itemsize)


def _config(problem):
    return Config(unit_bytes(problem), problem.table.itemsize)


def _units(problem, config):
    return problem.positions * (problem.columns * config.itemsize // config.unit)


def supports(problem):
    """Contiguous columns, positions at even steps."""
    if reason := refusal(problem):
        return reason
    units = _units(problem, _config(problem))
    if max(units, problem.table.shape[0]) >= LIMIT - 2 ** 20:
        return f"{units} units of {problem.table.shape[0]} rows; expected fewer than 2**31 - 2**20"
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Four units a thread, or two, or one."""
    return [replace(_config(problem), flight=n) for n in (4, 2, 1)]


def estimate(problem, device, config):
    """Bytes; instructions of a unit; waves of blocks that wait for two loads, one after the other, which is what units below 16 bytes
    take."""
    units = _units(problem, config)
    waves = max(1.0, units / (config.flight * THREADS * BLOCKS * device.sms))
    work = overlap(memory=memory_seconds(problem.bytes, device), issue=issue_seconds(units, COST.unit, device),
                   waits=waves * (COST.turn + COST.turn_unit * config.flight))
    return LAUNCH + Cost(waves=COST.flight * config.flight) + work.slowed(slower=COST.single if config.flight == 1 else 1.0)


@functools.cache
def kernel(config, index_dtype, dependent):
    """y[p, u] = weight[indices[p], u] for the units u of a row."""
    load, store, _, _, WORDS = make_unit_moves(config.unit, config.itemsize)
    begin, FLIGHT = make_follow(dependent), config.flight
    ELEMENTS, BUFFER = config.unit // config.itemsize * word_of(config.itemsize)[2], FLIGHT * WORDS
    ONES, Index = 2 ** (8 * min(4, config.unit)) - 1, i64 if index_dtype == "int64" else i32

    @jit(launch_bounds=(THREADS, 6))
    def embedding_fwd_rows(weight, indices, y, units, per_row, rows, index_step, row_step, y_step):
        begin()
        words, found = cuda.local.array(BUFFER, u32), cuda.local.array(FLIGHT, Index)
        first = cuda.blockIdx.x * (FLIGHT * THREADS) + cuda.threadIdx.x
        for u in range(FLIGHT):
            i = first + u * THREADS
            position, _ = divide_remainder(i, per_row)
            found[u] = Index(-1)
            if i < units:
                found[u] = indices[position * index_step]
        for u in range(FLIGHT):
            _, unit = divide_remainder(first + u * THREADS, per_row)
            ok = 1 if found[u] >= 0 and found[u] < rows else 0
            row = found[u] if ok else Index(0)
            load(words, u * WORDS, advance(weight, row * row_step + unit * ELEMENTS), ok)
        for u in range(FLIGHT):
            i = first + u * THREADS
            position, unit = divide_remainder(i, per_row)
            if found[u] < 0 or found[u] >= rows:
                for k in range(WORDS):
                    words[u * WORDS + k] = ONES
            if i < units:
                store(advance(y, position * y_step + unit * ELEMENTS), words, u * WORDS)
    return embedding_fwd_rows


def build(problem, device, config):
    """One launch. Steps of rows are counted in words."""
    p, dependent = problem, device.capability >= (9, 0)
    _, name, per = word_of(config.itemsize)
    units, (index_step, y_step) = _units(p, config), p.steps
    arguments = (Argument(f"{name}*", "weight"), Argument(f"{p.indices.dtype}*", "indices"), Argument(f"{name}*", "y"),
                 Argument("int32", units), Argument("uint32x3", divisor(p.columns * config.itemsize // config.unit)),
                 Argument("int32", p.table.shape[0]), Argument("int64", index_step), Argument("int64", p.table.strides[0] * per),
                 Argument("int64", y_step * per))
    return (Launch(kernel(config, p.indices.dtype, dependent), (ceil_div(units, config.flight * THREADS), 1, 1), (THREADS, 1, 1), arguments,
                   dependent=dependent),)


ALGORITHM = Algorithm(op="embedding_fwd", name="rows", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs)
