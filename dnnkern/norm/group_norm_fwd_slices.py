"""Groups that no block holds, or whose channels come last: the blocks of a cluster hold a slice of an image together, and read it once.

A slice is K neighbouring groups of channels of an image, channels last, so that each pixel has 32 to 256 neighbouring bytes of it; or one
channel's plane, channels first. Each block of the cluster has a run of pixels. A thread has the same 16 bytes of channels of every n-th
pixel of it, some in registers, the rest in shared memory, brought there by cp.async; so it has one group, and loads weights once::

    pixel      0  1  2  3 ...  | share ...       | 2 share ...
    block      0               | 1               | 2                 of the cluster
    columns    K groups of U chunks of 16 bytes, each a thread's of its warp

Mean and squared distances of a thread are merged among the lanes that have the same group, then among warps by the first one, which sends
the block's to all blocks of the cluster; one barrier of the cluster later every thread has the whole.
`columns` and `planes` read x twice.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ..device import cuda, device_function, f32, i32, i64, jit, u32
from ..device.cluster import cluster_arrive_relaxed, cluster_rank, cluster_sync, cluster_wait, remote_address, store_remote_f32
from ..device.convert import element
from ..device.cp_async import commit_copies, copy_async16_if
from ..device.epilogue import Activation, activation_function
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.rows import RowLayout, make_row
from ..device.vec import address, advance, pin, shared_address
from ..device.warp import shuffle_xor
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, memory_seconds, occupied, tail
from ..host.launch import Argument, Launch
from ._channel_view import MOST, View, array_strides, statistic_strides, view_of
from ._moments import make_inverses, make_join

COST = constants("norm/slices")

LANES, CLUSTERS, SEGMENTS = (512, 256), (1, 2, 4, 8), (8, 4, 2, 1)  # segments: chunks of 16 bytes of a pixel
# Vectors of a thread there, all of them, and where there are others in shared memory, by elements of one, each of which has weights.
REGISTERS = {4: (7, 5), 8: (5, 4)}
RESIDENT = 1024              # threads of a multiprocessor
MOST_SHARED, ROOM = 24, 200 * 1024  # vectors of a thread in shared memory, bytes of a block there
LEAST_BYTES = 16 * 1024      # of a block


@dataclass(frozen=True)
class Config:
    """Types; threads of a block, blocks of a cluster; chunks of a pixel in a slice, and of a group; vectors of a thread in registers and in
    shared memory, bytes of it that a multiprocessor has; whether channels are side by side; y's dtype where it is another."""
    dtype: str
    gamma: str
    beta: str
    activation: Activation
    lanes: int
    cluster: int
    columns: int
    per_group: int
    registers: int
    shared: int
    shared_per_sm: int
    last: bool
    result: str = ""

    @property
    def layout(self):
        return RowLayout(self.dtype, 16, self.lanes, self.registers, self.shared, result=self.result)

    @property
    def groups(self):
        """Of a slice."""
        return self.columns // self.per_group

    @property
    def shared_bytes(self):
        return 16 * self.shared * self.lanes

    @property
    def blocks(self):
        """Of a multiprocessor."""
        room = self.shared_per_sm // (self.shared_bytes + 2048) if self.shared else RESIDENT
        return max(1, min(RESIDENT // self.lanes, room))

    def __str__(self):
        vectors = f"{self.registers} + {self.shared}" if self.shared else f"{self.registers}"
        return (f"{self.lanes} threads x {self.cluster} blocks, {self.groups} groups, {vectors} x 16 bytes"
                + f", to {self.result}" * bool(self.result))


class Slices(NamedTuple):
    """How an image is cut: pixels (channels first, vectors of a plane), elements of one, slices of an image, channels of one; elements of x
    and y from a slice to the next, and from a pixel to the next."""
    pixels: int
    slices: int
    channels: int
    slice_steps: tuple
    pixel_steps: tuple


def _is_last(view):
    """Whether channels are side by side."""
    return view.per > 1


def _chunks(problem):
    """Chunks of 16 bytes of a pixel that a group has."""
    view = view_of(problem)
    return view.per * problem.x.itemsize // 16 if _is_last(view) else 1


def supports(problem):
    """float32 sums; groups of whole chunks of channels side by side, or planes of whole vectors."""
    if not problem.x.size:
        return "x has no elements"
    if problem.compute != "float32":
        return f"sums of {problem.dtype} are float64; blocks exchange float32"
    view = view_of(problem)
    if not isinstance(view, View):
        return view
    per, last = 16 // problem.x.itemsize, _is_last(view)
    for name in ("x", "y"):
        image, channel, value = view.whole[name]
        if last and (channel != 1 or view.per % per or value % per):
            return f"channels of {name} are {channel} apart, {view.per} of them a group; expected 1, and groups of {per} each"
        if not last and (value != 1 or view.values % per or channel % per):
            return f"values of a plane of {name} are {value} apart, {view.values} of them; expected 1, and multiples of {per}"
        if image % per or problem.tensor(name).alignment < 16:
            return f"images of {name} begin off a multiple of 16 bytes"
    chunks = _chunks(problem)
    if last and (chunks & chunks - 1 or chunks > SEGMENTS[0]):
        return f"groups of {chunks} chunks of 16 bytes; expected 1, 2, 4 or 8"
    if max(view.values, view.images * view.channels * CLUSTERS[-1]) >= MOST:
        return f"{view.images} images of {view.channels} channels; expected fewer than {MOST}"
    return None if _fitting(problem, 228 * 1024) else f"groups of {view.values} values: no cluster holds them"


def workspace(problem, device, config):
    """None."""
    return 0


def _pixels(problem):
    view = view_of(problem)
    return view.values if _is_last(view) else view.values * problem.x.itemsize // 16


def _fitting(problem, shared_per_sm):
    view, pixels, chunks, found = view_of(problem), _pixels(problem), _chunks(problem), []
    most = REGISTERS[16 // problem.x.itemsize]
    for columns in SEGMENTS:
        if columns % chunks or view.groups % (columns // chunks) or columns > 1 and not _is_last(view):
            continue
        for cluster in CLUSTERS:
            if cluster * columns // chunks > 32:  # lanes of the warp that sends a block's moments of each group to each block
                continue
            for lanes in LANES:
                count = ceil_div(ceil_div(pixels, cluster), lanes // columns)
                registers = min(count, most[count > most[0]])
                shared = count - registers
                held = 16 * ceil_div(pixels, cluster) * columns
                if shared > MOST_SHARED or 16 * shared * lanes > ROOM or cluster > 1 and held < LEAST_BYTES or count < 2:
                    continue
                found.append(Config(problem.dtype, *(problem.dtype_of(n) for n in ("gamma", "beta")), problem.activation, lanes, cluster,
                                    columns, chunks, registers, shared, shared_per_sm, _is_last(view), problem.result))
    return found


def configs(problem, device):
    """Slices, clusters and blocks that hold one."""
    return _fitting(problem, device.shared_per_sm)


def fits(problem, device):
    """Clusters."""
    return None if device.capability >= (9, 0) else f"capability {device.capability}; expected 9.0: blocks form clusters"


def estimate(problem, device, config):
    """Bytes at the rate that those in flight sustain, in flight for all but `wait` of a block's life; the grid's last blocks;
    short runs of a pixel."""
    view = view_of(problem)
    clusters = view.images * view.groups // config.groups
    blocks = clusters * config.cluster
    fill = _pixels(problem) * config.columns / (config.cluster * config.lanes * (config.registers + config.shared))
    flight = (config.registers + config.shared) * 16 * config.lanes * config.blocks * min(1.0, fill)
    rate = COST.rate * max(COST.least, 1 - COST.wait * device.bandwidth / (device.sms * flight))
    rate *= COST.narrow if config.layout.itemsize < 4 else 1.0
    rate *= COST.one_block if config.blocks == 1 else 1.0  # nothing is in flight while the block computes
    rate *= {1: COST.chunks_1, 2: COST.chunks_2, 4: COST.chunks_4}.get(config.columns, 1.0) if config.last else 1.0
    return LAUNCH + Cost(memory=memory_seconds(problem.bytes, device) / rate).slowed(
        idle=1 / occupied(blocks * config.lanes, COST.enough, device), tail=(1 + tail(blocks, config.blocks, device)) / 2)


@functools.cache
def kernel(config, dependent):
    """y and the statistics, a slice a cluster."""
    layout, Real = config.layout, f32
    vec, E, LANES_, CLUSTER, K = make_row(layout, config.lanes), layout.elements, config.lanes, config.cluster, config.groups
    REGISTERS_, SHARED, COLUMNS = config.registers, config.shared, config.columns
    LOG_COLUMNS, LOG_K, LOG_U = COLUMNS.bit_length() - 1, K.bit_length() - 1, config.per_group.bit_length() - 1
    TURN, LOG_TURN = LANES_ // COLUMNS, (LANES_ // COLUMNS).bit_length() - 1
    WARPS, CLUSTER_LOG, STRIDE = LANES_ // 32, CLUSTER.bit_length() - 1, 16 * LANES_
    ACROSS, TURNS = 32 // K, max(1, WARPS * K // 32)
    SCRATCH, SLOTS, WORDS, BLOCKS, WEIGHTS = 3 * WARPS * K, 3 * CLUSTER * K, layout.words, config.blocks, E if config.last else 1
    LAST, CHUNK = config.last, E if config.last else 0
    (inverse, inverse_root), join, hold = make_inverses(Real), make_join(Real, E), pin(WORDS)
    act = activation_function(config.activation, element(config.dtype).compute)
    SCALED, SHIFTED = config.gamma != "", config.beta != ""
    load_gamma, load_beta = element(config.gamma or config.dtype).load, element(config.beta or config.dtype).load
    GROUP_LANES = (K - 1) << LOG_U  # bits of a lane that say its group

    def make_sum(bits):
        """Device function: the sum over the lanes that differ in these bits alone."""
        @device_function
        def total(v):
            for s in range(5):
                if bits >> s & 1:
                    v += shuffle_xor(v, 1 << s)
            return v
        return total
    in_group, in_first = make_sum(31 & ~GROUP_LANES), make_sum(31 & ~(K - 1))

    @device_function
    def moments_of_warps(scratch, g, first):
        """Of a group, of all warps: in all lanes of the first warp that have this group."""
        n, total, squares = Real(0), Real(0), Real(0)
        for t in range(TURNS):
            w = first + t * ACROSS
            if w < WARPS:
                at = 3 * (w * K + g)
                n += scratch[at + 2]
                total += scratch[at] * scratch[at + 2]
        n = in_first(n)
        mean = in_first(total) * inverse(n) if n > Real(0) else Real(0)
        for t in range(TURNS):
            w = first + t * ACROSS
            if w < WARPS:
                at = 3 * (w * K + g)
                d = scratch[at] - mean
                squares += scratch[at + 1] + d * d * scratch[at + 2]
        return mean, in_first(squares), n

    @device_function
    def finish(some, a, scales, shifts):
        for e in range(E):
            some[e] = act((some[e] - a) * scales[e if LAST else 0] + shifts[e if LAST else 0])

    start = make_follow(dependent)

    @jit(launch_bounds=(LANES_, BLOCKS))
    def group_norm_fwd_slices(x, y, gamma, beta, mean, rstd, eps, pixels, share, slices, channels, count, image_strides, slice_strides,
                              pixel_strides, gamma_step, beta_step, mean_strides, rstd_strides):
        start()
        dynamic, scratch = cuda.shared.array(0, u32, alignment=16), cuda.shared.array(SCRATCH, Real)
        slots = cuda.shared.array(SLOTS, Real)
        words, some, part = cuda.local.array(WORDS, u32), cuda.local.array(E, Real), cuda.local.array(4, u32)
        scales, shifts = cuda.local.array(WEIGHTS, Real), cuda.local.array(WEIGHTS, Real)
        thread, rank = cuda.threadIdx.x, 0
        if CLUSTER > 1:
            rank = cluster_rank()
            cluster_arrive_relaxed()
        image, slice_ = divide_remainder(cuda.blockIdx.x >> CLUSTER_LOG, slices)
        column, first = thread & (COLUMNS - 1), thread >> LOG_COLUMNS
        own = max(min(share, pixels - rank * share), 0)
        begin = rank * share
        x = advance(x, image * image_strides.x + slice_ * slice_strides.x + begin * pixel_strides.x + column * E)
        y = advance(y, image * image_strides.y + slice_ * slice_strides.y + begin * pixel_strides.y + column * E)
        mine = max((own - first + (TURN - 1)) >> LOG_TURN, 0)
        # load all
        base = shared_address(dynamic, 0) + 16 * u32(thread) if SHARED else u32(0)
        if SHARED:
            for c in range(SHARED):
                p = first + (REGISTERS_ + c) * TURN
                copy_async16_if(base + u32(c * STRIDE), address(x, p * pixel_strides.x), i64(0), i32(p < own))
            commit_copies()
        for c in range(REGISTERS_):
            p = first + c * TURN
            vec.load_vector(words, c, advance(x, p * pixel_strides.x), 0, 1, p < own)
        # moments of the thread
        a, b = Real(0), Real(0)
        for c in range(REGISTERS_):
            if c < mine:
                vec.unpack(some, words, c)
                a, b = join(some, a, b, Real(E * c), Real(1) / Real(c + 1))
        if SHARED:
            vec.wait_overflow(0, 0)
            for c in range(mine - REGISTERS_):
                vec.load_overflow(part, base, c)
                vec.unpack(some, part, 0)
                before = c + REGISTERS_
                a, b = join(some, a, b, Real(E * before), inverse(Real(before + 1)))
        # of its group in the warp
        n, lane = Real(mine * E), thread & 31
        all_n = in_group(n)
        middle = in_group(a * n) * inverse(all_n) if all_n > Real(0) else Real(0)
        d = a - middle
        squares = in_group(b + d * d * n)
        g = (column >> LOG_U) & (K - 1)
        if lane & (31 - GROUP_LANES) == 0:
            at = 3 * ((thread >> 5) * K + g)
            scratch[at], scratch[at + 1], scratch[at + 2] = middle, squares, all_n
        if CLUSTER > 1:
            cluster_wait()
        cuda.syncthreads()
        # of the block, to all blocks
        if thread < 32:
            group, to_block = thread & (K - 1), thread >> LOG_K
            middle, squares, all_n = moments_of_warps(scratch, group, to_block)
            at = 3 * (rank * K + group)
            if to_block < CLUSTER:
                if CLUSTER > 1:
                    to = remote_address(shared_address(slots, at), u32(to_block))
                    store_remote_f32(to, middle)
                    store_remote_f32(to + 4, squares)
                    store_remote_f32(to + 8, all_n)
                else:
                    slots[at], slots[at + 1], slots[at + 2] = middle, squares, all_n
        if CLUSTER > 1:
            cluster_sync()
        else:
            cuda.syncthreads()
        # of the group
        share_of = inverse(Real(count))
        a, b = Real(0), Real(0)
        for k in range(CLUSTER):
            at = 3 * (k * K + g)
            a += slots[at] * (slots[at + 2] * share_of)
        for k in range(CLUSTER):
            at = 3 * (k * K + g)
            d = slots[at] - a
            b += slots[at + 1] + d * d * slots[at + 2]
        r = inverse_root(b * share_of + eps)
        if rank == 0 and first == 0 and column & ((1 << LOG_U) - 1) == 0:
            group = slice_ * K + g
            mean[image * mean_strides.image + group * mean_strides.group] = a
            rstd[image * rstd_strides.image + group * rstd_strides.group] = r
        hold(words)
        channel = slice_ * channels + column * CHUNK
        for e in range(WEIGHTS):
            scales[e] = r * load_gamma(gamma, (channel + e) * gamma_step) if SCALED else r
            shifts[e] = Real(load_beta(beta, (channel + e) * beta_step)) if SHIFTED else Real(0)
        for c in range(REGISTERS_):
            if c < mine:
                vec.unpack(some, words, c)
                finish(some, a, scales, shifts)
                vec.write_vector(advance(y, (first + c * TURN) * pixel_strides.y), 0, 1, words, c, some)
        if SHARED:
            for c in range(mine - REGISTERS_):
                vec.load_overflow(part, base, c)
                vec.unpack(some, part, 0)
                finish(some, a, scales, shifts)
                vec.write_vector(advance(y, (first + (c + REGISTERS_) * TURN) * pixel_strides.y), 0, 1, part, 0, some)
    return group_norm_fwd_slices


def _cut(problem, config):
    view = view_of(problem)
    wholes = [view.whole[name] for name in ("x", "y")]
    channels = config.groups * view.per
    steps = tuple(s[1] * channels for s in wholes)
    if config.last:
        return Slices(view.values, view.channels // channels, channels, steps, tuple(s[2] for s in wholes))
    return Slices(_pixels(problem), view.channels, 1, steps, (16 // problem.x.itemsize,) * 2)


def build(problem, device, config):
    """One launch."""
    view, cut = view_of(problem), _cut(problem, config)
    pointers = [problem.pointer(name) for name in ("x", "y", "gamma", "beta", "mean", "rstd")]
    arguments = (*pointers, Argument(problem.compute, "eps"), Argument("int32", cut.pixels),
                 Argument("int32", ceil_div(cut.pixels, config.cluster)), Argument("uint32x3", divisor(cut.slices)),
                 Argument("int32", cut.channels), Argument("int32", view.per * view.values),
                 array_strides(("x", "y"), (view.whole[name][0] for name in ("x", "y"))), array_strides(("x", "y"), cut.slice_steps),
                 array_strides(("x", "y"), cut.pixel_steps), *(Argument("int64", view.weight.get(name, 0)) for name in ("gamma", "beta")),
                 *statistic_strides(view, "mean", "rstd"))
    grid = view.images * cut.slices * config.cluster
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), (grid, 1, 1), (config.lanes, 1, 1), arguments, shared=config.shared_bytes,
                   cluster=(config.cluster, 1, 1), dependent=dependent),)


ALGORITHM = Algorithm(op="group_norm_fwd", name="slices", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, fits=fits, arch="sm_90+")
