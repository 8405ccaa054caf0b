"""One thread per element; a 64-bit division finds its row. Any strides, any number of elements."""
import functools
from dataclasses import dataclass

from ...device import cuda, i64, jit
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, SECTOR, issue_seconds, memory_seconds, overlap
from ...engine.vectors import word_of
from ...host.launch import Argument, Launch

COST = constants("transform/naive")

THREADS = 256


@dataclass(frozen=True)
class Config:
    """Words of an element, whether rows are numbered in x and in y."""
    words: int
    source: bool
    target: bool


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """A 32-byte sector an access where elements are apart, and the divisions."""
    size = problem.count * problem.x.shape[1]
    spread = sum(min(SECTOR, max(abs(t.strides[1]), 1) * t.itemsize) for t in (problem.x, problem.y))
    return LAUNCH + overlap(issue=issue_seconds(size, 2 * COST.dimension, device), memory=memory_seconds(size * spread, device))


@functools.cache
def kernel(config):
    """y[target[i]] = x[source[i]], an element a thread."""
    WORDS, SOURCE, TARGET = config.words, config.source, config.target

    @jit(launch_bounds=THREADS)
    def move_rows_naive(x, source, target, y, elements, length, x_rows, y_rows, x_row, x_step, y_row, y_step, source_step, target_step):
        k = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if k < elements:
            row = k // length
            column, a, b = k - row * length, row, row
            if SOURCE:
                a = source[row * source_step]
            if TARGET:
                b = target[row * target_step]
            if a >= 0 and a < x_rows and b >= 0 and b < y_rows:
                for w in range(WORDS):
                    y[(b * y_row + column * y_step) * WORDS + w] = x[(a * x_row + column * x_step) * WORDS + w]
    return move_rows_naive


def build(problem, device, config):
    """One launch; an array of rows that is missing has x's in the arguments."""
    p = problem
    _, word, count = word_of(p.x.itemsize)
    compiled = kernel(Config(count, p.source is not None, p.target is not None))
    size, rows = p.count * p.x.shape[1], (p.source, p.target)
    steps = [0 if t is None else t.strides[0] for t in rows]
    pointers = [Argument("int32*", name) if t is not None else Argument(word + "*", "x") for name, t in zip(("source", "target"), rows)]
    numbers = (size, p.x.shape[1], p.x.shape[0], p.y.shape[0], *p.x.strides, *p.y.strides, *steps)
    arguments = (Argument(word + "*", "x"), *pointers, Argument(word + "*", "y"), *(Argument("int64", n) for n in numbers))
    return (Launch(compiled, (-(-size // THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="move_rows", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
