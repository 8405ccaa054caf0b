"""Channels first: a warp or a block holds an image's group of channels in registers, so that it is read once.

The planes of neighbouring channels are one row of neighbouring elements. Each thread has the mean of its elements and their squared
distances to it, one reduction merges these, and y is written from the registers. A unit of 16 bytes may have elements of two channels: it
loads the weights of both. Rows beyond a block's registers are left to `planes`, which reads them twice.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, i32, i64, u32
from ..device.convert import element
from ..device.epilogue import Activation, activation_function
from ..device.index import ceil_div, divide, divide_remainder, divisor
from ..device.rows import Dim, RowForm, make_row, row_unit
from ..device.vec import advance, pin
from ..device.warp import broadcast
from ..dispatch import Algorithm
from ..host.launch import Argument, Launch
from ..transform._estimate import LAUNCH, moved_seconds, tail
from ._channel_view import MOST, View, view_of
from ._moments import make_inverses, make_meeting, make_merge
from ._planes import Planes, make_places

LANES, REGISTERS = (32, 64, 128, 256, 512, 1024), 7
RESIDENT = 1024  # threads of a multiprocessor


@dataclass(frozen=True)
class Config:
    """How rows are held; dtypes of gamma and beta, "" where there is none; whether a unit has elements of two channels."""
    planes: Planes
    gamma: str
    beta: str
    activation: Activation
    split: bool

    @property
    def blocks(self):
        """Blocks that a multiprocessor should hold: 64 registers a thread hold seven units, and the weights of one channel besides."""
        return max(1, (RESIDENT * 5 // 8 if self.split else RESIDENT) // self.planes.threads)

    def __str__(self):
        return str(self.planes)


def _row(problem):
    """(elements of a row, bytes of a unit, whether there are heads)."""
    view = view_of(problem)
    wholes = [view.whole[name] for name in ("x", "y")]
    length = view.per * view.values
    form = RowForm((Dim(length, (1, 1)),), (Dim(view.images, tuple(s[0] for s in wholes)),
                                            Dim(view.groups, tuple(s[1] * view.per for s in wholes))))
    return length, *row_unit(form, (problem.x, problem.y))


def _units(problem):
    length, unit, heads = _row(problem)
    per = unit // problem.x.itemsize
    return max(1, length // per if heads else ceil_div(length, per))


def _split(problem):
    """Whether a unit may have elements of two channels."""
    view, (_, unit, heads) = view_of(problem), _row(problem)
    return view.per > 1 and (heads or view.values % (unit // problem.x.itemsize) != 0)


def _most(problem, lanes=LANES[-1]):
    return REGISTERS // 2 if problem.compute == "float64" or lanes == LANES[-1] and _split(problem) else REGISTERS


def supports(problem):
    """Groups of adjoining planes that a block's registers hold."""
    if not problem.x.size:
        return "x has no elements"
    view = view_of(problem)
    if not isinstance(view, View):
        return view
    for name, (_, channel, value) in view.whole.items():
        if value != 1 and view.values > 1 or channel != view.values and view.per > 1:
            return f"values of a channel are {value} elements apart in {name}, channels {channel}; expected 1 and {view.values}"
    most = max(lanes * _most(problem, lanes) for lanes in LANES)
    if _units(problem) > most:
        return f"groups of {_row(problem)[0]} elements are {_units(problem)} units of {_row(problem)[1]} bytes; a block holds {most}"
    if view.values < _row(problem)[1] // problem.x.itemsize and view.per > 1:
        return f"planes of {view.values} elements; expected those of a unit at least"
    return None if view.images * view.groups < MOST else f"{view.images * view.groups} groups; expected fewer than {MOST}"


def configs(problem, device):
    """The groups of threads that hold a row and of which not half are idle."""
    (_, unit, heads), units, split = _row(problem), _units(problem), _split(problem)
    dtypes = [problem.dtype_of(name) for name in ("gamma", "beta")]
    return [Config(Planes(problem.dtype, unit, heads, lanes, ceil_div(units, lanes)), *dtypes, problem.activation, split) for lanes in LANES
            if ceil_div(units, lanes) <= _most(problem, lanes) and (lanes == LANES[0] or units > lanes // 2)]


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Bytes at the rate that those under way sustain; the grid's last blocks."""
    planes, (length, unit, _) = config.planes, _row(problem)
    rows = view_of(problem).images * view_of(problem).groups
    size = problem.x.itemsize
    fill = min(1.0, length * size / (planes.lanes * planes.registers * unit))
    flight = planes.registers * unit * planes.threads * config.blocks * fill
    rate = min(1.0, flight / 100e3) ** 0.5 * (1.0 if unit == 16 else min(1.0, size / 5)) * (0.9 if config.split else 1.0)
    blocks = ceil_div(rows, planes.groups)
    share = min(1.0, blocks * planes.threads / (512 * device.sms))
    return LAUNCH + moved_seconds(problem.bytes, device) / (0.92 * rate * share) * tail(blocks, config.blocks, device)


@functools.cache
def kernel(config):
    """y and the statistics, a row a group of threads."""
    planes = config.planes
    held, places = planes.held, make_places(planes)
    row_of, act = make_row(held), activation_function(config.activation, element(planes.dtype).compute)
    span, load, load_rest, unpack, pack, store, store_rest = row_of[:7]
    Real, E, WORDS, REST, SINGLES, REGISTERS, LANES = (held.real, held.elements, held.words, held.rest, held.singles, planes.registers,
                                                       planes.lanes)
    meet, (inverse, inverse_root), SCRATCH = make_meeting(make_merge(Real), LANES), make_inverses(Real), max(1, 3 * LANES // 32)
    hold, BLOCK, BLOCKS, SPLIT = pin(WORDS), planes.threads, config.blocks, config.split
    SCALED, SHIFTED = config.gamma != "", config.beta != ""
    load_gamma, load_beta = element(config.gamma or planes.dtype).load, element(config.beta or planes.dtype).load

    @cuda.jit(launch_bounds=(BLOCK, BLOCKS))
    def group_norm_fwd_block(x, y, gamma, beta, mean, rstd, eps, rows, one, groups, length, values, per, images, steps, gamma_step,
                             beta_step, mean_steps, rstd_steps):
        scratch = cuda.shared.array(SCRATCH, Real)
        words, some, rest = cuda.local.array(WORDS, u32), cuda.local.array(E, Real), cuda.local.array(REST, Real)
        image, group, _, size, lane = places(rows, one, groups, length, length)
        x = advance(x, i64(i64(image) * images[0] + i64(group) * steps[0]))
        y = advance(y, i64(i64(image) * images[1] + i64(group) * steps[1]))
        head, units = span(x, size)
        load(words, x, head, units, lane, i64(1))
        load_rest(rest, x, head, units, size, lane)
        a, n = Real(0), Real(0)
        for c in range(REGISTERS):
            unpack(some, words, c)
            for e in range(E):
                a = Real(a + some[e])
            if i32(lane + c * LANES) < units:
                n = Real(n + Real(E))
        for k in range(SINGLES):
            j = i32(lane + k * LANES)
            a = Real(a + rest[k])
            if (j if j < head else i32(j + units * E)) < size:
                n = Real(n + Real(1))
        a = Real(a * inverse(n)) if n > Real(0) else Real(0)
        b = Real(0)
        hold(words)
        for c in range(REGISTERS):
            if i32(lane + c * LANES) < units:
                unpack(some, words, c)
                for e in range(E):
                    d = Real(some[e] - a)
                    b = Real(b + d * d)
        for k in range(SINGLES):
            j = i32(lane + k * LANES)
            if (j if j < head else i32(j + units * E)) < size:
                d = Real(rest[k] - a)
                b = Real(b + d * d)
        a, b, n = meet(a, b, n, scratch)
        if LANES > 32:  # the first thread alone has merged the warps
            if lane == 0:
                scratch[0] = a
                scratch[1] = b
            cuda.syncthreads()
            a, b = scratch[0], scratch[1]
        else:  # lanes have rounded in orders of their own
            a, b = broadcast(a, i32(0)), broadcast(b, i32(0))
        r = inverse_root(Real(Real(b * inverse(Real(length))) + eps))
        if lane == 0 and size > 0:
            mean[i64(i64(image) * mean_steps[0] + i64(group) * mean_steps[1])] = a
            rstd[i64(i64(image) * rstd_steps[0] + i64(group) * rstd_steps[1])] = r
        hold(words)
        first = i32(group * per)
        for c in range(REGISTERS):
            i = i32(lane + c * LANES)
            if i < units:
                unpack(some, words, c)
                channel, place = divide_remainder(i32(head + i * E), values)
                channel = i32(first + channel)
                left = i32(values[0]) - place
                scale, shift, scale2, shift2 = r, Real(0), r, Real(0)
                if SPLIT:
                    other = i32(channel + 1) if left < E else channel
                    if SCALED:
                        scale2 = Real(r * load_gamma(gamma, i64(i64(other) * gamma_step)))
                    if SHIFTED:
                        shift2 = Real(load_beta(beta, i64(i64(other) * beta_step)))
                if SCALED:
                    scale = Real(r * load_gamma(gamma, i64(i64(channel) * gamma_step)))
                if SHIFTED:
                    shift = Real(load_beta(beta, i64(i64(channel) * beta_step)))
                for e in range(E):
                    if SPLIT:
                        mine = e < left
                        some[e] = act(Real(Real(some[e] - a) * (scale if mine else scale2) + (shift if mine else shift2)))
                    else:
                        some[e] = act(Real(Real(some[e] - a) * scale + shift))
                pack(words, c, some)
                store(y, words, c, head, units, lane, i64(1))
        for k in range(SINGLES):
            j = i32(lane + k * LANES)
            i = j if j < head else i32(j + units * E)
            if i < size:
                channel = i32(first + divide(i, values))
                value = Real(Real(rest[k] - a) * r)
                if SCALED:
                    value = Real(value * load_gamma(gamma, i64(i64(channel) * gamma_step)))
                if SHIFTED:
                    value = Real(value + load_beta(beta, i64(i64(channel) * beta_step)))
                rest[k] = act(value)
        store_rest(y, rest, head, units, size, lane)
    return group_norm_fwd_block


def build(problem, device, config):
    """One launch."""
    view, length = view_of(problem), _row(problem)[0]
    rows = view.images * view.groups
    wholes = [view.whole[name] for name in ("x", "y")]
    pointers = [problem.pointer(name) for name in ("x", "y", "gamma", "beta", "mean", "rstd")]
    arguments = (*pointers, Argument(problem.compute, "eps"), Argument("int32", rows), Argument("uint32x3", divisor(1)),
                 Argument("uint32x3", divisor(view.groups)), Argument("int32", length), Argument("uint32x3", divisor(view.values)),
                 Argument("int32", view.per), Argument("int64x2", tuple(s[0] for s in wholes)),
                 Argument("int64x2", tuple(s[1] * view.per for s in wholes)),
                 *(Argument("int64", view.weight.get(name, 0)) for name in ("gamma", "beta")),
                 *(Argument("int64x2", view.statistic[name]) for name in ("mean", "rstd")))
    return (Launch(kernel(config), (ceil_div(rows, config.planes.groups), 1, 1), (config.planes.threads, 1, 1), arguments),)


ALGORITHM = Algorithm(op="group_norm_fwd", name="block", supports=supports, workspace=workspace, estimate=estimate, build=build,
                      configs=configs)
