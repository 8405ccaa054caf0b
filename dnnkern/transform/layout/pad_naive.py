"""One thread per element of y: where in x it comes from, or the value that is round x.

Stores are coalesced; loads are too where neighbours of y are neighbours in x. Any strides, any number of elements; each coordinate costs a
division of 64-bit integers.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, i64, jit, u32
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, issue_seconds, memory_seconds, overlap
from ...engine.vectors import make_unit_moves, word_of
from ...host.launch import Argument, Launch
from ._borders import border_arguments64, make_inside_offsets
from ._pad_problem import PADS
from ._rows import make_fill

COST = constants("transform/naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Bytes of an element, its type where there is something to fill in, what is beyond borders, number of dimensions."""
    itemsize: int
    filled: str | None
    mode: str
    dims: int


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """A 32-byte sector a load where neighbours of y are apart in x, and the divisions; the grid before it ends first."""
    form = problem.form
    spread = min(32, max(abs(form.dims[-1].x), 1) * form.itemsize) // form.itemsize
    divisions = issue_seconds(problem.y.size, COST.pad * len(form.dims), device)
    work = overlap(issue=divisions, memory=memory_seconds(problem.read_bytes * spread + problem.y.nbytes, device))
    return LAUNCH + Cost(waves=COST.alone) + work


@functools.cache
def kernel(config):
    """y[...] = x[...] or a value, an element a thread."""
    offsets = make_inside_offsets(config.dims, True, config.mode, any_size=True)
    SCALE, FILLED = word_of(config.itemsize)[2], config.filled is not None
    load, store, _, _, _ = make_unit_moves(config.itemsize, config.itemsize)
    fill = make_fill(config.filled) if FILLED else None

    @jit(launch_bounds=THREADS)
    def pad_naive(x, y, elements, x_first, y_first, sizes, borders, strides, value):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < elements:
            words = cuda.local.array(4, u32)
            inside, x_at, y_at = offsets(i, sizes, borders, strides)
            if inside:
                load(words, 0, advance(x, (x_first + x_at) * SCALE), 1)
            elif FILLED:
                fill(words, value)
            store(advance(y, (y_first + y_at) * SCALE), words, 0)
    return pad_naive


def build(problem, device, config, source=("x", 0), target=("y", 0), value="value"):
    """One launch."""
    form, elements = problem.form, problem.y.size
    pointer = word_of(form.itemsize)[1] + "*"
    arguments = (*(Argument(pointer, name, offset=offset) for name, offset in (source, target)), Argument("int64", elements),
                 Argument("int64", form.x_first), Argument("int64", form.y_first), *border_arguments64(form.dims),
                 Argument(problem.scalar_type, value))
    config = Config(form.itemsize, problem.filled, problem.mode, len(form.dims))
    return (Launch(kernel(config), (-(-elements // THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build) for op in PADS)
