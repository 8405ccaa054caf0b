"""Arrays that have the same layout: several loads of 16 bytes per thread in flight, of each array.

Where all arrays are one run of memory in the same order an element's place needs no arithmetic. Elementwise results take a grid that covers
everything once; where losses are added, blocks walk the arrays with the grid's stride and leave one number each.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, f32, f64, i64, jit
from ..device.block import add, make_block_reduce
from ..device.convert import element
from ..device.groups import make_flight, make_reader, make_writer
from ..device.index import ceil_div
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, narrow_rate, occupied, overlap, tail
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._totals import fold_bytes, fold_launches

COST = constants("loss/mse_vector")

THREADS, SCRATCH, LIMIT = 256, 16, 2 ** 31 - 1
RESIDENT = 6  # blocks of a multiprocessor that add


@dataclass(frozen=True)
class Config:
    """What the kernel is compiled for: `words` 32-bit words a load, 0 for single elements, and `count` loads of each array."""
    words: int
    count: int

    def __str__(self):
        return f"{self.count} x {f'{4 * self.words} bytes' if self.words else 'single elements'}"


def supports(problem):
    """One run of memory each."""
    dims = problem.dims
    if len(dims) > 1 or dims and set(dims[0].strides) != {1}:
        return f"the arrays differ in {len(dims)} dimensions or have steps; expected runs of memory in the same order"
    if not problem.x.size or problem.x.size // THREADS >= LIMIT:
        return f"{problem.x.size} elements; expected 1 to 2**39"
    return None


def _added(problem):
    return problem.is_forward and not problem.each


def configs(problem, device):
    """Four loads at once, or two."""
    words = 4 if all(t.alignment >= 16 for _, t in problem.walked) else 0
    return [Config(words, count) for count in (4, 2)]


def _vector(problem, config):
    return max(1, 4 * config.words // problem.x.itemsize)


def _blocks(problem, device, config):
    """Blocks of the launch over the elements."""
    blocks = ceil_div(problem.x.size, THREADS * config.count * _vector(problem, config))
    return min(blocks, RESIDENT * device.sms) if _added(problem) else blocks


def workspace(problem, device, config):
    """A number for each block whose losses are added, and what adding those takes."""
    blocks = _blocks(problem, device, config)
    return (blocks + fold_bytes(blocks)) * ITEMSIZE[problem.compute] if _added(problem) else 0


def estimate(problem, device, config):
    """Bytes, at a lower rate for single elements and few loads."""
    blocks = _blocks(problem, device, config)
    rate = narrow_rate(16 if config.words else 0, problem.x.itemsize) * (1.0 if config.count == 4 or not _added(problem) else COST.few)
    work = overlap(memory=memory_seconds(problem.bytes, device) / rate, issue=issue_seconds(problem.x.size, COST.element, device))
    late = Cost(waves=0.0 if _added(problem) else COST.access * config.count)  # a thread's accesses come one after another
    work = work.slowed(idle=1 / occupied(blocks * THREADS, COST.enough, device),
                       tail=1 if _added(problem) else tail(blocks, COST.blocks, device))
    return LAUNCH * (1 + _added(problem)) + late + work


@functools.cache
def kernel(dtype, loss_dtype, compute, each, forward, config, dependent):
    """Losses, or gradients, of elements that are neighbours."""
    Real, load, store = f64 if compute == "float64" else f32, element(dtype).load, element(dtype).store
    load_loss, store_loss = element(loss_dtype).load, element(loss_dtype).store
    COUNT, WORDS = config.count, config.words
    flight, added = make_flight(dtype, WORDS, COUNT), forward and not each
    SCALAR, LENGTH, VECTOR, fetch, values = flight.scalar, flight.length, flight.vector, flight.fetch, flight.values
    NUMBER, NUMBERS, fetch_loss, unpack_loss = make_reader(loss_dtype, VECTOR, WORDS)
    LOSSES = COUNT * NUMBERS if each and not forward else 1
    put_loss, put = make_writer(loss_dtype, VECTOR, WORDS), make_writer(dtype, VECTOR, WORDS)
    reduce, begin = make_block_reduce(add, THREADS), make_follow(dependent)
    READS, TURN = each and not forward, THREADS * COUNT
    BLOCKS = 2 if READS and COUNT * VECTOR > 16 else 4  # a third array in registers, of twice the words beside 16-bit ones

    @jit(launch_bounds=(THREADS, BLOCKS))
    def mse_loss_vector(x, target, loss, dx, size, scale):
        begin()
        a, b = cuda.local.array(LENGTH, SCALAR), cuda.local.array(LENGTH, SCALAR)
        losses, some, others = cuda.local.array(LOSSES, NUMBER), cuda.local.array(VECTOR, Real), cuda.local.array(VECTOR, Real)
        slopes = cuda.local.array(VECTOR, Real)
        thread, units, total, g = cuda.threadIdx.x, size // VECTOR, Real(0), Real(scale)
        if not forward:
            if not each:
                g = load_loss(loss, 0) * scale
        first = i64(cuda.blockIdx.x) * TURN + thread
        while first < units:
            for u in range(COUNT):
                i = first + u * THREADS
                ok = i < units
                fetch(a, u, x, i * VECTOR, ok)
                fetch(b, u, target, i * VECTOR, ok)
                if READS:
                    fetch_loss(losses, u * NUMBERS, loss, i * VECTOR, ok)
            for u in range(COUNT):
                i = first + u * THREADS
                if i < units:
                    values(some, a, u)
                    values(others, b, u)
                    if READS:
                        unpack_loss(slopes, 0, losses, u * NUMBERS)
                    for v in range(VECTOR):
                        d = some[v] - others[v]
                        if forward:
                            some[v] = d * d
                            if added:
                                total += some[v]
                        elif each:
                            some[v] = slopes[v] * g * d
                        else:
                            some[v] = g * d
                    if not forward:
                        put(advance(dx, i * VECTOR), 0, some, 0)
                    elif each:
                        put_loss(advance(loss, i * VECTOR), 0, some, 0)
            first = first + i64(cuda.gridDim.x) * TURN
        if VECTOR > 1:  # elements after the last unit
            i = units * VECTOR + thread
            if cuda.blockIdx.x == 0 and i < size:
                d = load(x, i) - load(target, i)
                if not forward:
                    store(dx, i, Real(load_loss(loss, i) * g if each else g) * d)
                elif each:
                    store_loss(loss, i, d * d)
                else:
                    total += d * d
        if added:
            scratch = cuda.shared.array(SCRATCH, Real)
            total = reduce(total, scratch, 0)
            if thread == 0:
                store_loss(loss, cuda.blockIdx.x, total)
    return mse_loss_vector


def build(problem, device, config):
    """One launch, and where losses are added those that add up what blocks leave."""
    p, blocks, added, numbers = problem, _blocks(problem, device, config), _added(problem), element(problem.loss_dtype).pointer
    pointer = element(p.dtype).pointer
    loss = Argument(numbers, "workspace") if added else Argument(numbers, "loss" if p.is_forward else "dloss")
    arguments = (Argument(pointer, "x"), Argument(pointer, "target"), loss, Argument(pointer, "x" if p.is_forward else "dx"),
                 Argument("int64", p.x.size), Argument(p.compute, p.scale))
    dependent = device.capability >= (9, 0)
    compiled = kernel(p.dtype, p.loss_dtype, p.compute, p.each, p.is_forward, config, dependent)
    rows = Launch(compiled, (blocks, 1, 1), (THREADS, 1, 1), arguments, dependent=dependent)
    if not added:
        return (rows,)
    return rows, *fold_launches(device, p.compute, 0, None, ("loss", 0), blocks, p.scale, blocks * ITEMSIZE[p.compute])


ALGORITHMS = tuple(Algorithm(op=op, name="vector", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs)
                   for op in ("mse_loss_fwd", "mse_loss_bwd"))
