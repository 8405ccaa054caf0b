"""How the sums of gathered products leave: to the output through the epilogue, or to a workspace that a second launch adds up.

The workspace holds [range][product][row][column], rows padded to 16 bytes, of the accumulator's type; ranges are added in a fixed order.
"""
import functools
from dataclasses import dataclass, replace

from ...device import cuda, device_function, f32, f64, i32, i64, jit
from ...device.convert import element
from ...device.epilogue import EpilogueSpec
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.vec import advance, store2, store4
from ...engine.split_k import THREADS, groups_for, make_add_ranges
from ...engine.stores import make_group_store
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from . import make_gather
from .plan import linear


@dataclass(frozen=True)
class Output:
    """Where results go: direction, order of taps and channels, classes; `swap`: rows are channels and columns pixels; elements of one
    store; epilogue, in terms of rows and columns."""
    op: str
    channel_inner: bool
    has_classes: bool
    swap: bool
    store: int
    epilogue: EpilogueSpec


def output_of(view, swap, limit):
    """The `Output` of a view, with stores of at most `limit` elements."""
    p = view.problem
    epilogue = replace(p.epilogue, bias="row") if swap and p.epilogue.bias else p.epilogue
    return Output(p.op, view.channel_inner, view.has_classes, swap, _width(view, swap, limit), epilogue)


def _width(view, swap, limit):
    """Neighbouring columns, a power of two, that one store can take wherever a multiple of them begins."""
    p, (outer, channel, *spatial) = view.problem, view.problem.output_strides
    per_group = p.c_group if p.op == "conv_bwd_data" else p.k_group
    group = per_group * (outer if p.op == "conv_bwd_filter" else channel)
    if p.op == "conv_bwd_filter":
        taps = [(size, -s if p.flip else s) for size, s in zip(p.filter[::-1], spatial[::-1])]
        channels = [(p.c_group, channel)]
        inner = channels + taps if view.channel_inner else taps + channels
        others = [(p.k_group, outer), (p.groups, group)]
    elif swap:
        inner = [(a.pixels, s * (0 if view.has_classes else 1)) for a, s in zip(view.axes[::-1], spatial[::-1])] + [(p.n, outer)]
        others = [(per_group, channel), (p.groups, group)]
    else:
        extents = p.image if p.op == "conv_bwd_data" else p.out
        inner, others = [(per_group, channel)], [(p.n, outer), *zip(extents, spatial), (p.groups, group)]
    run, strides = linear(inner)
    strides += [s for size, s in others if size > 1]
    width, t = min(limit, 16 // p.output.itemsize), p.output
    if swap and p.residual and p.residual_strides != p.output_strides:
        return 1
    while width > 1 and (run % width or t.alignment % (width * t.itemsize) or any(s % width for s in strides)):
        width //= 2
    width = min(width, 4) if t.itemsize == 1 else width
    return width if t.itemsize > 1 or width == 4 else 1


@functools.cache
def make_store(output, run):
    """Device function ``put(acc, e, row, column, s)``: acc[e:e+run], neighbouring columns, through the epilogue to where they belong.

    `s` is (rows, columns, y, v, geo, strides, residual's strides, epilogue's tuple); rows are within the product.
    """
    g = make_gather(output.op, output.channel_inner, output.has_classes)
    group = min(run, output.store)
    count, swap, has_classes = run // group, output.swap, output.has_classes
    of_filter = output.op == "conv_bwd_filter"
    has_residual = output.epilogue.residual is not None
    store = make_group_store(output.epilogue, group, group > 1)
    pixel, column_of = g.pixel, g.column

    @device_function
    def place(i, v, geo, to, res):
        """(offset in the output, in the residual, whether there is such a pixel) of pixel i."""
        n, a, b, c = pixel(i, v)
        inside = True
        if has_classes:
            a, b, c = a * to[6] + geo[6], b * to[7] + geo[7], c * to[8] + geo[8]
            inside = a < to[9] and b < to[10] and c < to[11]
        at = n * to[0] + a * to[2] + (b * to[3] + c * to[4])
        also = 0
        if has_residual:
            also = n * res[0] + a * res[2] + (b * res[3] + c * res[4])
        return at, also, inside

    if of_filter:
        @device_function
        def put(acc, e, row, column, s):
            _, columns, y, v, geo, to, _, (alpha, beta, bias, bias_stride, prior, _, _, residual, _, _) = s
            for j in range(count):
                i = column + j * group
                if i < columns:
                    a, b, c, channel = column_of(i, v, geo)
                    at = row * to[0] + channel * to[1] + (a * to[2] + b * to[3]) + (c * to[4] + to[12])
                    at = i64(geo[0]) * to[5] + at
                    epilogue = (alpha, beta, bias, bias_stride, advance(prior, at - i), i32(0), i32(1), residual, i32(0), i32(0))
                    store(acc, e + j * group, 0, i, columns, y, at, i64(1), epilogue)
    elif swap:
        @device_function
        def put(acc, e, row, column, s):
            rows, columns, y, v, geo, to, res, (alpha, beta, bias, bias_stride, prior, _, _, residual, _, _) = s
            first = i64(geo[0]) * to[5] + row * to[1]
            residual = advance(residual, i64(geo[0]) * res[5] + row * res[1])
            channel = geo[0] * rows + row
            for j in range(count):
                i = column + j * group
                if i < columns:
                    at, also, inside = place(i, v, geo, to, res)
                    at = first + at
                    if inside:
                        epilogue = (alpha, beta, bias, bias_stride, advance(prior, at - i), i32(0), i32(1),
                                    advance(residual, i64(also - i)), i32(0), i32(1))
                        store(acc, e + j * group, channel, i, columns, y, at, i64(1), epilogue)
    else:
        @device_function
        def put(acc, e, row, column, s):
            _, columns, y, v, geo, to, res, (alpha, beta, bias, bias_stride, prior, _, _, residual, _, _) = s
            at, also, inside = place(row, v, geo, to, res)
            if inside:
                at = i64(geo[0]) * to[5] + at
                bias = advance(bias, i64(geo[0]) * columns * bias_stride)
                epilogue = (alpha, beta, bias, bias_stride, advance(prior, at), i32(0), to[1],
                            advance(residual, i64(geo[0]) * res[5] + also), i32(0), res[1])
                for j in range(count):
                    i = column + j * group
                    store(acc, e + j * group, 0, i, columns, y, at + i64(i) * to[1], i64(to[1]), epilogue)
    return put


@functools.cache
def make_sums(run, accumulator):
    """Device function ``put(acc, e, row, column, s)`` for partial sums; `s` is (columns, pitch, sums, offset of the product's)."""
    group = min(run, 16 // ITEMSIZE[accumulator])
    count = run // group

    @device_function
    def put(acc, e, row, column, s):
        columns, pitch, sums, at = s
        for j in range(count):
            i = column + j * group
            if i < columns:
                to, k = advance(sums, at + i64(row) * pitch + i), e + j * group
                if group == 4:
                    store4(to, 0, (acc[k], acc[k + 1], acc[k + 2], acc[k + 3]))
                else:
                    store2(to, 0, (acc[k], acc[k + 1]))
    return put


def pitch_of(columns, accumulator):
    """Elements of a row of partial sums."""
    group = 16 // ITEMSIZE[accumulator]
    return ceil_div(columns, group) * group


def sums_bytes(products, rows, columns, ranges, accumulator):
    """Workspace of `ranges` partial products."""
    return ranges * products * rows * pitch_of(columns, accumulator) * ITEMSIZE[accumulator]


@functools.cache
def sum_kernel(output, groups):
    """output = epilogue(sum over the ranges): a group of threads takes every so many ranges, 16 bytes of neighbouring columns a thread."""
    accumulator = output.epilogue.accumulator
    G, Acc = 16 // ITEMSIZE[accumulator], {"float32": f32, "float64": f64, "int32": i32}[accumulator]
    put, add_ranges = make_store(output, G), make_add_ranges(groups, G, Acc)
    setup = make_gather(output.op, output.channel_inner, output.has_classes).setup

    @jit(launch_bounds=(THREADS, 2))
    def conv_sum(sums, y, shape, window, source, plain, pixel_divisors, tap_divisors, classes, class_divisors, to, res, rows, columns,
                 pitch, elements, ranges, alpha, beta, bias, bias_stride, prior, row_stride, column_stride, residual, residual_row,
                 residual_column):
        acc = cuda.local.array(G, Acc)
        at, mine = add_ranges(acc, sums, elements, ranges)
        if mine:
            line, column = divide_remainder(at, pitch)
            z, row = divide_remainder(line, rows)
            v = (shape, window, source, plain, pixel_divisors, tap_divisors, classes, class_divisors)
            epilogue = (alpha, beta, bias, bias_stride, prior, row_stride, column_stride, residual, residual_row, residual_column)
            put(acc, 0, row, column, (i32(rows[0]), columns, y, v, setup(z, v), to, res, epilogue))
    return conv_sum


def sum_launch(view, output, rows, columns, ranges):
    """The launch that adds the partial products."""
    p, accumulator = view.problem, output.epilogue.accumulator
    group, groups = 16 // ITEMSIZE[accumulator], groups_for(ranges)
    output = replace(output, store=min(output.store, group))
    elements = view.products * rows * pitch_of(columns, accumulator)
    arguments = (Argument(f"{accumulator}*", "workspace"), Argument(element(p.output.dtype).pointer, p.output_name), *view.arguments(),
                 *view.output_arguments(), Argument("uint32x3", divisor(rows)), Argument("int32", columns),
                 Argument("uint32x3", divisor(pitch_of(columns, accumulator))), Argument("int32", elements), Argument("int32", ranges),
                 *p.epilogue_arguments())
    return Launch(sum_kernel(output, groups), (ceil_div(elements, THREADS // groups * group), 1, 1), (THREADS, 1, 1), arguments)
