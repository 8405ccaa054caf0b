"""One thread per channel, which goes through the parts in order and merges them by Chan's formula.

Neighbouring threads have neighbouring channels, so where these are contiguous all loads are coalesced. Parts are as many as devices, and
channels thousands: a launch takes longer than what it does.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, jit
from ..device.convert import element
from ..device.fastmath import sqrt
from ..device.index import ceil_div
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import LAUNCH, memory_seconds, overlap
from ..engine.values import COMPUTE
from ..host.launch import Argument, Launch

COST = constants("norm/merge_naive")

THREADS = 128


@dataclass(frozen=True)
class Config:
    """dtypes; "" for running statistics that are missing."""
    dtype: str
    running_mean: str
    running_var: str


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """The latency of a part's loads, one after another."""
    return LAUNCH + overlap(memory=memory_seconds(problem.bytes, device), waits=problem.means.shape[0] * COST.wait)


@functools.cache
def kernel(config):
    """The statistics of all parts, and what runs along."""
    Real, MEAN, VAR = COMPUTE[config.dtype], config.running_mean != "", config.running_var != ""
    mean_of, var_of = element(config.running_mean or config.dtype), element(config.running_var or config.dtype)
    load_mean, store_mean, load_var, store_var = mean_of.load, mean_of.store, var_of.load, var_of.store

    @jit(launch_bounds=THREADS)
    def batch_norm_merge_naive(means, rstds, counts, running_mean, running_var, mean, var, rstd, eps, momentum, channels, parts, mean_part,
                               mean_channel, rstd_part, rstd_channel, count_step, running_mean_step, running_var_step, mean_step,
                               var_step, rstd_step):
        c = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if c < channels:
            m, squares, n = Real(0), Real(0), Real(0)
            for part in range(parts):
                count = Real(counts[part * count_step])
                if count > Real(0):
                    deviation = Real(1) / rstds[part * rstd_part + c * rstd_channel]
                    d = means[part * mean_part + c * mean_channel] - m
                    share = count / (n + count)
                    squares += (deviation * deviation - eps) * count + d * d * (n * share)
                    m += d * share
                    n += count
            biased = squares / n if n > Real(0) else Real(0)
            biased = biased if biased > Real(0) or biased != biased else Real(0)
            mean[c * mean_step] = m
            var[c * var_step] = biased
            rstd[c * rstd_step] = Real(1) / sqrt(biased + eps)
            if MEAN:
                old = Real(load_mean(running_mean, c * running_mean_step))
                store_mean(running_mean, c * running_mean_step, (Real(1) - momentum) * old + momentum * m)
            if VAR:
                old, others = Real(load_var(running_var, c * running_var_step)), n - Real(1) if n > Real(1) else Real(1)
                store_var(running_var, c * running_var_step, (Real(1) - momentum) * old + momentum * (biased * n / others))
    return batch_norm_merge_naive


def build(problem, device, config):
    """One launch. For missing running statistics the arguments name mean once more."""
    p = problem

    def pointer(name):
        t = getattr(p, name)
        return Argument(element(t.dtype).pointer, name) if t is not None else Argument(f"{p.dtype}*", "mean")

    def step(name):
        t = getattr(p, name)
        return Argument("int64", t.strides[0] if t is not None else 0)
    running = [t.dtype if t is not None else "" for t in (p.running_mean, p.running_var)]
    parts, channels = p.means.shape
    arguments = (pointer("means"), pointer("rstds"), Argument(f"{p.counts.dtype}*", "counts"), pointer("running_mean"),
                 pointer("running_var"), *(Argument(f"{p.dtype}*", name) for name in ("mean", "var", "rstd")), Argument(p.dtype, "eps"),
                 Argument(p.dtype, "momentum"), Argument("int64", channels), Argument("int64", parts),
                 *(Argument("int64", s) for t in (p.means, p.rstds) for s in t.strides),
                 *map(step, ("counts", "running_mean", "running_var", "mean", "var", "rstd")))
    return (Launch(kernel(Config(p.dtype, *running)), (ceil_div(channels, THREADS), 1, 1), (THREADS, 1, 1), arguments),)


ALGORITHM = Algorithm(op="batch_norm_merge", name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
