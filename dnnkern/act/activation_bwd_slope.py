"""prelu with one slope, and its gradient: blocks add up their parts of the slope's gradient as they write dx.

``dx = dy where x > 0, else slope dy``, ``dslope = sum of dy x where x <= 0``. The other algorithms write each element's part to memory and
add them up afterwards, 8 bytes beside the 6 of 16-bit elements. Here a thread adds up what it has in registers, a block reduces its
threads' sums by shuffles, and an algorithm of `reduce` adds up one number for each block, always in the same order. Arrays are one run of
memory each, 16 bytes an access; the last elements go one by one.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, f32, f64, i64, jit
from ..device.block import add, make_block_reduce
from ..device.convert import element
from ..device.groups import make_reader, make_writer, scalar_of
from ..device.index import ceil_div
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, memory_seconds, tail
from ..engine.embed import Place, choices, cost, embedded, scratch_bytes
from ..engine.moves import cast_launches, cast_seconds
from ..host.launch import Argument, Launch
from ..host.tensor import Tensor
from ..reduce import ReduceProblem

COST = constants("act/slope")

THREADS, LOADS = 256, 2  # of a block; of 16 bytes of both inputs in flight


@dataclass(frozen=True)
class Config:
    """Types of the elements and of the slope."""
    dtype: str
    slope: str

    @property
    def vector(self):
        """Elements of an access."""
        return 16 // element(self.dtype).storage.itemsize

    @property
    def tile(self):
        """Elements of a block."""
        return THREADS * LOADS * self.vector


def _config(problem):
    return Config(problem.x.dtype, problem.slope.dtype)


def supports(problem):
    """The gradient of one slope, of aligned runs of memory."""
    if problem.dslope is None or problem.slope.size != 1:
        return "no gradient of a single slope is asked for"
    if problem.in_place:
        return f"dx is {problem.in_place[0]}; expected an array of its own"
    form = problem.form
    if not problem.x.size or len(form.dims) > 1:
        return f"the arrays differ in {len(form.dims)} dimensions of {problem.x.size} elements; expected runs of memory in the same order"
    for a, step in zip(form.arrays, form.dims[0].strides if form.dims else (1,) * len(form.arrays)):
        if a.name in ("dy", "x", "dx") and (a.first or a.tensor.alignment < 16 or step != 1 and problem.x.size > 1):
            return f"{a.name} begins {a.first} elements before its data, {a.tensor.alignment} bytes aligned; expected 0 and 16"
    return None


def _plan(problem):
    """(blocks, the sum of their parts as a problem of `reduce`, the slope's gradient, bytes of the parts)."""
    blocks, t = ceil_div(problem.x.size, _config(problem).tile), problem.dslope
    sums = Tensor((), (), t.dtype, t.alignment)
    y = sums if t.dtype == problem.compute else Tensor.packed((), problem.compute)
    return blocks, ReduceProblem(Tensor.packed((blocks,), problem.compute), y, "add", (0,)), sums, _lines(blocks * 8)


def _lines(nbytes):
    return -(-nbytes // 256) * 256


def workspace(problem, device, config):
    """The blocks' parts, their sum where it is rounded once more, and what the reduction needs."""
    _, total, _, nbytes = _plan(problem)
    return nbytes + 256 + scratch_bytes(choices(total, device)[0], total, device)


def estimate(problem, device, config):
    """Bytes, and the sum of the blocks' parts."""
    blocks, total, sums, _ = _plan(problem)
    moved = Cost(memory=memory_seconds(3 * problem.x.nbytes, device)).slowed(tail=tail(blocks, COST.blocks, device))
    after = cost(choices(total, device)[0], total, device) + (0.0 if sums is total.y else cast_seconds(total.y, sums, device))
    return LAUNCH + moved + after


@functools.cache
def kernel(config, dependent):
    """dx[...], and of each block the sum of its elements' parts of dslope."""
    Total, V, TILE, SHARED = scalar_of(config.dtype), config.vector, config.tile, 2 * THREADS // 32
    Shared = f64 if config.dtype == "float64" else f32
    Raw, LENGTH, fetch, unpack = make_reader(config.dtype, V, 4)
    put, load, store = make_writer(config.dtype, V, 4), element(config.dtype).load, element(config.dtype).store
    load_slope, reduce, BUFFER = element(config.slope).load, make_block_reduce(add, THREADS), LOADS * LENGTH
    wait = make_follow(dependent)

    @jit(launch_bounds=(THREADS, 4))
    def activation_bwd_slope(dy, x, slope, dx, parts, elements):
        wait()
        scratch = cuda.shared.array(SHARED, Shared)
        raw, raw_x = cuda.local.array(BUFFER, Raw), cuda.local.array(BUFFER, Raw)
        values, some = cuda.local.array(V, Total), cuda.local.array(V, Total)
        t, tile = cuda.threadIdx.x, i64(cuda.blockIdx.x) * TILE
        factor, total = Total(load_slope(slope, 0)), Total(0)
        for k in range(LOADS):
            at = tile + (k * THREADS + t) * V
            fetch(raw, k * LENGTH, dy, at, at + V <= elements)
            fetch(raw_x, k * LENGTH, x, at, at + V <= elements)
        for k in range(LOADS):
            at = tile + (k * THREADS + t) * V
            if at + V <= elements:
                unpack(values, 0, raw, k * LENGTH)
                unpack(some, 0, raw_x, k * LENGTH)
                for v in range(V):
                    total += Total(0) if some[v] > 0 else values[v] * some[v]
                    values[v] = values[v] if some[v] > 0 else factor * values[v]
                put(advance(dx, at), 0, values, 0)
            else:
                for e in range(at, min(at + V, elements)):
                    d, value = load(dy, e), load(x, e)
                    total += Total(0) if value > 0 else d * value
                    store(dx, e, d if value > 0 else factor * d)
        total = reduce(total, scratch, 0)
        if t == 0:
            parts[cuda.blockIdx.x] = total
    return activation_bwd_slope


def build(problem, device, config):
    """One launch, those of the sum, and a rounding of it to 16 bits."""
    blocks, total, sums, nbytes = _plan(problem)
    config, pointer, dependent = _config(problem), element(problem.x.dtype).pointer, device.capability >= (9, 0)
    given = (Argument(pointer, "dy"), Argument(pointer, "x"), Argument(element(config.slope).pointer, "slope"), Argument(pointer, "dx"),
             Argument(f"{problem.compute}*", "workspace"), Argument("int64", problem.x.size))
    first = Launch(kernel(config, dependent), (blocks, 1, 1), (THREADS, 1, 1), given, dependent=dependent)
    wide = Place("workspace", nbytes)
    targets = {"x": Place("workspace"), "y": Place("dslope") if sums is total.y else wide, "workspace": Place("workspace", nbytes + 256)}
    after = embedded(choices(total, device)[0], total, device, targets)
    return (first, *after, *(() if sums is total.y else cast_launches(total.y, sums, device, wide, Place("dslope"))))


ALGORITHM = Algorithm(op="activation_bwd", name="slope", supports=supports, workspace=workspace, estimate=estimate, build=build)
