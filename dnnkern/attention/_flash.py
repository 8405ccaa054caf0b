"""What the tiled algorithms of attention share beside scores: exponentials by powers of two, launches, and what limits their tiles."""
import functools
from typing import Callable, NamedTuple

from ..device import device_function, f32, f64
from ..device.fastmath import ex2, exp, fma, lg2, log, rcp
from ..device.index import LIMIT, Divisor, ceil_div, divisor
from ..engine.constants import constants
from ..host.launch import Argument
from ._scores import LN2, LOG2E, LOWEST, NEG_INF

COST = constants("attention/simt")

WIDEST = 256


class Powers(NamedTuple):
    """Device functions of exponentials, in float32 by powers of two: a product and a sum in one instruction, and the exponential.

    attended(top)
        A maximum, -inf if it is below `LOWEST`.
    level(top)
        What `rise` takes for the largest score so far; 0 where there is none.
    rise(x, level)
        exp(x - top).
    fall(before, level)
        What sums by a former level are multiplied by.
    total(level, sum)
        The logarithm of a sum of `rise`.
    inverse(x)
        1 / x.
    """
    attended: Callable
    level: Callable
    rise: Callable
    fall: Callable
    total: Callable
    inverse: Callable


@functools.cache
def make_powers(compute):
    """`Powers` of float32 or float64."""
    T, DOUBLE = (f64, True) if compute == "float64" else (f32, False)

    @device_function
    def attended(top):
        if DOUBLE:
            return top
        return T(NEG_INF) if top * T(LOG2E) < T(LOWEST) else top

    @device_function
    def level(top):
        if top == T(NEG_INF):
            return T(0)
        return top if DOUBLE else T(top * T(LOG2E))

    @device_function
    def rise(x, level):
        if DOUBLE:
            return exp(T(x - level))
        return ex2(fma(x, T(LOG2E), -level))

    @device_function
    def fall(before, level):
        if DOUBLE:
            return exp(T(before - level))
        return ex2(T(before - level))

    @device_function
    def total(level, sum_):
        if DOUBLE:
            return T(level + log(sum_))
        return T(T(level + lg2(sum_)) * T(LN2))

    @device_function
    def inverse(x):
        return T(T(1) / x) if DOUBLE else rcp(x)
    return Powers(attended, level, rise, fall, total, inverse)


def tiles_of(problem, count, height):
    """Tiles of one head with `count` rows, or keys. Of packed sequences those of any lengths, and of the rows after the last one."""
    return count // height + problem.batch + 1 if problem.packed else ceil_div(count, height)


def lines_arguments(problem, heads, tiles):
    """Kernel parameters `lines` and `heads_of`: heads of all images, and of one, as divisors; and `tiles`."""
    return (Argument(Divisor, divisor(problem.images * heads)), Argument(Divisor, divisor(heads)), Argument("int32", tiles))


def blocks_seconds(blocks, work, threads, shared, registers, rate, device):
    """Time of blocks of `work` multiply-adds each, at `rate` a second for the whole device where eight warps are on a multiprocessor."""
    resident = max(1, min(device.shared_per_sm // (shared + 1024), device.registers_per_sm // (max(registers, 32) * threads.count),
                          device.threads_per_sm // threads.count, ceil_div(blocks, device.sms)))
    share = min(1.0, resident * threads.count / COST.enough)
    return max(1.0, blocks / (resident * device.sms)) * resident * work / (rate / device.sms * share)


def fits(problem, height, widest=WIDEST):
    """Why heads are too wide, or a grid of tiles of so many rows, and of keys, cannot be counted; None if it can."""
    p = problem
    blocks = p.images * p.heads * max(tiles_of(p, p.rows, height), tiles_of(p, p.keys, height))
    if max(p.d, p.dv) > widest:
        return f"heads of {p.d} and {p.dv} elements; expected {widest} at most"
    return None if blocks < LIMIT else f"{blocks} tiles of {height} rows; expected fewer than 2**31"


def refusal(problem, *known):
    """Which option only `naive`, and who knows it, has, or None."""
    for name in ("block_mask", "dropout_mask", "score_max", "score_sum_exp"):
        if name not in known and getattr(problem, name, None) is not None:
            return f"{name}; expected none"
    return None
