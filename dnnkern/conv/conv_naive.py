"""One thread per element of the result, from the definition, in all three directions.

    y[n, k, o, p, q]    sum of x * w over the taps and the channels of k's group
    x[n, c, d, h, w]    sum of y * w over the taps with an output position, and the filters of c's group; a tap has one where the
                        stride divides ``h + padding - tap * dilation``
    w[k, c, t, r, s]    sum of x * y over images and output positions

Taps that read the padding are skipped. Neighbouring threads have neighbouring elements of the result. Arrays may have arbitrary strides,
nothing has to be aligned or divisible, offsets have 64 bits.

It loads two elements per multiply-add from the caches. It supports everything, is deterministic and easy to check, so the other algorithms
are tested against it. Best for results of a few thousand elements.
"""
import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..device import cuda, device_function, f32, f64, i32, i64, jit
from ..device.convert import element
from ..device.epilogue import EpilogueSpec, ProgramParams, make_epilogue
from ..device.program_batches import make_moved
from ..device.index import ceil_div
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.constants import constants
from ..engine.cost import Cost, issue_seconds, overlap
from ..engine.strides import ImageStrides
from ..engine.programs import NOTHING, Steps, operands_argument
from ..engine.tile_states import reduces, single_states, states_argument, states_bytes, states_refusal, states_seconds, with_finish
from ..host.launch import Argument, Launch
from ._parameters import FilterStrides, OutputStrides
from ._states import states_of

if TYPE_CHECKING:
    from ..engine.prologues import Made

COST = constants("conv/naive")


@dataclass(frozen=True)
class Config:
    """Direction, element types of the two operands, whether taps are read backwards, order of the result in memory, epilogue, and what the
    image is made of."""
    op: str
    dtype_a: str
    dtype_b: str
    flip: int
    channels_last: int
    epilogue: EpilogueSpec
    made: "Made | None" = None
    threads: int = 256


class Sizes(NamedTuple):
    """Images, channels of x and of y, both of one group; extents of x, of the filter and of y."""
    n: i64
    c: i64
    k: i64
    c_group: i64
    k_group: i64
    d: i64
    h: i64
    w: i64
    t: i64
    r: i64
    s: i64
    o: i64
    p: i64
    q: i64


class Window(NamedTuple):
    """Stride, padding before and dilation along d, h, w."""
    stride_d: i64
    stride_h: i64
    stride_w: i64
    padding_d: i64
    padding_h: i64
    padding_w: i64
    dilation_d: i64
    dilation_h: i64
    dilation_w: i64


def supports(problem):
    """Everything but reductions of more elements than can be counted."""
    return states_refusal(states_of(problem), 1, 1)


def workspace(problem, device, config):
    """Partial reductions, of each element."""
    return states_bytes(states_of(problem), 1, 1)


def estimate(problem, device, config):
    """Two loads a multiply-add, served by the L1 at about 16 bytes a clock and multiprocessor for a warp's mix of broadcast and row; where
    a tap has few channels, its offsets take longer."""
    waves = ceil_div(problem.output.size, COST.resident * device.sms)
    # latency of a step's loads: four channels are in flight, window positions one at a time
    chain = problem.gemm.k * (COST.filter_chain if problem.op == "conv_bwd_filter" else COST.chain) / device.clock_hz
    traffic = problem.flops * problem.x.itemsize / (COST.l1 * device.sms * device.clock_hz)
    products = problem.flops / 2
    taps = products * problem.taps / max(problem.gemm.k, 1)
    issue = issue_seconds(taps, COST.tap, device) + issue_seconds(products, COST.channel, device)
    cost = Cost(launch=COST.start) + overlap(waits=waves * chain, l1=traffic, issue=issue, memory=problem.bytes / device.bandwidth)
    states = workspace(problem, device, config)
    return cost + states_seconds(states, device)


def _load_integer(p, i):
    return i32(p[i])


@functools.cache
def _parts(config):
    """Type of the sum, loads of both operands, and ``position(i, sizes)``: the five indices of the i-th element of the result."""
    integers = config.epilogue.accumulator == "int32"
    Total = {"int32": i32, "float64": f64, "float32": f32}[config.epilogue.accumulator]
    load_a, load_b = (device_function(_load_integer) if integers else element(d).load for d in (config.dtype_a, config.dtype_b))
    channels_last = config.channels_last

    @device_function
    def step(i, size):
        rest = i // size
        return rest, i - rest * size

    @device_function
    def position(i, channels, a, b, c):
        if channels_last:
            i, channel = step(i, channels)
        i, z = step(i, c)
        i, y = step(i, b)
        i, x = step(i, a)
        if not channels_last:
            i, channel = step(i, channels)
        return i, channel, x, y, z
    return Total, load_a, load_b, position


def _made_load(config):
    """(``of_pixel(operands, (n, d, h, w))``, ``load(x, i, 0, channel, of_pixel's result)``) of an image that is made; None without."""
    if config.made is None:
        return None, None
    from ..engine.prologue_loader import make_made_load  # programs are imported where there is one
    return make_moved(config.made.program, 4), make_made_load(config.made, config.epilogue.accumulator)


# NOTE: two blocks a multiprocessor in the launch bounds below: left alone ptxas allots 64 registers and spills.

@functools.cache
def kernel(config):
    """The kernel of `config.op`."""
    return {"conv_fwd": _forward, "conv_bwd_data": _backward_data, "conv_bwd_filter": _backward_filter}[config.op](config)


def _forward(config):
    THREADS, flip = config.threads, config.flip
    Total, load_x, load_w, position = _parts(config)
    epilogue, moved = make_epilogue(config.epilogue), make_moved(config.epilogue.program, 4)
    REDUCES, leave = reduces(config.epilogue), single_states(config.epilogue)
    MADE, (of_pixel, load_made) = config.made is not None, _made_load(config)

    @jit(launch_bounds=(THREADS, 2))
    def conv_fwd_naive(x, w, y, size, window, x_stride, w_stride, y_stride, residual_stride, outputs, alpha, beta, bias, bias_stride,
                       prior, row, column, residual, residual_row, residual_column, extras, operands, states):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < outputs:
            n, k, o, p, q = position(i, size.k, size.o, size.p, size.q)
            first = k // size.k_group * size.c_group
            acc = Total(0)
            for t in range(size.t):
                d = o * window.stride_d - window.padding_d + t * window.dilation_d
                for r in range(size.r):
                    h = p * window.stride_h - window.padding_h + r * window.dilation_h
                    for s in range(size.s):
                        v = q * window.stride_w - window.padding_w + s * window.dilation_w
                        if 0 <= d < size.d and 0 <= h < size.h and 0 <= v < size.w:
                            x_at = n * x_stride.n + first * x_stride.c + d * x_stride.d + h * x_stride.h + v * x_stride.w
                            w_at = k * w_stride.k
                            if flip:
                                w_at += (size.t - 1 - t) * w_stride.t + (size.r - 1 - r) * w_stride.r + (size.s - 1 - s) * w_stride.s
                            else:
                                w_at += t * w_stride.t + r * w_stride.r + s * w_stride.s
                            if MADE:
                                of_x = of_pixel(operands, (n, d, h, v))
                            for c in range(size.c_group):
                                if MADE:
                                    value = load_made(x, x_at + c * x_stride.c, 0, first + c, of_x)
                                else:
                                    value = load_x(x, x_at + c * x_stride.c)
                                acc += value * load_w(w, w_at + c * w_stride.c)
            at = n * y_stride.n + o * y_stride.o + p * y_stride.p + q * y_stride.q
            residual_at = n * residual_stride.n + o * residual_stride.o + p * residual_stride.p + q * residual_stride.q
            e = ProgramParams(alpha, beta, bias, bias_stride, advance(prior, at), row, column, advance(residual, residual_at),
                              residual_row, residual_column, moved(extras, (n, o, p, q)))
            if REDUCES:
                group, pixel = k // size.k_group, ((n * size.o + o) * size.p + p) * size.q + q
                leave(acc, 0, k, e, (pixel, k - group * size.k_group, group, size.k_group), states)
            y[at + k * y_stride.k] = epilogue(acc, 0, k, e)
    return conv_fwd_naive


def _backward_data(config):
    THREADS, flip = config.threads, config.flip
    Total, load_y, load_w, position = _parts(config)
    epilogue, moved = make_epilogue(config.epilogue), make_moved(config.epilogue.program, 4)
    REDUCES, leave = reduces(config.epilogue), single_states(config.epilogue)

    @jit(launch_bounds=(THREADS, 2))
    def conv_bwd_data_naive(x, w, y, size, window, x_stride, w_stride, y_stride, residual_stride, outputs, alpha, beta, bias,
                            bias_stride, prior, row, column, residual, residual_row, residual_column, extras, states):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < outputs:
            n, c, d, h, v = position(i, size.c, size.d, size.h, size.w)
            group = c // size.c_group
            first, c_in = group * size.k_group, c - group * size.c_group
            acc = Total(0)
            for t in range(size.t):
                o = d + window.padding_d - t * window.dilation_d
                for r in range(size.r):
                    p = h + window.padding_h - r * window.dilation_h
                    for s in range(size.s):
                        q = v + window.padding_w - s * window.dilation_w
                        if (o >= 0 and p >= 0 and q >= 0
                                and o % window.stride_d == 0 and p % window.stride_h == 0 and q % window.stride_w == 0):
                            oo, pp, qq = o // window.stride_d, p // window.stride_h, q // window.stride_w
                            if oo < size.o and pp < size.p and qq < size.q:
                                y_at = n * y_stride.n + first * y_stride.k + oo * y_stride.o + pp * y_stride.p + qq * y_stride.q
                                w_at = first * w_stride.k + c_in * w_stride.c
                                if flip:
                                    w_at += (size.t - 1 - t) * w_stride.t + (size.r - 1 - r) * w_stride.r + (size.s - 1 - s) * w_stride.s
                                else:
                                    w_at += t * w_stride.t + r * w_stride.r + s * w_stride.s
                                for k in range(size.k_group):
                                    acc += load_y(y, y_at + k * y_stride.k) * load_w(w, w_at + k * w_stride.k)
            at = n * x_stride.n + d * x_stride.d + h * x_stride.h + v * x_stride.w
            residual_at = n * residual_stride.n + d * residual_stride.d + h * residual_stride.h + v * residual_stride.w
            e = ProgramParams(alpha, beta, bias, bias_stride, advance(prior, at), row, column, advance(residual, residual_at),
                              residual_row, residual_column, moved(extras, (n, d, h, v)))
            if REDUCES:
                leave(acc, 0, c, e, (((n * size.d + d) * size.h + h) * size.w + v, c_in, group, size.c_group), states)
            x[at + c * x_stride.c] = epilogue(acc, 0, c, e)
    return conv_bwd_data_naive


def _backward_filter(config):
    THREADS, flip = config.threads, config.flip
    Total, load_x, load_y, position = _parts(config)
    epilogue, moved = make_epilogue(config.epilogue), make_moved(config.epilogue.program, 5)
    MADE, (of_pixel, load_made) = config.made is not None, _made_load(config)

    @jit(launch_bounds=(THREADS, 2))
    def conv_bwd_filter_naive(x, w, y, size, window, x_stride, w_stride, y_stride, residual_stride, outputs, alpha, beta, bias,
                              bias_stride, prior, row, column, residual, residual_row, residual_column, extras, operands):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < outputs:
            k, c, t, r, s = position(i, size.c_group, size.t, size.r, size.s)
            at, indices = k * w_stride.k + c * w_stride.c + t * w_stride.t + r * w_stride.r + s * w_stride.s, (k, c, t, r, s)
            if flip:
                t, r, s = size.t - 1 - t, size.r - 1 - r, size.s - 1 - s
            channel = k // size.k_group * size.c_group + c
            acc = Total(0)
            for n in range(size.n):
                x_image, y_image = n * x_stride.n + channel * x_stride.c, n * y_stride.n + k * y_stride.k
                for o in range(size.o):
                    d = o * window.stride_d - window.padding_d + t * window.dilation_d
                    for p in range(size.p):
                        h = p * window.stride_h - window.padding_h + r * window.dilation_h
                        if 0 <= d < size.d and 0 <= h < size.h:
                            x_row = x_image + d * x_stride.d + h * x_stride.h
                            y_row = y_image + o * y_stride.o + p * y_stride.p
                            # a sum for each row: the total of all pixels would lose more to rounding
                            part = Total(0)
                            for q in range(size.q):
                                v = q * window.stride_w - window.padding_w + s * window.dilation_w
                                if 0 <= v < size.w:
                                    if MADE:
                                        value = load_made(x, x_row + v * x_stride.w, 0, channel, of_pixel(operands, (n, d, h, v)))
                                    else:
                                        value = load_x(x, x_row + v * x_stride.w)
                                    part += value * load_y(y, y_row + q * y_stride.q)
                            acc += part
            e = ProgramParams(alpha, beta, bias, bias_stride, advance(prior, at), row, column, residual, residual_row, residual_column,
                              moved(extras, indices))
            w[at] = epilogue(acc, 0, 0, e)
    return conv_bwd_filter_naive


def _operands(p):
    """The program's operands: they are moved to each row, or to each element of a filter."""
    if p.op == "conv_bwd_filter":
        return operands_argument(p.epilogue, [Steps(0, 0, strides) for strides in p.extra_strides], 1, 1, 5)
    columns = p.k if p.op == "conv_fwd" else p.c
    return operands_argument(p.epilogue, [Steps(0, strides[1], (strides[0], *strides[2:])) for strides in p.extra_strides], 1, columns, 4)


def _making(p):
    """What the image is made of, and the kernel parameter with its program's operands, which are moved to each pixel."""
    if p.prologue_a is None:
        return None, (NOTHING,)
    from ..engine.prologues import making_by
    making = making_by(p, "a", [Steps(0, strides[1], (strides[0], *strides[2:])) for strides in p.prologue_strides])
    return making.made, (making.argument(4),)


def build(problem, device, config):
    """One launch, 256 elements of the result a block."""
    p, outputs = problem, problem.output.size
    operands = {"conv_fwd": (p.x, p.w), "conv_bwd_data": (p.y, p.w), "conv_bwd_filter": (p.x, p.y)}[p.op]
    made, made_arguments = (None, ()) if p.op == "conv_bwd_data" else _making(p)
    config = Config(p.op, *(t.dtype for t in operands), int(p.flip), int(p.layout == "NHWC"), p.epilogue, made)
    sizes = Sizes(p.n, p.c, p.k, p.c_group, p.k_group, *p.image, *p.filter, *p.out)
    window = Window(*p.strides, *p.pads_before, *p.dilations)
    residual = (ImageStrides if p.op == "conv_bwd_data" else OutputStrides)(*p.residual_strides)
    structures = sizes, window, ImageStrides(*p.x_strides), FilterStrides(*p.w_strides), OutputStrides(*p.y_strides), residual
    states = () if p.op == "conv_bwd_filter" else (states_argument(states_of(p), 1, 1),)
    arguments = (p.pointer("x"), p.pointer("w"), p.pointer("y"), *(Argument(type(v), v) for v in structures), Argument("int64", outputs),
                 *p.epilogue_arguments((0, p.output_strides[1]), (0, p.residual_strides[1])), _operands(p),
                 *made_arguments, *states)
    launch = Launch(kernel(config), (ceil_div(outputs, config.threads), 1, 1), (config.threads, 1, 1), arguments)
    return with_finish((launch,), states_of(p), 1, 1)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", programs=True, prologues=op != "conv_bwd_data", reductions=op != "conv_bwd_filter",
                             supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("conv_fwd", "conv_bwd_data", "conv_bwd_filter"))
