"""Channels first: a warp or a block holds an image's group of channels in registers, so that it is read once.

The planes of neighbouring channels are one row of neighbouring elements. Each thread has the mean of its elements and their squared
distances to it, one reduction merges these, and y is written from the registers. A vector of 16 bytes may have elements of two channels: it
loads the weights of both. Rows beyond a block's registers are left to `shared`, which holds a part in shared memory with the kernel here,
or to `planes`, which reads them twice.
"""
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..device import cuda, device_function, i32, jit, u32
from ..device.convert import element
from ..device.epilogue import Activation, activation_function
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.rows import Dim, RowLayout, RowForm, make_row, row_vector
from ..device.unroll import unrolled
from ..device.vec import advance, pin, shared_address
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, Cost, flight_rate, memory_seconds, narrow_rate, occupied, tail
from ..host.launch import Argument, Launch
from ._channel_program import make_functions
from ._channel_view import MOST, View, array_strides, program_arguments, statistic_strides, view_of
from ._moments import make_block_pool, make_inverses, make_join, make_merge, make_pool
from .planes.kernel import Planes, make_position

if TYPE_CHECKING:
    from ..device.program import Program

COST = constants("norm/group")

LANES, REGISTERS = (32, 64, 128, 256, 512, 1024), 7
RESIDENT = 1024  # threads of a multiprocessor
SHARED, MOST_SHARED = (64, 128, 256, 512), 24  # threads with a part in shared memory, vectors of each there at most
SHARED_BYTES = 90 * 1024  # of it that every device from sm_80 on has for a block


@dataclass(frozen=True)
class Config:
    """How a row is held; dtypes of gamma and beta, "" where there is none; whether a vector has elements of two channels; vectors in shared
    memory, per thread; bytes of it that a multiprocessor has; what becomes of each element after the activation, and along how
    many dimensions of values its operands have strides."""
    planes: Planes
    gamma: str
    beta: str
    activation: Activation
    split: bool
    shared: int = 0
    shared_per_sm: int = 0
    program: "Program | None" = None
    pixels: int = 0

    @property
    def layout(self):
        planes = self.planes
        return RowLayout(planes.dtype, planes.vector_bytes, planes.lanes, planes.registers, self.shared, planes.unaligned,
                         result=planes.result)

    @property
    def shared_bytes(self):
        return 16 * self.shared * self.planes.threads

    @property
    def blocks(self):
        """Blocks that a multiprocessor should hold: 64 registers per thread hold seven vectors, and the weights of one channel besides;
        no program."""
        threads = RESIDENT // 2 if self.program else RESIDENT * 5 // 8 if self.split else RESIDENT
        return max(1, min(threads // self.planes.threads, self.shared_per_sm // (self.shared_bytes + 2048) if self.shared else RESIDENT))

    def __str__(self):
        return str(self.planes).replace(" x ", f" + {self.shared} x ", 1) if self.shared else str(self.planes)


def _row(problem):
    """(elements of a row, bytes of a vector, whether there are unaligned edges)."""
    view = view_of(problem)
    wholes = [view.whole[name] for name in ("x", "y")]
    length = view.per * view.values
    form = RowForm((Dim(length, (1, 1)),), (Dim(view.images, tuple(s[0] for s in wholes)),
                                            Dim(view.groups, tuple(s[1] * view.per for s in wholes))))
    return length, *row_vector(form, (problem.x, problem.y))


def _units(problem):
    length, vector_bytes, unaligned = _row(problem)
    per = vector_bytes // problem.x.itemsize
    return max(1, length // per if unaligned else ceil_div(length, per))


def _split(problem):
    """Whether a vector may have elements of two channels."""
    view, (_, vector_bytes, unaligned) = view_of(problem), _row(problem)
    return view.per > 1 and (unaligned or view.values % (vector_bytes // problem.x.itemsize) != 0)


def _most(problem, lanes=LANES[-1]):
    narrow = lanes == LANES[-1] and (problem.program is not None or _split(problem))  # 64 registers
    return REGISTERS // 2 if problem.compute == "float64" or narrow else REGISTERS


def refusal(problem):
    """What keeps rows of adjoining planes from being held; None if nothing does."""
    if not problem.x.size:
        return "x has no elements"
    view = view_of(problem)
    if not isinstance(view, View):
        return view
    for name, (_, channel, value) in view.whole.items():
        if value != 1 and view.values > 1 or channel != view.values and view.per > 1:
            return f"values of a channel are {value} elements apart in {name}, channels {channel}; expected 1 and {view.values}"
    if view.values < _row(problem)[1] // problem.x.itemsize and view.per > 1:
        return f"planes of {view.values} elements; expected those of a vector at least"
    return None if view.images * view.groups < MOST else f"{view.images * view.groups} groups; expected fewer than {MOST}"


def supports(problem):
    """Groups of adjoining planes that a block's registers hold."""
    if (reason := refusal(problem)) is not None:
        return reason
    count, most = _units(problem), max(lanes * _most(problem, lanes) for lanes in LANES)
    return None if count <= most else f"groups of {count} vectors of {_row(problem)[1]} bytes; a block's registers hold {most}"


def _config(problem, lanes, registers, shared=0, shared_per_sm=0):
    (_, vector_bytes, unaligned), dtypes = _row(problem), [problem.dtype_of(name) for name in ("gamma", "beta")]
    planes = Planes(problem.dtype, vector_bytes, unaligned, lanes, registers, result=problem.result)
    return Config(planes, *dtypes, problem.activation, _split(problem), shared, shared_per_sm, problem.program,
                  len(view_of(problem).pixels))


def configs(problem, device):
    """The groups of threads that hold a row and of which not half are idle."""
    vectors = _units(problem)
    return [_config(problem, lanes, ceil_div(vectors, lanes)) for lanes in LANES
            if ceil_div(vectors, lanes) <= _most(problem, lanes) and (lanes == LANES[0] or vectors > lanes // 2)]


def shared_supports(problem):
    """Groups of which a block has a part in shared memory."""
    if (reason := refusal(problem)) is not None:
        return reason
    (_, vector_bytes, _), count = _row(problem), _units(problem)
    if vector_bytes != 16:
        return f"groups are read {vector_bytes} bytes at a time; copies to shared memory take 16"
    least, most = SHARED[0] * _most(problem, SHARED[0]), max(lanes * (_most(problem, lanes) + _room(lanes)) for lanes in SHARED)
    return None if least < count <= most else f"groups of {count} 16-byte vectors; a block holds more than {least} and up to {most}"


def _room(lanes):
    return min(MOST_SHARED, SHARED_BYTES // (16 * lanes))


def shared_configs(problem, device):
    """Numbers of threads whose registers do not hold all, and whose shared memory holds the rest."""
    vectors, found = _units(problem), []
    for lanes in SHARED:
        shared = ceil_div(vectors, lanes) - _most(problem, lanes)
        if 0 < shared <= _room(lanes):
            found.append(_config(problem, lanes, _most(problem, lanes), shared, device.shared_per_sm))
    return found


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Bytes at the rate that those in flight sustain; the grid's last blocks."""
    planes, (length, vector_bytes, _) = config.planes, _row(problem)
    rows = view_of(problem).images * view_of(problem).groups
    size = problem.x.itemsize
    fill = min(1.0, length * size / (planes.lanes * (planes.registers + config.shared) * vector_bytes))
    flight = (planes.registers + config.shared) * vector_bytes * planes.threads * config.blocks * fill
    rate = flight_rate(flight, COST.in_flight) * narrow_rate(vector_bytes, size) * (COST.split if config.split else 1.0)
    rate *= COST.one_block if config.blocks == 1 else 1.0  # nothing is in flight while the block computes
    blocks = ceil_div(rows, planes.groups)
    return LAUNCH + Cost(memory=memory_seconds(problem.bytes, device) / (COST.rate * rate)).slowed(
        idle=1 / occupied(blocks * planes.threads, COST.enough, device), tail=tail(blocks, config.blocks, device))


@functools.cache
def kernel(config, dependent):
    """y and the statistics, a row a group of threads."""
    planes, layout = config.planes, config.layout
    vec, position = make_row(layout, planes.threads), make_position(planes)
    act = activation_function(config.activation, element(planes.dtype).compute)
    Real, E, WORDS, EDGE_SLOTS, EDGES = layout.real, layout.elements, layout.words, layout.edge_slots, layout.edges
    REGISTERS, LANES = planes.registers, planes.lanes
    LOG, PART, SHARED = LANES.bit_length() - 1, layout.vector_words, config.shared
    (inverse, inverse_root), merge, join = make_inverses(Real), make_merge(Real), make_join(Real, E)
    in_warp, in_block, SCRATCH = make_pool(Real, min(LANES, 32)), make_block_pool(Real, max(1, LANES // 32)), max(1, 3 * LANES // 32)
    hold, BLOCK, BLOCKS, SPLIT = pin(WORDS), planes.threads, config.blocks, config.split
    SCALED, SHIFTED = config.gamma != "", config.beta != ""
    load_gamma, load_beta = element(config.gamma or planes.dtype).load, element(config.beta or planes.dtype).load
    PROGRAM = config.program is not None
    function, _, of_values = make_functions(config.program, element(planes.dtype).compute, planes.result or planes.dtype, E, config.pixels)

    @device_function
    def of_two(e, s):
        """What becomes of an element of a vector that may have some of two channels."""
        some, image, pixel, left, channel, other, operands, extents = s
        mine = e < left
        some[e] = function(some[e], image, pixel + e if mine else e - left, channel if mine else other, operands, extents)
    of_both = unrolled(E, of_two)

    @device_function
    def finish(some, i, a, r, image, first, values, gamma, beta, gamma_step, beta_step, operands, extents):
        """The results of the elements from number i of the row on, in the same array."""
        channel, pixel = divide_remainder(i, values)
        channel = first + channel
        left = i32(values[0]) - pixel
        scale, shift, scale2, shift2 = r, Real(0), r, Real(0)
        if SPLIT:
            other = channel + 1 if left < E else channel
            if SCALED:
                scale2 = r * load_gamma(gamma, other * gamma_step)
            if SHIFTED:
                shift2 = Real(load_beta(beta, other * beta_step))
        if SCALED:
            scale = r * load_gamma(gamma, channel * gamma_step)
        if SHIFTED:
            shift = Real(load_beta(beta, channel * beta_step))
        for e in range(E):
            if SPLIT:
                mine = e < left
                some[e] = act((some[e] - a) * (scale if mine else scale2) + (shift if mine else shift2))
            else:
                some[e] = act((some[e] - a) * scale + shift)
        if PROGRAM:
            if SPLIT:
                of_both(0, (some, image, pixel, left, channel, channel + 1 if left < E else channel, operands, extents))
            else:
                of_values(0, (some, image, pixel, channel, operands, extents))

    @device_function
    def write(c, s):
        """y of a thread's vector c."""
        y, words, some, prologue, vectors, lane, a, r, image, first, values, gamma, beta, gamma_step, beta_step, operands, extents = s
        i = lane + c * LANES
        if i < vectors:
            vec.unpack(some, words, c)
            finish(some, prologue + i * E, a, r, image, first, values, gamma, beta, gamma_step, beta_step, operands, extents)
            vec.write(y, words, c, some, prologue, vectors, lane, 1)
    write_all = unrolled(REGISTERS, write)

    wait = make_follow(dependent)

    @jit(launch_bounds=(BLOCK, BLOCKS))
    def group_norm_fwd_block(x, y, gamma, beta, mean, rstd, eps, rows, one, groups, length, values, per, image_strides,
                             channel_strides, gamma_step, beta_step, mean_strides, rstd_strides, operands, extents):
        wait()
        dynamic, scratch = cuda.shared.array(0, u32, alignment=16), cuda.shared.array(SCRATCH, Real)
        words, some, edges = cuda.local.array(WORDS, u32), cuda.local.array(E, Real), cuda.local.array(EDGE_SLOTS, Real)
        part, base, count = cuda.local.array(PART, u32), u32(0), 0
        image, group, _, size, lane = position(rows, one, groups, length, length)
        x = advance(x, image * image_strides.x + group * channel_strides.x)
        y = advance(y, image * image_strides.y + group * channel_strides.y)
        prologue, vectors = vec.split(x, size)
        if SHARED:
            base = shared_address(dynamic, 0) + 16 * u32(cuda.threadIdx.x)
            vec.copy_overflow(base, x, prologue, vectors, lane)
        vec.load(words, x, prologue, vectors, lane, 1)
        vec.load_edges(edges, x, prologue, vectors, size, lane)
        a, b = Real(0), Real(0)
        mine = max((vectors - lane + (LANES - 1)) >> LOG, 0)
        for c in range(REGISTERS):
            if c < mine:
                vec.unpack(some, words, c)
                a, b = join(some, a, b, Real(E * c), Real(1) / Real(c + 1))
        if SHARED:
            count = vec.wait_overflow(vectors, lane)
            for c in range(count):
                vec.load_overflow(part, base, c)
                vec.unpack(some, part, 0)
                before = c + REGISTERS
                a, b = join(some, a, b, Real(E * before), inverse(Real(before + 1)))
        n = Real(mine * E)
        for k in range(EDGES):
            j = lane + k * LANES
            if (j if j < prologue else j + vectors * E) < size:
                a, b, n = merge(a, b, n, edges[k], Real(0), Real(1))
        a, b, n = in_warp(a, b, n)
        a, b, n = in_block(a, b, n, scratch)
        r = inverse_root(b * inverse(Real(length)) + eps)
        if lane == 0 and size > 0:
            mean[image * mean_strides.image + group * mean_strides.group] = a
            rstd[image * rstd_strides.image + group * rstd_strides.group] = r
        hold(words)
        first = group * per
        s = y, words, some, prologue, vectors, lane, a, r, image, first, values, gamma, beta, gamma_step, beta_step, operands, extents
        if PROGRAM:
            write_all(0, s)
        else:
            for c in range(REGISTERS):
                write(c, s)
        if SHARED:
            for c in range(count):
                vec.load_overflow(part, base, c)
                vec.unpack(some, part, 0)
                i = lane + (c + REGISTERS) * LANES
                finish(some, prologue + i * E, a, r, image, first, values, gamma, beta, gamma_step, beta_step, operands, extents)
                vec.write_overflow(y, part, c, some, prologue, vectors, lane)
        for k in range(EDGES):
            j = lane + k * LANES
            i = j if j < prologue else j + vectors * E
            if i < size:
                channel, pixel = divide_remainder(i, values)
                channel = first + channel
                value = (edges[k] - a) * r
                if SCALED:
                    value = value * load_gamma(gamma, channel * gamma_step)
                if SHIFTED:
                    value += load_beta(beta, channel * beta_step)
                edges[k] = act(value)
                if PROGRAM:
                    edges[k] = function(edges[k], image, pixel, channel, operands, extents)
        vec.write_edges(y, edges, prologue, vectors, size, lane)
    return group_norm_fwd_block


def build(problem, device, config):
    """One launch."""
    view, length = view_of(problem), _row(problem)[0]
    rows = view.images * view.groups
    wholes = [view.whole[name] for name in ("x", "y")]
    pointers = [problem.pointer(name) for name in ("x", "y", "gamma", "beta", "mean", "rstd")]
    arguments = (*pointers, Argument(problem.compute, "eps"), Argument("int32", rows), Argument("uint32x3", divisor(1)),
                 Argument("uint32x3", divisor(view.groups)), Argument("int32", length), Argument("uint32x3", divisor(view.values)),
                 Argument("int32", view.per), array_strides(("x", "y"), (s[0] for s in wholes)),
                 array_strides(("x", "y"), (s[1] * view.per for s in wholes)),
                 *(Argument("int64", view.weight.get(name, 0)) for name in ("gamma", "beta")),
                 *statistic_strides(view, "mean", "rstd"), *program_arguments(problem, view))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), (ceil_div(rows, config.planes.groups), 1, 1), (config.planes.threads, 1, 1), arguments,
                   shared=config.shared_bytes, dependent=dependent),)


ALGORITHM = Algorithm(op="group_norm_fwd", name="block", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs, programs=True)
