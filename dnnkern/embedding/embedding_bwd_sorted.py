r"""A thread per 16 bytes of a row of the table, which gathers the gradients of the row's positions from a sorted list of all.

Two launches sort the positions by their row (`_sorted`). Then a thread knows where its rows begin and end in the list; it writes zeros
where there is nothing to add, as in most of a large table, and for the others it has eight gradients in flight, and adds them up in order.
Every element of the table is written once. Neighbouring threads have neighbouring columns, so they read whole rows of gradients.

A row of many positions, as of a frequent word, would keep its threads busy long after the others. The list is cut into slices of fixed
length, about half the root of the number of positions. Whoever has a row of more positions than that finds their sums, slice by slice,
which another launch has left: of a slice only its first row and its last can be so long::

    list      a a b b b b|b b b b b b|b b c d d e|        slices of 6, b is long
    sums             tail|head       |head

Gradients are added in float32 (float64), in order in a slice, and slices in order.
"""
import functools
from dataclasses import dataclass, replace

from ..device import cuda, device_function, i32, jit
from ..device.convert import element
from ..device.groups import access_words, make_reader, make_writer
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance, pin
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, occupied, overlap
from ..engine.offsets import LIMIT
from ..engine.values import COMPUTE
from ..host.launch import Argument, Launch
from ..host.tensor import Tensor
from . import _sorted
from ._block_sort import TILE
from .embedding_fwd_rows import refusal, unit_bytes

COST = constants("embedding/bwd_sorted")

THREADS, FLIGHT, SUMS_FLIGHT = 256, 8, 4
RESIDENT = 4  # blocks of a multiprocessor
FEW = 64  # threads of a block where there are few
LEAST_SLICE, MOST_SLICE = 32, 512


@dataclass(frozen=True)
class Config:
    """dtype; columns per thread; words per access to gradients and table, and to sums; log2 of a slice's length; whether rows are divided
    by their frequency; pieces of the table a thread has."""
    dtype: str
    columns: int
    words: int
    sum_words: int
    slice_bits: int
    by_frequency: bool
    pieces: int = 1

    def __str__(self):
        return f"{self.pieces} x {self.columns} columns, slices of {1 << self.slice_bits}"


def supports(problem):
    """Contiguous columns, positions at even steps."""
    if reason := refusal(problem):
        return reason
    p = problem
    chunks = p.columns // make_config(p).columns
    bounds = ceil_div(p.positions, TILE) * min(p.table.shape[0] + 2, max(2 ** 13, p.table.shape[0] >> 11))
    most = max(p.table.shape[0] * chunks, 2 * _slices(p) * chunks, p.positions, bounds)
    if most >= LIMIT - 2 ** 20:
        return f"{most} threads or positions; expected fewer than 2**31 - 2**20"
    return None


def _slice_bits(problem):
    length = LEAST_SLICE
    while length < MOST_SLICE and 4 * length * length < problem.positions:
        length *= 2
    return length.bit_length() - 1


def _slices(problem):
    return ceil_div(problem.positions, 1 << _slice_bits(problem))


def _sums(problem):
    """The sums of the first and last rows of slices."""
    return Tensor.packed((2 * _slices(problem), problem.columns), problem.compute)


def make_config(problem):
    """What follows from the problem."""
    p, unit = problem, unit_bytes(problem)
    columns, words = unit // p.table.itemsize, 0 if unit == p.table.itemsize != 4 else unit // 4
    return Config(p.dtype, columns, words, access_words(_sums(p), columns, [p.columns]), _slice_bits(p), p.scale_grad_by_freq)


def configs(problem, device):
    """Four pieces a thread, or two, or one."""
    return [replace(make_config(problem), pieces=n) for n in (4, 2, 1)]


def _layout(problem, device):
    """({name: offset}, bytes) of what lies in the workspace."""
    found, at = {}, 0
    for name, nbytes in (*_sorted.layout(problem, device), ("sums", _sums(problem).nbytes)):
        found[name], at = at, at + ceil_div(nbytes, 256) * 256
    return found, at


def workspace(problem, device, config):
    """The sorted list, and the sums of slices."""
    return _layout(problem, device)[1]


def estimate(problem, device, config):
    """Sorting; then bytes, and instructions of a thread and of what it gathers. A slice, or a row as long, takes its time alone."""
    p, chunks = problem, problem.columns // config.columns
    units = p.table.shape[0] * chunks
    gathered = COST.position + COST.column * config.columns
    issue = issue_seconds(units, COST.thread, device) + issue_seconds(p.positions * chunks, gathered, device)
    table = ceil_div(units, config.pieces)
    turns = COST.turn * table / (THREADS * RESIDENT * device.sms)
    work = overlap(memory=memory_seconds(p.bytes, device), issue=issue, waits=turns)
    threads = max(table, _slices(p) * chunks)
    alone = COST.wait * (1 << config.slice_bits) / FLIGHT
    launches = LAUNCH * (1 + (_slices(p) > 1))
    return _sorted.seconds(p, device) + launches + overlap(work.slowed(idle=1 / occupied(threads, COST.enough, device)), waits=alone)


@functools.cache
def make_gather(config):
    """Device function ``gather(total, dy, order, begin, end, step)``: the gradients of these entries of the list are added, in order."""
    Total, V = COMPUTE[element(config.dtype).compute], config.columns
    Raw, LENGTH, fetch, unpack = make_reader(config.dtype, V, config.words)
    BUFFER = FLIGHT * LENGTH
    hold_positions, hold = pin(FLIGHT), pin(BUFFER)

    @device_function
    def gather(total, dy, order, begin, end, step):
        raw, values, positions = cuda.local.array(BUFFER, Raw), cuda.local.array(V, Total), cuda.local.array(FLIGHT, i32)
        for first in range(begin, end, FLIGHT):
            for u in range(FLIGHT):
                positions[u] = order[min(first + u, end - 1)]
            hold_positions(positions)
            for u in range(FLIGHT):
                fetch(raw, u * LENGTH, dy, positions[u] * step, first + u < end)
            hold(raw)
            # past the end zeros are added: to a sum that began with 0, without effect
            for u in range(FLIGHT):
                unpack(values, 0, raw, u * LENGTH)
                for v in range(V):
                    total[v] += values[v]
    return gather


@functools.cache
def slices_kernel(config, dependent):
    """sums[2 * slice], sums[2 * slice + 1] = those of the slice's first and last row, where they are long."""
    Total, V, BITS, compute = COMPUTE[element(config.dtype).compute], config.columns, config.slice_bits, element(config.dtype).compute
    gather, put, LENGTH = make_gather(config), make_writer(compute, V, config.sum_words), 1 << config.slice_bits
    wait = make_follow(dependent)

    @jit(launch_bounds=(FEW, 16))
    def embedding_slices(dy, starts, order, keys, sums, threads, chunks, rows, columns, dy_step):
        wait()
        i = cuda.blockIdx.x * FEW + cuda.threadIdx.x
        if i < threads:
            number, chunk = divide_remainder(i, chunks)
            which, begin = number & 1, (number >> 1) << BITS
            end = min(begin + LENGTH, starts[rows])
            if begin < end:
                first, last = keys[begin], keys[end - 1]
                row = last if which else first
                row_begin, row_end = starts[row], starts[row + 1]
                if row_end - row_begin > LENGTH and not (which and first == last):
                    total = cuda.local.array(V, Total)
                    for v in range(V):
                        total[v] = Total(0)
                    gather(total, advance(dy, chunk * V), order, max(begin, row_begin), min(end, row_end), dy_step)
                    put(advance(sums, number * columns + chunk * V), 0, total, 0)
    return embedding_slices


@functools.cache
def rows_kernel(config, dependent):
    """dweight[v] = the sum of its positions' gradients, or of its slices' sums."""
    Total, V, BITS, compute = COMPUTE[element(config.dtype).compute], config.columns, config.slice_bits, element(config.dtype).compute
    Raw, SUM, fetch, unpack = make_reader(compute, V, config.sum_words)
    gather, put, LENGTH = make_gather(config), make_writer(config.dtype, V, config.words), 1 << config.slice_bits
    BY_FREQUENCY, BUFFER, wait, PIECES = config.by_frequency, SUMS_FLIGHT * SUM, make_follow(dependent), config.pieces
    hold = pin(BUFFER)

    @jit(launch_bounds=(THREADS, RESIDENT))
    def embedding_bwd_sorted(dy, starts, order, sums, dweight, threads, chunks, columns, dy_step, row_step):
        wait()
        begins, ends = cuda.local.array(PIECES, i32), cuda.local.array(PIECES, i32)
        total, values, raw = cuda.local.array(V, Total), cuda.local.array(V, Total), cuda.local.array(BUFFER, Raw)
        first_piece, some = cuda.blockIdx.x * (PIECES * THREADS) + cuda.threadIdx.x, 0
        for u in range(PIECES):
            i = first_piece + u * THREADS
            row, _ = divide_remainder(i, chunks)
            begins[u], ends[u] = 0, 0
            if i < threads:
                begins[u], ends[u] = starts[row], starts[row + 1]
        for v in range(V):
            total[v] = Total(0)
        for u in range(PIECES):
            i = first_piece + u * THREADS
            row, chunk = divide_remainder(i, chunks)
            if ends[u] > begins[u]:
                some = some | 1 << u
            elif i < threads:
                put(advance(dweight, row * row_step + chunk * V), 0, total, 0)
        i = first_piece
        while some != 0:
            if some & 1:
                row, chunk = divide_remainder(i, chunks)
                begin, end = starts[row], starts[row + 1]
                for v in range(V):
                    total[v] = Total(0)
                if end - begin <= LENGTH:
                    gather(total, advance(dy, chunk * V), order, begin, end, dy_step)
                else:
                    here = advance(sums, chunk * V)
                    first, slices = begin >> BITS, ((end - 1) >> BITS) + 1
                    for s in range(first, slices, SUMS_FLIGHT):
                        for u in range(SUMS_FLIGHT):
                            # the row is the last of the slice that it begins in, unless it begins with it
                            number = 2 * (s + u) + (1 if s + u == first and (begin & (LENGTH - 1)) != 0 else 0)
                            fetch(raw, u * SUM, here, number * columns, s + u < slices)
                        hold(raw)
                        for u in range(SUMS_FLIGHT):
                            unpack(values, 0, raw, u * SUM)
                            for v in range(V):
                                total[v] += values[v]
                if BY_FREQUENCY:
                    for v in range(V):
                        total[v] = total[v] / Total(end - begin)
                put(advance(dweight, row * row_step + chunk * V), 0, total, 0)
            i = i + THREADS
            some = some >> 1
    return embedding_bwd_sorted


def build(problem, device, config):
    """Four launches: two of the list, sums of slices where there are several, rows."""
    p, offsets = problem, _layout(problem, device)[0]
    pointer, chunks, slices = element(p.dtype).pointer, p.columns // config.columns, _slices(problem)
    at = {name: Argument("int32*", "workspace", offset) for name, offset in offsets.items()}
    starts, order, keys = (at[name] for name in ("starts", "order", "keys"))
    dy, sums = Argument(pointer, "dy"), Argument(f"{p.compute}*", "workspace", offsets["sums"])
    parts = Argument("uint32x3", divisor(chunks))
    rows, columns, step = p.table.shape[0], Argument("int64", p.columns), Argument("int64", p.steps[1])
    dependent = device.capability >= (9, 0)

    def launch(kernel, config, block, threads, *arguments):
        return Launch(kernel(config, dependent), (ceil_div(threads, block), 1, 1), (block, 1, 1), arguments, dependent=dependent)
    launches = [*_sorted.launches(p, device, at)]
    if slices > 1:
        threads = 2 * slices * chunks
        launches.append(launch(slices_kernel, replace(config, pieces=1), FEW, threads, dy, starts, order, keys, sums,
                               Argument("int32", threads), parts, Argument("int32", rows), columns, step))
    return *launches, launch(rows_kernel, config, THREADS, ceil_div(rows * chunks, config.pieces), dy, starts, order, sums,
                             Argument(pointer, "dweight"), Argument("int32", rows * chunks), parts, columns, step,
                             Argument("int64", p.table.strides[0]))


ALGORITHM = Algorithm(op="embedding_bwd", name="sorted", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs)
