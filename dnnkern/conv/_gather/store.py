"""How gathered products are stored: to the output through the epilogue, or as partial sums (split-K) that a second launch adds up.

Partial sums are [slice][product][row][column] of the accumulator's type, rows padded to 16 bytes; slices are added in a fixed order.
"""
import functools
from dataclasses import dataclass, replace
from typing import NamedTuple

from ...device import cuda, device_function, f32, f64, i32, i64, jit, u64
from ...device.convert import element
from ...device.epilogue import EpilogueSpec, ProgramParams
from ...device.index import Divisor, ceil_div, divide_remainder, divisor
from ...device.program_batches import make_moved
from ...device.unroll import unrolled
from ...device.vec import advance, store2, store4
from ...engine.programs import Steps, operands_argument
from ...engine.split_k import THREADS, groups_for, make_add_ranges
from ...engine.stores import make_group_store
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from ...host.memo import remembered
from . import Gather, OutputLayout, Product, ResidualStrides, make_gather
from .plan import linear


@dataclass(frozen=True)
class Output:
    """How results are stored: direction, order of taps and channels, whether there are residue classes; `swap`: rows are channels and
    columns pixels; elements of one store; epilogue, in terms of rows and columns."""
    op: str
    channel_inner: bool
    has_classes: bool
    swap: bool
    store: int
    epilogue: EpilogueSpec


@remembered
def output_of(view, swap, limit):
    """The `Output` of a view, with stores of at most `limit` elements."""
    p = view.problem
    epilogue, program = p.epilogue, p.program
    if swap and (epilogue.bias or program):
        epilogue = replace(epilogue, bias=epilogue.bias and "row", program=program and program.transposed())
    return Output(p.op, view.channel_inner, view.has_classes, swap, _width(view, swap, limit), epilogue)


def _width(view, swap, limit):
    """Neighbouring columns, a power of two, of one vector store: each multiple of them is aligned and contiguous in memory."""
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
    if p.program and (swap or p.op == "conv_bwd_filter") or swap and p.residual and p.residual_strides != p.output_strides:
        return 1
    while width > 1 and (run % width or t.alignment % (width * t.itemsize) or any(s % width for s in strides)):
        width //= 2
    width = min(width, 4) if t.itemsize == 1 else width
    return width if t.itemsize > 1 or width == 4 else 1


class Destination(NamedTuple):
    """Where a product is stored: rows and columns, the output, the product, layout of the output, strides of the residual, and the
    epilogue's arguments."""
    rows: i32
    columns: i32
    y: u64
    gather: Gather
    product: Product
    layout: OutputLayout
    residual_stride: ResidualStrides
    epilogue: tuple


@functools.cache
def _make_pixel(output):
    """Device function ``locate(i, s)`` of pixel i of a `Destination`, see `make_store`."""
    pixel, has_classes = make_gather(output.op, output.channel_inner, output.has_classes).pixel, output.has_classes
    has_residual = output.epilogue.residual is not None

    @device_function
    def locate(i, s):
        """(offset in the output, in the residual, whether it is inside the output, (image, d, h, w)) of pixel i."""
        to, also, residue = s.layout, s.residual_stride, s.product.residue
        n, d, h, w = pixel(i, s.gather)
        inside = True
        if has_classes:
            d, h, w = d * to.mult.d + residue.d, h * to.mult.h + residue.h, w * to.mult.w + residue.w
            inside = d < to.extent.d and h < to.extent.h and w < to.extent.w
        at = n * to.n + d * to.d + (h * to.h + w * to.w)
        residual_at = 0
        if has_residual:
            residual_at = n * also.n + d * also.d + (h * also.h + w * also.w)
        return at, residual_at, inside, (n, d, h, w)
    return locate


@functools.cache
def make_row(output):
    """Device function ``of_row(row, s)``: (0, the epilogue's operands at pixel `row` of a `Destination`), where columns are channels."""
    locate, moved = _make_pixel(output), make_moved(output.epilogue.program, 5)

    @device_function
    def of_row(row, s):
        group_of, to, also = s.product.group, s.layout, s.residual_stride
        alpha, beta, bias, bias_stride, prior, _, _, residual, _, _, extras = s.epilogue
        at, residual_at, _, indices = locate(row, s)
        bias = advance(bias, i64(group_of) * s.columns * bias_stride)
        return 0, ProgramParams(alpha, beta, bias, bias_stride, advance(prior, i64(group_of) * to.group + at), 0, to.channel,
                                advance(residual, i64(group_of) * also.group + residual_at), 0, also.channel,
                                moved(extras, indices + (group_of,)))
    return of_row


@functools.cache
def make_store(output, run):
    """Device function ``store_results(acc, e, row, column, s)``: acc[e:e+run], neighbouring columns, through the epilogue to the output.

    `s` is a `Destination`; rows are within the product.
    """
    gather = make_gather(output.op, output.channel_inner, output.has_classes)
    group = min(run, output.store)
    count, swap = run // group, output.swap
    of_filter = output.op == "conv_bwd_filter"
    store = make_group_store(output.epilogue, group, group > 1)
    column_of, locate, moved = gather.column, _make_pixel(output), make_moved(output.epilogue.program, 4 if swap else 5)

    if of_filter:
        @device_function
        def store_results(acc, e, row, column, s):
            to = s.layout
            alpha, beta, bias, bias_stride, prior, _, _, residual, _, _, extras = s.epilogue
            for j in range(count):
                i = column + j * group
                if i < s.columns:
                    t, r, ss, channel = column_of(i, s.gather, s.product)
                    at = row * to.n + channel * to.channel + (t * to.d + r * to.h) + (ss * to.w + to.base)
                    at = i64(s.product.group) * to.group + at
                    k = s.product.group * s.rows + row
                    epilogue = ProgramParams(alpha, beta, bias, bias_stride, advance(prior, at - i), 0, 1, residual, 0, 0,
                                             moved(extras, (k, channel, t, r, ss)))
                    store(acc, e + j * group, 0, i, s.columns, s.y, at, i64(1), epilogue)
    elif swap:
        @device_function
        def store_pixels(j, given):
            acc, e, channel, column, first, residual, s = given
            alpha, beta, bias, bias_stride, prior, _, _, _, _, _, extras = s.epilogue
            i = column + j * group
            if i < s.columns:
                at, residual_at, inside, indices = locate(i, s)
                at = first + at
                if inside:
                    epilogue = ProgramParams(alpha, beta, bias, bias_stride, advance(prior, at - i), 0, 1,
                                             advance(residual, residual_at - i), 0, 1, moved(extras, indices))
                    store(acc, e + j * group, channel, i, s.columns, s.y, at, i64(1), epilogue)
        store_all = unrolled(count, store_pixels)

        @device_function
        def store_results(acc, e, row, column, s):
            group_of, to, also = s.product.group, s.layout, s.residual_stride
            first = i64(group_of) * to.group + row * to.channel
            _, _, _, _, _, _, _, residual, _, _, _ = s.epilogue
            residual = advance(residual, i64(group_of) * also.group + row * also.channel)
            store_all(0, (acc, e, group_of * s.rows + row, column, first, residual, s))
    else:
        @device_function
        def store_channels(j, given):
            acc, e, column, columns, y, at, channel, epilogue = given
            i = column + j * group
            store(acc, e + j * group, 0, i, columns, y, at + i64(i) * channel, channel, epilogue)
        store_all = unrolled(count, store_channels)

        @device_function
        def store_results(acc, e, row, column, s):
            group_of, to, also = s.product.group, s.layout, s.residual_stride
            alpha, beta, bias, bias_stride, prior, _, _, residual, _, _, extras = s.epilogue
            at, residual_at, inside, indices = locate(row, s)
            if inside:
                at = i64(group_of) * to.group + at
                bias = advance(bias, i64(group_of) * s.columns * bias_stride)
                epilogue = ProgramParams(alpha, beta, bias, bias_stride, advance(prior, at), 0, to.channel,
                                         advance(residual, i64(group_of) * also.group + residual_at), 0, also.channel,
                                         moved(extras, indices + (group_of,)))
                store_all(0, (acc, e, column, s.columns, s.y, at, i64(to.channel), epilogue))
    return store_results


@functools.cache
def make_sums(run, accumulator):
    """Device function ``store_sums(acc, e, row, column, s)`` for partial sums; `s` is (columns, pitch, sums, offset of the product's)."""
    group = min(run, 16 // ITEMSIZE[accumulator])
    count = run // group

    @device_function
    def store_sums(acc, e, row, column, s):
        columns, pitch, sums, at = s
        for j in range(count):
            i = column + j * group
            if i < columns:
                to, k = advance(sums, at + i64(row) * pitch + i), e + j * group
                if group == 4:
                    store4(to, 0, (acc[k], acc[k + 1], acc[k + 2], acc[k + 3]))
                else:
                    store2(to, 0, (acc[k], acc[k + 1]))
    return store_sums


def program_argument_of(view, output):
    """The kernel parameter with a program's operands: they are moved to each element of a filter; to each pixel, and to each group where
    columns are channels."""
    p = view.problem
    if p.op == "conv_bwd_filter":
        return operands_argument(output.epilogue, [Steps(0, 0, strides) for strides in p.extra_strides], 1, view.columns, 5)
    if output.swap:
        steps = [Steps(strides[1], 0, (strides[0], *strides[2:])) for strides in p.extra_strides]
        return operands_argument(output.epilogue, steps, p.c if p.op == "conv_bwd_data" else p.k, view.rows, 4)
    columns = p.c_group if p.op == "conv_bwd_data" else p.k_group
    steps = [Steps(0, strides[1], (strides[0], *strides[2:], columns * strides[1])) for strides in p.extra_strides]
    return operands_argument(output.epilogue, steps, 1, columns, 5)


def pitch_of(columns, accumulator):
    """Elements of a row of partial sums."""
    group = 16 // ITEMSIZE[accumulator]
    return ceil_div(columns, group) * group


def sums_bytes(products, rows, columns, ranges, accumulator):
    """Workspace of `ranges` K slices."""
    return ranges * products * rows * pitch_of(columns, accumulator) * ITEMSIZE[accumulator]


@functools.cache
def sum_kernel(output, groups):
    """output = epilogue(sum over the K slices): a group of threads adds every `groups`-th slice, 16 bytes of columns per thread."""
    accumulator = output.epilogue.accumulator
    G, Acc = 16 // ITEMSIZE[accumulator], {"float32": f32, "float64": f64, "int32": i32}[accumulator]
    store_results, add_slices = make_store(output, G), make_add_ranges(groups, G, Acc)
    setup = make_gather(output.op, output.channel_inner, output.has_classes).setup

    @jit(launch_bounds=(THREADS, 2))
    def conv_sum(sums, y, g, layout, residual_stride, rows, columns, pitch, elements, slices, alpha, beta, bias, bias_stride, prior,
                 row_stride, column_stride, residual, residual_row, residual_column, extras):
        acc = cuda.local.array(G, Acc)
        at, has_result = add_slices(acc, sums, elements, slices)
        if has_result:
            line, column = divide_remainder(at, pitch)
            z, row = divide_remainder(line, rows)
            epilogue = ProgramParams(alpha, beta, bias, bias_stride, prior, row_stride, column_stride, residual, residual_row,
                                     residual_column, extras)
            store_results(acc, 0, row, column, Destination(i32(rows.d), columns, y, g, setup(z, g), layout, residual_stride, epilogue))
    return conv_sum


def sum_launch(view, output, rows, columns, ranges):
    """The launch that adds the partial products."""
    p, accumulator = view.problem, output.epilogue.accumulator
    group, groups = 16 // ITEMSIZE[accumulator], groups_for(ranges)
    output = replace(output, store=min(output.store, group))
    elements = view.products * rows * pitch_of(columns, accumulator)
    arguments = (Argument(f"{accumulator}*", "workspace"), Argument(element(p.output.dtype).pointer, p.output_name), *view.arguments(),
                 *view.output_arguments(), Argument(Divisor, divisor(rows)), Argument("int32", columns),
                 Argument(Divisor, divisor(pitch_of(columns, accumulator))), Argument("int32", elements), Argument("int32", ranges),
                 *p.epilogue_arguments(), program_argument_of(view, output))
    return Launch(sum_kernel(output, groups), (ceil_div(elements, THREADS // groups * group), 1, 1), (THREADS, 1, 1), arguments)
