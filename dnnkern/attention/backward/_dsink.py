"""The sink's gradient: one block per head, after the launches of the other gradients.

The sink of a head is one more score of each of its rows, with no value, so that its derivative is that of the normalisation alone:

    dsink = -sum over rows of exp(sink - lse) * delta        delta = sum(do * o)

lse and delta are what the other gradients need, too. The order of additions depends on the sizes alone.
"""
import functools

from ...device import cuda, f32, f64, i64, jit
from ...device.block import make_block_reduce
from ...device.convert import element
from ...device.fastmath import ex2, exp, fma
from ...device.warp import add
from ...engine.cost import LAUNCH, Cost, memory_seconds
from ...host.launch import Argument, Launch
from .._addresses import row_strides_argument
from .._parameters import sequence_arguments
from .._scores import LOG2E, NEG_INF, between, make_memory

LOG_THREADS = 9
THREADS = 1 << LOG_THREADS


def dsink_seconds(problem, device):
    """A launch, and lse and delta of each row, which few multiprocessors read."""
    p = problem
    if p.dsink is None:
        return 0
    return LAUNCH + Cost(memory=2 * memory_seconds(2 * p.lse.nbytes, device)).slowed(idle=device.sms / min(max(p.heads, 1), device.sms))


def dsink_launches(problem, stats):
    """The launch, if the gradient is wanted; `stats` says where deltas are (`_dbias.RowStats`)."""
    p, t = problem, problem.dsink
    if t is None or not t.size:
        return ()
    rows = stats.rows if stats.width else p.rows
    lengths, _, step, _ = sequence_arguments(p)
    arguments = (Argument(element(t.dtype).pointer, "sink"), Argument("int64", p.sink.strides[0]),
                 Argument(element(t.dtype).pointer, "dsink"), Argument("int64", t.strides[0]), Argument(f"{p.compute}*", "lse"),
                 row_strides_argument(p), Argument(f"{p.compute}*", "workspace", stats.begin),
                 Argument("int32x4", (p.images, p.heads, rows, min(max(rows - 1, 0).bit_length(), LOG_THREADS))), lengths, step)
    return (Launch(kernel(p.compute, t.dtype, stats.width, p.ragged), (p.heads, 1, 1), (THREADS, 1, 1), arguments),)


@functools.cache
def kernel(compute, dtype, width, ragged):
    """As many threads, a power of two, share the rows of an image as it has, or all of them; others have other images. Deltas lie as
    `_delta` orders them, or, with a `width`, levels and deltas as `dq` does, of rows that do not exist too, whose levels are infinite."""
    SCRATCH = 2 * THREADS // 32
    T, load, store = f64 if compute == "float64" else f32, element(dtype).load, element(dtype).store
    total_of, rows_at, RAGGED = make_block_reduce(add, THREADS), make_memory(ragged, False).rows_at, bool(ragged)

    @jit(launch_bounds=THREADS)
    def sdpa_dsink(sink, sink_step, dsink, dsink_step, lse, lse_strides, stats, sizes, of_rows, row_step):
        scratch = cuda.shared.array(SCRATCH, T)
        images, heads, rows, log_lanes = sizes
        h, thread, total = cuda.blockIdx.x, cuda.threadIdx.x, T(0)
        own = T(load(sink, h * sink_step))
        for image in range(thread >> log_lanes, images, THREADS >> log_lanes):
            begin, count = i64(image * heads + h) * rows, rows
            if RAGGED:
                count = between(of_rows[image * row_step], 0, rows)
            of_lse = rows_at(lse_strides, image, count) + h * lse_strides.head
            for i in range(thread & ((1 << log_lanes) - 1), count, 1 << log_lanes):
                p, delta = T(0), T(0)
                if width:
                    at = (begin + (i & -width)) * 2 + (i & (width - 1))
                    p, delta = ex2(fma(own, f32(LOG2E), -stats[at])), stats[at + width]
                else:
                    level, delta = lse[of_lse + i * lse_strides.row], stats[begin + i]
                    if level != T(NEG_INF):
                        p = exp(T(own - level))
                if p != T(0):  # what rows that attend to nothing hold may be NaN
                    total = T(total - p * delta)
        total = total_of(total, scratch, 0)
        if cuda.threadIdx.x == 0:
            store(dsink, h * dsink_step, total)
    return sdpa_dsink
