"""From the items of slabs (see `_channel_view`) to statistics, and to sums: small launches between the two that read x.

A warp has a statistic, or a block where there are few with many items. The order of merging is fixed by the problem and the configuration.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ..device import cuda, device_function, i32, i64, jit
from ..device.convert import element
from ..device.dependent import launch_dependent_grids, wait_for_previous_grid
from ..device.groups import scalar_of
from ..device.index import ceil_div, divide_remainder, divisor
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch
from ._channel_view import statistic_strides
from ._moments import make_inverses, make_meeting, make_merge, make_sum

THREADS = 128
FLIGHT = 4  # items that a thread has in flight


class SlabSizes(NamedTuple):
    """Values of a tile, tiles of a slab, how many slabs have one more, the slab of the last tile, and values that this tile lacks."""
    tile: i32
    tiles: i32
    larger: i32
    last: i32
    missing: i32


@dataclass(frozen=True)
class Items:
    """Where the items of a view lie, and of how many values each is.

    Attributes
    ----------
    own : bool
        Each image has statistics of its own.
    images, channels, per, slabs, values : int
        Of the view; slabs a channel and image.
    tile : int
        Values that a slab takes at a time: tile t belongs to slab t modulo `slabs`.
    compute : str
        dtype.
    """
    own: bool
    images: int
    channels: int
    per: int
    slabs: int
    values: int
    tile: int
    compute: str

    @property
    def count(self):
        return self.images * self.channels * self.slabs

    @property
    def steps(self):
        """Items from one channel, and from one image, to the next."""
        if self.own:
            return self.slabs, self.channels * self.slabs
        return self.images * self.slabs, self.slabs

    @property
    def statistics(self):
        return self.images * self.channels // self.per if self.own else self.channels

    @property
    def per_statistic(self):
        return self.per * self.slabs if self.own else self.images * self.slabs

    @property
    def values_of_statistic(self):
        return self.values * (self.per if self.own else self.images)

    @property
    def bytes(self):
        """Of the two numbers of all items, and of two numbers per statistic after them."""
        return 2 * (self.count + self.statistics) * ITEMSIZE[self.compute]

    def pointers(self, what="workspace"):
        """Arguments: the items' first and second numbers, and the statistics'."""
        size = ITEMSIZE[self.compute]
        at = 0, self.count, 2 * self.count, 2 * self.count + self.statistics
        return tuple(Argument(f"{self.compute}*", what, offset=k * size) for k in at)

    def sizes(self):
        """Kernel parameter: what `slab_values` needs."""
        tiles = ceil_div(self.values, self.tile)
        whole, more = divmod(tiles, self.slabs)
        return Argument(SlabSizes, SlabSizes(self.tile, whole, more, (tiles - 1) % self.slabs, tiles * self.tile - self.values))


def slabs_of(tiles, wanted):
    """As many slabs as wanted, no more than tiles."""
    return max(1, min(tiles, wanted))


@device_function
def slab_values(slab, sizes):
    """Values of a slab; `sizes` from `Items.sizes`."""
    tiles = sizes.tiles + 1 if slab < sizes.larger else sizes.tiles
    count = tiles * sizes.tile
    return count - sizes.missing if slab == sizes.last else count


def _lanes(items):
    """Threads a statistic."""
    return THREADS if items.per_statistic > 256 and items.statistics < 2048 else 32


def _groups(lanes):
    return THREADS // lanes, lanes.bit_length() - 1


@functools.cache
def statistics_kernel(compute, lanes, mean_dtype, var_dtype, next_mean_dtype, next_var_dtype, dependent):
    """mean, rstd, and the running statistics of dtypes named, "" where there is none, and what they are written to."""
    Real = scalar_of(compute)
    merge, (inverse, inverse_root) = make_merge(Real), make_inverses(Real)
    meet, (ROWS, LOG), SCRATCH = make_meeting(merge, lanes), _groups(lanes), 3 * THREADS // 32
    RUNNING_MEAN, RUNNING_VAR = mean_dtype != "", var_dtype != ""
    load_mean, load_var = element(mean_dtype or compute).load, element(var_dtype or compute).load
    store_mean, store_var = element(next_mean_dtype or compute).store, element(next_var_dtype or compute).store

    @jit(launch_bounds=THREADS)
    def channel_norm_statistics(first, second, mean, rstd, running_mean, running_var, next_mean, next_var, eps, momentum, statistics,
                                length, slabs, sizes, groups, mean_strides, rstd_strides, running_mean_step, running_var_step,
                                next_mean_step, next_var_step):
        scratch = cuda.shared.array(SCRATCH, Real)
        if dependent:
            wait_for_previous_grid()
            launch_dependent_grids()
        means, squares, counts = cuda.local.array(FLIGHT, Real), cuda.local.array(FLIGHT, Real), cuda.local.array(FLIGHT, Real)
        thread = cuda.threadIdx.x
        k, lane = cuda.blockIdx.x * ROWS + (thread >> LOG), thread & (lanes - 1)
        there = k < statistics
        begin = (k if there else 0) * i64(length)
        a, b, n = Real(0), Real(0), Real(0)
        for i0 in range(lane, length, FLIGHT * lanes):
            for u in range(FLIGHT):
                i = i0 + u * lanes
                ok = i < length
                at = begin + (i if ok else i0)
                _, slab = divide_remainder(i if ok else i0, slabs)
                means[u] = first[at]
                squares[u] = second[at] if ok else Real(0)
                counts[u] = Real(slab_values(slab, sizes)) if ok else Real(0)
            for u in range(FLIGHT):
                a, b, n = merge(a, b, n, means[u], squares[u], counts[u])
        a, b, n = meet(a, b, n, scratch)
        if there and lane == 0:
            image, group = divide_remainder(k, groups)
            mean[image * mean_strides.image + group * mean_strides.group] = a
            rstd[image * rstd_strides.image + group * rstd_strides.group] = inverse_root(b * inverse(n) + eps)
            if RUNNING_MEAN:
                old = load_mean(running_mean, group * running_mean_step)
                store_mean(next_mean, group * next_mean_step, (Real(1) - momentum) * old + momentum * a)
            if RUNNING_VAR:
                old, var = load_var(running_var, group * running_var_step), b * inverse(n - Real(1)) if n > Real(1) else Real(0)
                store_var(next_var, group * next_var_step, (Real(1) - momentum) * old + momentum * var)
    return channel_norm_statistics


def statistics_launch(problem, view, items, dependent):
    """The launch that makes statistics of means and squared distances."""
    is_batch = problem.op.startswith("batch")
    running = "running_mean", "running_var", *((problem.moved("mean"), problem.moved("var")) if is_batch else ("next_mean", "next_var"))
    dtypes = [problem.dtype_of(name) for name in running]
    lanes = _lanes(items)
    first, second, _, _ = items.pointers()
    pointers = [problem.pointer(name, "mean") for name in running]
    steps = [view.statistic.get(name, (0, 0))[1] for name in running]
    momentum = Argument(items.compute, "momentum" if is_batch else 0.0)
    arguments = (first, second, Argument(f"{items.compute}*", "mean"), Argument(f"{items.compute}*", "rstd"), *pointers,
                 Argument(items.compute, "eps"), momentum, Argument("int32", items.statistics), Argument("int32", items.per_statistic),
                 Argument("uint32x3", divisor(items.slabs)), items.sizes(), Argument("uint32x3", divisor(view.channels // view.per)),
                 *statistic_strides(view, "mean", "rstd"), *(Argument("int64", s) for s in steps))
    return Launch(statistics_kernel(items.compute, lanes, *dtypes, dependent), (ceil_div(items.statistics * lanes, THREADS), 1, 1),
                  (THREADS, 1, 1), arguments, dependent=dependent)


@functools.cache
def averages_kernel(compute, lanes, own, scaled, gamma_dtype, dgamma_dtype, dbeta_dtype, dependent):
    """Averages over a statistic's values of ``g`` and ``g * n`` with ``g = dz * gamma``, from sums of ``dz`` and ``dz * n`` by channel;
    without `own` these sums are stored as well: they are dbeta and dgamma."""
    Real, load_gamma = scalar_of(compute), element(gamma_dtype).load
    store_gamma, store_beta = element(dgamma_dtype).store, element(dbeta_dtype).store
    meet, (ROWS, LOG), SCRATCH = make_meeting(make_sum(Real), lanes), _groups(lanes), 3 * THREADS // 32
    OWN, SCALED = own, scaled

    @jit(launch_bounds=THREADS)
    def channel_norm_averages(first, second, one, two, gamma, dgamma, dbeta, statistics, length, share, slabs, groups, per, gamma_step,
                              dgamma_step, dbeta_step):
        scratch, ones, twos = cuda.shared.array(SCRATCH, Real), cuda.local.array(FLIGHT, Real), cuda.local.array(FLIGHT, Real)
        if dependent:
            wait_for_previous_grid()
            launch_dependent_grids()
        thread = cuda.threadIdx.x
        k, lane = cuda.blockIdx.x * ROWS + (thread >> LOG), thread & (lanes - 1)
        there = k < statistics
        begin = (k if there else 0) * i64(length)
        image, group = divide_remainder(k if there else 0, groups)
        a, b, n = Real(0), Real(0), Real(0)
        for i0 in range(lane, length, FLIGHT * lanes):
            for u in range(FLIGHT):
                i = i0 + u * lanes
                ok = i < length
                at = begin + (i if ok else i0)
                ones[u] = Real(first[at]) if ok else Real(0)
                twos[u] = Real(second[at]) if ok else Real(0)
            for u in range(FLIGHT):
                s, t = ones[u], twos[u]
                if OWN and SCALED:
                    i = i0 + u * lanes
                    channel, _ = divide_remainder(i if i < length else i0, slabs)
                    weight = Real(load_gamma(gamma, (group * per + channel) * gamma_step))
                    s, t = s * weight, t * weight
                a += s
                b += t
        a, b, n = meet(a, b, n, scratch)
        if there and lane == 0:
            if not OWN:
                store_beta(dbeta, group * dbeta_step, a)
                store_gamma(dgamma, group * dgamma_step, b)
                if SCALED:
                    weight = Real(load_gamma(gamma, group * gamma_step))
                    a, b = a * weight, b * weight
            one[k] = a * share
            two[k] = b * share
    return channel_norm_averages


@functools.cache
def given_averages_kernel(compute, gamma_dtype):
    """The averages of `averages_kernel` from given sums over all parts of a batch, whose counts are added up; gamma's dtype is "" where
    there is none."""
    Real, SCALED, load_gamma = scalar_of(compute), gamma_dtype != "", element(gamma_dtype or compute).load

    @jit(launch_bounds=THREADS)
    def channel_norm_given_averages(dgamma, dbeta, counts, gamma, one, two, statistics, parts, count_step, dgamma_step, dbeta_step,
                                    gamma_step):
        k = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if k < statistics:
            count, weight = Real(0), Real(1)
            for part in range(parts):
                count += Real(counts[part * count_step])
            if SCALED:
                weight = Real(load_gamma(gamma, k * gamma_step))
            one[k] = dbeta[k * dbeta_step] / count * weight
            two[k] = dgamma[k * dgamma_step] / count * weight
    return channel_norm_given_averages


def given_averages_launch(problem, view, items):
    """The launch that makes averages of given sums."""
    counts, numbers = problem.counts, f"{items.compute}*"
    arguments = (Argument(numbers, "dgamma"), Argument(numbers, "dbeta"), Argument(f"{counts.dtype}*", "counts"),
                 problem.pointer("gamma"), *items.pointers()[2:], Argument("int32", items.statistics), Argument("int64", counts.shape[0]),
                 Argument("int64", counts.strides[0]), *(Argument("int64", view.statistic[name][1]) for name in ("dgamma", "dbeta")),
                 Argument("int64", view.weight.get("gamma", 0)))
    kernel = given_averages_kernel(items.compute, problem.dtype_of("gamma"))
    return Launch(kernel, (ceil_div(items.statistics, THREADS), 1, 1), (THREADS, 1, 1), arguments)


@functools.cache
def weights_kernel(compute, dgamma_dtype, dbeta_dtype, dependent):
    """dgamma and dbeta of channels whose images have statistics of their own, a warp each."""
    Real, store_gamma, store_beta = scalar_of(compute), element(dgamma_dtype).store, element(dbeta_dtype).store
    meet = make_meeting(make_sum(Real), 32)

    @jit(launch_bounds=THREADS)
    def channel_norm_weights(first, second, dgamma, dbeta, channels, length, slabs, image_step, dgamma_step, dbeta_step):
        ones, twos = cuda.local.array(FLIGHT, Real), cuda.local.array(FLIGHT, Real)
        if dependent:
            wait_for_previous_grid()
            launch_dependent_grids()
        thread = cuda.threadIdx.x
        k, lane = cuda.blockIdx.x * (THREADS // 32) + (thread >> 5), thread & 31
        begin = (k if k < channels else 0) * i64(slabs[0])
        a, b, n = Real(0), Real(0), Real(0)
        for i0 in range(lane, length, FLIGHT * 32):
            for u in range(FLIGHT):
                i = i0 + u * 32
                ok = i < length
                image, slab = divide_remainder(i if ok else i0, slabs)
                at = begin + image * image_step + slab
                ones[u] = Real(first[at]) if ok else Real(0)
                twos[u] = Real(second[at]) if ok else Real(0)
            for u in range(FLIGHT):
                a += ones[u]
                b += twos[u]
        a, b, n = meet(a, b, n, 0)
        if k < channels and lane == 0:
            store_beta(dbeta, k * dbeta_step, a)
            store_gamma(dgamma, k * dgamma_step, b)
    return channel_norm_weights


def averages_launches(problem, view, items, dependent):
    """The launches that make averages, and dgamma and dbeta, of sums."""
    gamma, lanes = problem.gamma, _lanes(items)
    dtypes = problem.dgamma.dtype, problem.dbeta.dtype
    scale = problem.dtype if gamma is None else gamma.dtype
    kernel = averages_kernel(items.compute, lanes, items.own, gamma is not None, scale, *dtypes, dependent)
    steps = [Argument("int64", view.weight.get(name, 0)) for name in ("gamma", "dgamma", "dbeta")]
    sums = items.pointers()
    arguments = (*sums, problem.pointer("gamma"), problem.pointer("dgamma"), problem.pointer("dbeta"), Argument("int32", items.statistics),
                 Argument("int32", items.per_statistic), Argument(items.compute, 1.0 / items.values_of_statistic),
                 Argument("uint32x3", divisor(items.slabs)), Argument("uint32x3", divisor(view.channels // view.per)),
                 Argument("int32", view.per), *steps)
    launches = [Launch(kernel, (ceil_div(items.statistics * lanes, THREADS), 1, 1), (THREADS, 1, 1), arguments, dependent=dependent)]
    if items.own:
        arguments = (*sums[:2], problem.pointer("dgamma"), problem.pointer("dbeta"), Argument("int32", view.channels),
                     Argument("int32", items.images * items.slabs), Argument("uint32x3", divisor(items.slabs)),
                     Argument("int64", items.steps[1]), *steps[1:])
        grid = ceil_div(view.channels * 32, THREADS), 1, 1
        launches.append(Launch(weights_kernel(items.compute, *dtypes, dependent), grid, (THREADS, 1, 1), arguments, dependent=dependent))
    return launches
