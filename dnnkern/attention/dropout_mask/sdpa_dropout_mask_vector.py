"""One thread per eight keys of a row, the words of one call of Philox, which leave 16 bytes at a time.

Rows are contiguous, in whole groups of eight keys. By its instructions a call of Philox takes a little less than the 16 bytes that it
decides about with 16-bit elements.
"""
import functools

from ...device import cuda, i64, jit
from ...device.convert import element
from ...device.groups import access_words, make_writer, scalar_of
from ...device.index import LIMIT, ceil_div, divide_remainder, divisor
from ...device.philox import make_stream_seed, philox
from ...device.vec import advance
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap
from ...engine.dropout_bits import bit_of
from ...host import seeds
from ...host.launch import Argument, Launch
from .._parameters import Strides
from .._scores import kept_of_eight
from ._problem import GROUP, OP
from .sdpa_dropout_mask_naive import THREADS, Config, threads_of, workspace

COST = constants("attention/dropout_mask")


def _words(problem):
    """32-bit words of a store."""
    return access_words(problem.y, GROUP, problem.y.strides[:-1])


def supports(problem):
    """Contiguous rows of whole groups."""
    y = problem.y
    if y.strides[-1] != 1 or y.shape[-1] % GROUP or not _words(problem):
        return f"y has strides {y.strides} for shape {y.shape}; expected contiguous rows, aligned groups of {GROUP} keys"
    return None if threads_of(problem) < LIMIT else f"{threads_of(problem)} groups of {GROUP} keys; expected fewer than 2**31"


def estimate(problem, device, config):
    """Bytes, or the instructions of Philox."""
    issue = issue_seconds(threads_of(problem), COST.philox + COST.stored * GROUP, device)
    return LAUNCH + overlap(issue=issue, memory=memory_seconds(problem.size * problem.y.itemsize, device))


@functools.cache
def kernel(config, words):
    """y, eight keys a thread."""
    T = scalar_of(config.dtype)
    put, seed_of = make_writer(config.dtype, GROUP, words), make_stream_seed(config.seed_array, config.offset_array)

    @jit(launch_bounds=THREADS)
    def sdpa_dropout_mask_vector(y, threads, heads, rows, groups, strides, seed, offset, threshold):
        index = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if index < threads:
            line, group = divide_remainder(index, groups)
            head, i = divide_remainder(line, rows)
            b, h = divide_remainder(head, heads)
            bits = kept_of_eight(philox(seed_of(seed, offset), (i64(head) << 32) + i, i64(group)), threshold)
            values = cuda.local.array(GROUP, T)
            for k in range(GROUP):
                values[k] = T(1) if bit_of(bits, k) else T(0)
            put(advance(y, b * strides.batch + h * strides.head + i * strides.row), group * GROUP, values, 0)
    return sdpa_dropout_mask_vector


def build(problem, device, config):
    """One launch."""
    p, (_, heads, rows, keys) = problem, problem.y.shape
    threads, config = threads_of(p), Config(p.dtype, *seeds.reads(p))
    arguments = (Argument(element(p.dtype).pointer, "y"), Argument("int32", threads),
                 *(Argument("uint32x3", divisor(n)) for n in (heads, rows, keys // GROUP)), Argument(Strides, p.y.strides),
                 *seeds.arguments(p), Argument("uint32", "threshold"))
    return (Launch(kernel(config, _words(p)), (ceil_div(threads, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op=OP, name="vector", supports=supports, workspace=workspace, estimate=estimate, build=build)
