r"""A thread per 16 bytes of a row of the table, which gathers the gradients of the row's positions from a sorted list of all.

One launch sorts the positions by their row (`_sorted`). Then a thread knows where its row begins and ends in the list, has four gradients
in flight, and adds them up in order; every element of the table is written once, most of them 0. Neighbouring threads have neighbouring
columns, so they read whole rows of gradients.

A row of many positions, as of a frequent word, would keep its threads busy long after the others. The list is cut into slices of fixed
length, about the root of the number of positions. Whoever has a row of more positions than that finds their sums, slice by slice, which
another launch has left: of a slice only its first row and its last can be so long::

    list      a a b b b b|b b b b b b|b b c d d e|        slices of 6, b is long
    sums             tail|head       |head

Gradients are added in float32 (float64), in order in a slice, and slices in order.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, jit
from ..device.convert import element
from ..device.groups import access_words, make_reader, make_writer
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, occupied, overlap
from ..engine.offsets import LIMIT
from ..engine.values import COMPUTE
from ..host.launch import Argument, Launch
from ..host.tensor import Tensor
from . import _sorted
from .embedding_fwd_rows import refusal, unit_bytes

COST = constants("embedding/bwd_sorted")

THREADS, FLIGHT = 256, 4
LEAST_SLICE, MOST_SLICE = 32, 1024


@dataclass(frozen=True)
class Config:
    """dtype; columns per thread; words per access to gradients and table, and to sums; log2 of a slice's length; whether rows are divided
    by their frequency."""
    dtype: str
    columns: int
    words: int
    sum_words: int
    slice_bits: int
    by_frequency: bool

    def __str__(self):
        return f"{self.columns} columns, slices of {1 << self.slice_bits}"


def supports(problem):
    """Contiguous columns, positions at even steps."""
    if reason := refusal(problem):
        return reason
    p = problem
    chunks = p.columns // _config(p).columns
    most = max(p.table.shape[0] * chunks, 2 * _slices(p) * chunks, p.positions)
    if most >= LIMIT - 2 ** 20:
        return f"{most} threads or positions; expected fewer than 2**31 - 2**20"
    return None


def _slice_bits(problem):
    length = LEAST_SLICE
    while length < MOST_SLICE and length * length < problem.positions:
        length *= 2
    return length.bit_length() - 1


def _slices(problem):
    return ceil_div(problem.positions, 1 << _slice_bits(problem))


def _sums(problem):
    """The sums of the first and last rows of slices."""
    return Tensor.packed((2 * _slices(problem), problem.columns), problem.compute)


def _config(problem):
    p, unit = problem, unit_bytes(problem)
    columns, words = unit // p.table.itemsize, 0 if unit == p.table.itemsize != 4 else unit // 4
    return Config(p.dtype, columns, words, access_words(_sums(p), columns, [p.columns]), _slice_bits(p), p.scale_grad_by_freq)


def _layout(problem):
    """({name: offset}, bytes) of what lies in the workspace."""
    found, at = {}, 0
    for name, nbytes in (("starts", 4 * (problem.table.shape[0] + 1)), ("order", 4 * problem.positions), ("keys", 4 * problem.positions),
                         ("sums", _sums(problem).nbytes)):
        found[name], at = at, at + ceil_div(nbytes, 256) * 256
    return found, at


def workspace(problem, device, config):
    """The sorted list, and the sums of slices."""
    return _layout(problem)[1]


def estimate(problem, device, config):
    """Sorting; then bytes, and instructions of a thread and of what it gathers. A slice, or a row as long, takes its time alone."""
    p, config = problem, _config(problem)
    chunks = p.columns // config.columns
    units = p.table.shape[0] * chunks
    gathered = COST.position + COST.column * config.columns
    issue = issue_seconds(units, COST.thread, device) + issue_seconds(p.positions * chunks, gathered, device)
    work = overlap(memory=memory_seconds(p.bytes, device), issue=issue)
    threads = max(units, _slices(p) * chunks)
    alone = COST.wait * (1 << config.slice_bits) / FLIGHT
    launches = LAUNCH * (1 + (_slices(p) > 1))
    return _sorted.seconds(p, device) + launches + overlap(work.slowed(idle=1 / occupied(threads, COST.enough, device)), waits=alone)


@functools.cache
def _gather(config):
    """Device function ``gather(total, dy, order, begin, end, step)``: the gradients of these entries of the list are added, in order."""
    Total, V = COMPUTE[element(config.dtype).compute], config.columns
    Raw, LENGTH, fetch, unpack = make_reader(config.dtype, V, config.words)
    BUFFER = FLIGHT * LENGTH

    @device_function
    def gather(total, dy, order, begin, end, step):
        raw, values = cuda.local.array(BUFFER, Raw), cuda.local.array(V, Total)
        for first in range(begin, end, FLIGHT):
            for u in range(FLIGHT):
                t = first + u
                ok = t < end
                position = order[t if ok else begin]
                fetch(raw, u * LENGTH, dy, position * step, ok)
            for u in range(FLIGHT):
                if first + u < end:
                    unpack(values, 0, raw, u * LENGTH)
                    for v in range(V):
                        total[v] += values[v]
    return gather


@functools.cache
def slices_kernel(config, dependent):
    """sums[2 * slice], sums[2 * slice + 1] = those of the slice's first and last row, where they are long."""
    Total, V, BITS, compute = COMPUTE[element(config.dtype).compute], config.columns, config.slice_bits, element(config.dtype).compute
    gather, put, LENGTH = _gather(config), make_writer(compute, V, config.sum_words), 1 << config.slice_bits
    wait = make_follow(dependent)

    @jit(launch_bounds=THREADS)
    def embedding_slices(dy, starts, order, keys, sums, threads, chunks, rows, columns, dy_step):
        wait()
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
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
    gather, put, LENGTH = _gather(config), make_writer(config.dtype, V, config.words), 1 << config.slice_bits
    BY_FREQUENCY, BUFFER, wait = config.by_frequency, FLIGHT * SUM, make_follow(dependent)

    @jit(launch_bounds=THREADS)
    def embedding_bwd_sorted(dy, starts, order, sums, dweight, threads, chunks, columns, dy_step, row_step):
        wait()
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < threads:
            row, chunk = divide_remainder(i, chunks)
            total, values, raw = cuda.local.array(V, Total), cuda.local.array(V, Total), cuda.local.array(BUFFER, Raw)
            for v in range(V):
                total[v] = Total(0)
            begin, end = starts[row], starts[row + 1]
            if end - begin <= LENGTH:
                gather(total, advance(dy, chunk * V), order, begin, end, dy_step)
            else:
                here = advance(sums, chunk * V)
                first, slices = begin >> BITS, ((end - 1) >> BITS) + 1
                for s in range(first, slices, FLIGHT):
                    for u in range(FLIGHT):
                        # the row is the last of the slice that it begins in, unless it begins with it
                        number = 2 * (s + u) + (1 if s + u == first and (begin & (LENGTH - 1)) != 0 else 0)
                        fetch(raw, u * SUM, here, number * columns, s + u < slices)
                    for u in range(FLIGHT):
                        unpack(values, 0, raw, u * SUM)
                        if s + u < slices:
                            for v in range(V):
                                total[v] += values[v]
            if BY_FREQUENCY:
                if end > begin:
                    for v in range(V):
                        total[v] = total[v] / Total(end - begin)
            put(advance(dweight, row * row_step + chunk * V), 0, total, 0)
    return embedding_bwd_sorted


def build(problem, device, config):
    """Three launches: the list, sums of slices where there are several, rows."""
    p, config, layout = problem, _config(problem), _layout(problem)[0]
    pointer, chunks, slices = element(p.dtype).pointer, p.columns // config.columns, _slices(problem)
    starts, order, keys = (Argument("int32*", "workspace", layout[name]) for name in ("starts", "order", "keys"))
    dy, sums, parts = Argument(pointer, "dy"), Argument(f"{p.compute}*", "workspace", layout["sums"]), Argument("uint32x3", divisor(chunks))
    rows, columns, step = p.table.shape[0], Argument("int64", p.columns), Argument("int64", p.steps[1])
    dependent = device.capability >= (9, 0)

    def launch(kernel, threads, *arguments):
        return Launch(kernel(config, dependent), (ceil_div(threads, THREADS), 1, 1), (THREADS, 1, 1), arguments, dependent=dependent)
    launches = [_sorted.launch(p, device, starts, order, keys)]
    if slices > 1:
        launches.append(launch(slices_kernel, 2 * slices * chunks, dy, starts, order, keys, sums, Argument("int32", 2 * slices * chunks),
                               parts, Argument("int32", rows), columns, step))
    return *launches, launch(rows_kernel, rows * chunks, dy, starts, order, sums, Argument(pointer, "dweight"),
                             Argument("int32", rows * chunks), parts, columns, step, Argument("int64", p.table.strides[0]))


ALGORITHM = Algorithm(op="embedding_bwd", name="sorted", supports=supports, workspace=workspace, estimate=estimate, build=build)
