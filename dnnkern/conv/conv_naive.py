"""One thread an element of the result, straight from the definition, in all three directions.

The thread of y[n, k, o, p, q] sums x times w over the taps and the channels of k's group; that of x[n, c, d, h, w] sums y times w over
the taps whose window position exists, that is, where the stride divides ``h + padding - tap * dilation``, and over the filters of c's
group; that of w[k, c, t, r, s] sums x times y over images and window positions. Taps that read the padding are left out. Neighbouring
threads have neighbouring elements of the result in memory. Arrays may have any strides, nothing has to be aligned or divisible, offsets
have 64 bits.

It reads two elements a multiply-add from the caches, and is the ground the other algorithms stand on: always applicable, deterministic,
easy to check. Best for results of a few thousand elements.
"""
import functools
from dataclasses import dataclass

from ..device import cuda, device_function, f32, f64, i32, i64, jit
from ..device.convert import element
from ..device.epilogue import EpilogueSpec, make_epilogue
from ..device.index import ceil_div
from ..device.vec import advance
from ..dispatch import Algorithm
from ..host.launch import Argument, Launch


@dataclass(frozen=True)
class Config:
    """Direction, element types of the two operands, whether taps are read backwards, order of the result in memory, epilogue."""
    op: str
    dtype_a: str
    dtype_b: str
    flip: int
    channels_last: int
    epilogue: EpilogueSpec
    threads: int = 256


def supports(problem):
    """Everything."""
    return None


def workspace(problem, device, config):
    """None."""
    return 0


def estimate(problem, device, config):
    """Two loads a multiply-add, served by the L1 at about 16 bytes a clock and multiprocessor for a warp's mix of broadcast and row."""
    waves = ceil_div(problem.output.size, 1024 * device.sms)
    # latency of a step's loads: four channels are in flight, window positions one at a time
    chain = problem.gemm.k * (400 if problem.op == "conv_bwd_filter" else 100) / device.clock_hz
    traffic = problem.flops * problem.x.itemsize / (16 * device.sms * device.clock_hz)
    return 4e-6 + max(waves * chain, traffic, problem.bytes / device.bandwidth)


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
        rest = i64(i // size)
        return rest, i64(i - rest * size)

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


# NOTE: two blocks a multiprocessor in the launch bounds below: left alone ptxas allots 64 registers and spills.

@functools.cache
def kernel(config):
    """The kernel of `config.op`.

    `sizes` are N, C, K, channels and filters a group, image, filter, result; `window` stride, padding before and dilation along d, h, w;
    `strides` those of x, w, y, the result and the residual.
    """
    return {"conv_fwd": _forward, "conv_bwd_data": _backward_data, "conv_bwd_filter": _backward_filter}[config.op](config)


def _forward(config):
    THREADS, flip = config.threads, config.flip
    Total, load_x, load_w, position = _parts(config)
    epilogue = make_epilogue(config.epilogue)

    @jit(launch_bounds=(THREADS, 2))
    def conv_fwd_naive(x, w, y, sizes, window, strides, outputs, alpha, beta, bias, bias_stride, prior, row, column, residual, residual_row,
                       residual_column):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < outputs:
            N, C, K, CG, KG, D, H, W, T, R, S, O, P, Q = sizes
            sd, sh, sw, pd, ph, pw, dd, dh, dw = window
            n, k, o, p, q = position(i, K, O, P, Q)
            first = i64(i64(k // KG) * CG)
            acc = Total(0)
            for t in range(T):
                d = i64(o * sd - pd + t * dd)
                for r in range(R):
                    h = i64(p * sh - ph + r * dh)
                    for s in range(S):
                        v = i64(q * sw - pw + s * dw)
                        if 0 <= d and d < D and 0 <= h and h < H and 0 <= v and v < W:
                            x_at = i64(n * strides[0] + first * strides[1] + d * strides[2] + h * strides[3] + v * strides[4])
                            w_at = i64(k * strides[5])
                            if flip:
                                w_at = i64(w_at + (T - 1 - t) * strides[7] + (R - 1 - r) * strides[8] + (S - 1 - s) * strides[9])
                            else:
                                w_at = i64(w_at + t * strides[7] + r * strides[8] + s * strides[9])
                            for c in range(CG):
                                acc = Total(acc + load_x(x, i64(x_at + c * strides[1])) * load_w(w, i64(w_at + c * strides[6])))
            at = i64(n * strides[10] + o * strides[12] + p * strides[13] + q * strides[14])
            residual_at = i64(n * strides[15] + o * strides[17] + p * strides[18] + q * strides[19])
            e = (alpha, beta, bias, bias_stride, advance(prior, at), row, column, advance(residual, residual_at), residual_row,
                 residual_column)
            y[i64(at + k * strides[11])] = epilogue(acc, i32(0), k, e)
    return conv_fwd_naive


def _backward_data(config):
    THREADS, flip = config.threads, config.flip
    Total, load_y, load_w, position = _parts(config)
    epilogue = make_epilogue(config.epilogue)

    @jit(launch_bounds=(THREADS, 2))
    def conv_bwd_data_naive(x, w, y, sizes, window, strides, outputs, alpha, beta, bias, bias_stride, prior, row, column, residual,
                            residual_row, residual_column):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < outputs:
            N, C, K, CG, KG, D, H, W, T, R, S, O, P, Q = sizes
            sd, sh, sw, pd, ph, pw, dd, dh, dw = window
            n, c, d, h, v = position(i, C, D, H, W)
            group = i64(c // CG)
            first, c_in = i64(group * KG), i64(c - group * CG)
            acc = Total(0)
            for t in range(T):
                o = i64(d + pd - t * dd)
                for r in range(R):
                    p = i64(h + ph - r * dh)
                    for s in range(S):
                        q = i64(v + pw - s * dw)
                        if o >= 0 and p >= 0 and q >= 0 and o % sd == 0 and p % sh == 0 and q % sw == 0:
                            oo, pp, qq = i64(o // sd), i64(p // sh), i64(q // sw)
                            if oo < O and pp < P and qq < Q:
                                y_at = i64(n * strides[10] + first * strides[11] + oo * strides[12] + pp * strides[13] + qq * strides[14])
                                w_at = i64(first * strides[5] + c_in * strides[6])
                                if flip:
                                    w_at = i64(w_at + (T - 1 - t) * strides[7] + (R - 1 - r) * strides[8] + (S - 1 - s) * strides[9])
                                else:
                                    w_at = i64(w_at + t * strides[7] + r * strides[8] + s * strides[9])
                                for k in range(KG):
                                    acc = Total(acc + load_y(y, i64(y_at + k * strides[11])) * load_w(w, i64(w_at + k * strides[5])))
            at = i64(n * strides[0] + d * strides[2] + h * strides[3] + v * strides[4])
            residual_at = i64(n * strides[15] + d * strides[17] + h * strides[18] + v * strides[19])
            e = (alpha, beta, bias, bias_stride, advance(prior, at), row, column, advance(residual, residual_at), residual_row,
                 residual_column)
            x[i64(at + c * strides[1])] = epilogue(acc, i32(0), c, e)
    return conv_bwd_data_naive


def _backward_filter(config):
    THREADS, flip = config.threads, config.flip
    Total, load_x, load_y, position = _parts(config)
    epilogue = make_epilogue(config.epilogue)

    @jit(launch_bounds=(THREADS, 2))
    def conv_bwd_filter_naive(x, w, y, sizes, window, strides, outputs, alpha, beta, bias, bias_stride, prior, row, column, residual,
                              residual_row, residual_column):
        i = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if i < outputs:
            N, C, K, CG, KG, D, H, W, T, R, S, O, P, Q = sizes
            sd, sh, sw, pd, ph, pw, dd, dh, dw = window
            k, c, t, r, s = position(i, CG, T, R, S)
            at = i64(k * strides[5] + c * strides[6] + t * strides[7] + r * strides[8] + s * strides[9])
            if flip:
                t, r, s = i64(T - 1 - t), i64(R - 1 - r), i64(S - 1 - s)
            channel = i64(i64(k // KG) * CG + c)
            acc = Total(0)
            for n in range(N):
                x_image, y_image = i64(n * strides[0] + channel * strides[1]), i64(n * strides[10] + k * strides[11])
                for o in range(O):
                    d = i64(o * sd - pd + t * dd)
                    for p in range(P):
                        h = i64(p * sh - ph + r * dh)
                        if 0 <= d and d < D and 0 <= h and h < H:
                            x_row = i64(x_image + d * strides[2] + h * strides[3])
                            y_row = i64(y_image + o * strides[12] + p * strides[13])
                            # a sum for each row: the total of all pixels would lose more to rounding
                            part = Total(0)
                            for q in range(Q):
                                v = i64(q * sw - pw + s * dw)
                                if 0 <= v and v < W:
                                    part = Total(part + load_x(x, i64(x_row + v * strides[4])) * load_y(y, i64(y_row + q * strides[14])))
                            acc = Total(acc + part)
            e = (alpha, beta, bias, bias_stride, advance(prior, at), row, column, residual, residual_row, residual_column)
            w[at] = epilogue(acc, i32(0), i32(0), e)
    return conv_bwd_filter_naive


def build(problem, device, config):
    """One launch, 256 elements of the result a block."""
    p, outputs = problem, problem.output.size
    operands = {"conv_fwd": (p.x, p.w), "conv_bwd_data": (p.y, p.w), "conv_bwd_filter": (p.x, p.y)}[p.op]
    config = Config(p.op, *(t.dtype for t in operands), int(p.flip), int(p.layout == "NHWC"), p.epilogue)
    sizes = (p.n, p.c, p.k, p.c_group, p.k_group, *p.image, *p.filter, *p.out)
    window = (*p.strides, *p.pads_before, *p.dilations)
    strides = (*p.x_strides, *p.w_strides, *p.y_strides, *p.residual_strides)
    arguments = (p.pointer("x"), p.pointer("w"), p.pointer("y"), Argument("int64x14", sizes), Argument("int64x9", window),
                 Argument("int64x20", strides), Argument("int64", outputs),
                 *p.epilogue_arguments((0, p.output_strides[1]), (0, p.residual_strides[1])))
    return (Launch(kernel(config), (ceil_div(outputs, config.threads), 1, 1), (config.threads, 1, 1), arguments),)


ALGORITHMS = tuple(Algorithm(op=op, name="naive", supports=supports, workspace=workspace, estimate=estimate, build=build)
                   for op in ("conv_fwd", "conv_bwd_data", "conv_bwd_filter"))
