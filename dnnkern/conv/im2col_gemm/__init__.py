"""Convolution by im2col and GEMM: the pixels of all windows are written to the workspace as columns and multiplied by the filter matrix.

    conv_fwd           columns = im2col(x);            y  = columns * w               epilogue in the product
    conv_bwd_data      columns = dy * w;               dx = col2im(columns)           epilogue in col2im
    conv_bwd_filter    columns = im2col(x);            dw = columns * dy              summed over all images and positions

Columns have one of two orders, whatever layout the arrays have: channels first, [image][channel, tap][position], so that output positions
are the product's columns; or last, [image, position][tap, channel], so that they are its rows. Products are the library's own
(`engine.embed`): tensor cores where dtype and device have them, split-K where k is long. Groups are a dimension of the batch.

- In conv_bwd_data each pixel gathers its columns in a fixed order, without atomics. Columns have the accumulator's type.
- Whole images at a time: where the columns of all would exceed a bound, the batch is processed in slices; small slices stay in the L2.
  conv_bwd_filter then adds the slices' products in the workspace.
- Where windows are patches, which do not overlap and cover the image, each pixel has one column. Then columns of conv_bwd_data have the
  result's type, and are pixels in another order: they are transposed, or the product writes them where they belong.
- What a product cannot read or write in place is packed first, or moved by a last pass: filters in the other order or flipped, dy whose
  images and positions are not one dimension, more than one addend of the result's shape.

The columns are as large as the image times the taps of the filter, written once and read once. So it loses to algorithms that form them on
the way to shared memory. It wins where those cannot use the fastest products: unaligned channels, odd strides. (A filter of one tap needs
no columns: `pointwise`.)

Source: K. Chellapilla, S. Puri, P. Simard, High performance convolutional neural networks for document processing, 2006.
"""
from dataclasses import dataclass, replace

from ...dispatch import Algorithm, Note
from ...engine.constants import constants
from ...engine.cost import LAUNCH, memory_seconds
from ...engine.embed import Place, fastest_seconds
from ...engine.plan import alignment_at, collapsed, planned
from ...engine.strides import ImageStrides
from ...host.dtypes import ITEMSIZE
from ...host.tensor import Tensor
from .col2im import LIMIT, ColumnStrides, Sums, Target, Window
from .plan import Pixels, Plan, addable, filter_matrix, is_of_patches, moved, patches_matrix, slices

COST = constants("conv/im2col_gemm")

FEW = 8                   # channels that fill no 16 bytes
MOST_WORKSPACE = 1 << 30  # that columns take where a batch can be sliced
MOST_COPIES = 32          # launches of im2col, one for each group, with channels last


@dataclass(frozen=True)
class Config:
    """Order of the columns (1: channels last), images at a time, which of the products with the least estimates."""
    last: int
    images: int
    product: int = 0

    def __str__(self):
        order = "last" if self.last else "first"
        return f"channels {order}, {self.images} image{'s' * (self.images > 1)}" + (", second product" if self.product else "")


def supports(problem):
    """Everything that 32-bit integers can count an image of."""
    for name in "xwy":
        if not getattr(problem, name).size:
            return f"{name} is empty (shape {getattr(problem, name).shape}): there is nothing to multiply"
    reach = max(n + sum(pads) + d * t for n, pads, d, t in zip(problem.image, problem.pads, problem.dilations, problem.filter))
    each = problem.output.size // (1 if problem.op == "conv_bwd_filter" else problem.n)
    if each >= LIMIT or reach >= 2 ** 30:
        what = "the result" if problem.op == "conv_bwd_filter" else "an image of the result"
        return f"{what} has {each} elements, the window reaches over {reach} pixels; expected fewer than {LIMIT} and 2**30"
    return None


# ---- which parts a plan has

def _result(problem):
    return Pixels.of(problem, problem.output_name)


def _residual(problem):
    return Pixels.of(problem, "residual") if problem.residual else None


def _is_direct(problem):
    """Whether the forward product can write y with its epilogue: positions are one dimension, and at most one addend has y's shape."""
    p, residual = problem, _residual(problem)
    addends = bool(p.beta) + (residual is not None) + (p.bias is not None and p.groups > 1)
    return (p.op == "conv_fwd" and addends <= 1 and _result(p).is_matrix and (residual is None or residual.is_matrix)
            and (not p.beta or addable(p, p.output.dtype)))


def _column_type(problem):
    """The columns' dtype."""
    p = problem
    return p.dtype if p.op != "conv_bwd_data" else p.output.dtype if is_of_patches(p) else p.compute


def _image_bytes(problem):
    """Workspace of an image: its columns, and sums for a last pass."""
    p, positions = problem, problem.pixels // problem.n
    columns = p.c * p.taps * positions * ITEMSIZE[_column_type(p)]
    return columns + (p.k * positions * ITEMSIZE[p.compute] if p.op == "conv_fwd" and not _is_direct(p) else 0)


def configs(problem, device):
    """Both orders; all images that the bound allows, and as many as stay in the L2; the two best products of each."""
    each = _image_bytes(problem)
    images = {max(1, min(problem.n, bound // each)): None for bound in (MOST_WORKSPACE, device.l2_bytes // 3)}
    orders = [0] + [1] * (problem.groups <= MOST_COPIES)
    return [Config(last, n, product) for last in orders for n in images for product in (0, 1)]


def workspace(problem, device, config):
    """The columns of a slice, sums, packed operands, and the products' own."""
    return _plan(problem, device, config).bytes


def estimate(problem, device, config):
    """The sum of all launches' estimates; longer where rows of columns are those of a few channels."""
    cost = _plan(problem, device, config).cost
    if problem.op == "conv_bwd_data" and is_of_patches(problem):
        return cost.slowed(slower=COST.patches)
    few = config.last and problem.op == "conv_bwd_data" and problem.c_group < FEW
    return cost.slowed(slower=COST.few) if few else cost


def bound(problem, device):
    """Between image and columns, and between columns and result: the bytes, or the products by whatever is fastest."""
    p, columns = problem, problem.c * problem.taps * problem.pixels
    nbytes = columns * ITEMSIZE[_column_type(p)]
    elements, k = {"conv_fwd": (p.pixels * p.k, p.c_group * p.taps), "conv_bwd_data": (columns, p.k_group),
                   "conv_bwd_filter": (p.k_group * p.c * p.taps, p.pixels)}[p.op]
    product = fastest_seconds(p.dtype, p.math, elements, k, nbytes + p.w.nbytes + p.y.nbytes, device)
    return product if _is_product(p) else LAUNCH + memory_seconds(nbytes + p.x.nbytes, device) + product


def _is_product(problem):
    """Whether the product of conv_bwd_data may write dx, with channels last."""
    return problem.op == "conv_bwd_data" and is_of_patches(problem) and patches_matrix(problem, True) is not None


def config_bound(problem, device, config):
    """And a launch for each further slice; of the best product, where this is the second."""
    if config.product:
        return estimate(problem, device, replace(config, product=0))
    return bound(problem, device) + (0 if _is_product(problem) else LAUNCH * (len(slices(problem, config.images)) - 1))


def build(problem, device, config):
    """Packed operands, then for each slice columns and product, or product and columns; a last pass where the product cannot do it."""
    return _plan(problem, device, config).launches()


def _plan(problem, device, config):
    return planned(_PLANS[problem.op], problem, device, config)


# ---- steps

def _columns(plan, x, place, first, count, contiguous=False):
    """Write the columns of some images; channels first, they are [image][channel, tap][position], or if `contiguous`
    [channel, tap][image, position]."""
    p, last, images = plan.problem, plan.config.last, plan.config.images
    positions, length = p.pixels // p.n, p.c_group * p.taps
    at = x.place(first)
    if last and p.groups > 1:
        size, apart = count * positions * length * p.x.itemsize, x.each * x.channel * p.x.itemsize

        def group(plan, g):
            columns = Tensor.packed((count * positions, length), p.x.dtype, alignment_at(16, g * size))
            plan.columns(x.image(count, images, last, g), moved(at, g * apart), columns, moved(place, g * size), "NHWC")
        plan.repeat(range(p.groups), group, lambda g: (alignment_at(16, g * size), alignment_at(16, g * apart)))
    elif last:
        plan.columns(x.image(count, images, last), at, Tensor.packed((count * positions, length), p.x.dtype), place, "NHWC")
    else:
        rows = p.c * p.taps
        strides = (positions, count * positions, 1) if contiguous else (rows * positions, positions, 1)
        plan.columns(x.image(count, images, last), at, Tensor((count, rows, positions), strides, p.x.dtype), place, "NCHW")


def _written(plan, first, count, merged):
    """What a product gets to write some images of the result itself: operands, places, scalars."""
    p, last, step = plan.problem, plan.config.last, plan.config.images
    result, residual = _result(p), _residual(p)
    y = result.matrices(count, step, last, merged)
    operands, places = dict(y=y, activation=p.activation, scaled=p.scaled), {"y": result.place(first)}
    if p.beta:
        operands.update(c=y, beta=True, in_place=True)
        places["c"] = places["y"]
    elif residual is not None:
        operands["c"] = residual.matrices(count, step, last, merged)
        places["c"] = residual.place(first)
    if p.bias is not None:
        by, s = p.bias, p.bias_stride
        name = "bias" if p.groups == 1 else "c"
        shape, strides = ((result.each,), (s,)) if last else ((result.each, 1), (s, 1))
        if p.groups > 1:
            middle = (1, 1) if last else ()
            shape, strides = (p.groups, *middle, *shape), (result.each * s, *(0 for _ in middle), *strides)
        operands[name], places[name] = Tensor(shape, strides, by.dtype, by.alignment), Place("bias")
    return operands, places, tuple(n for n, used in (("alpha", p.scaled), ("beta", p.beta)) if used)


def _finish(plan, place, sums, count, first):
    """The last pass over some images of the result."""
    p, result, residual = plan.problem, _result(plan.problem), _residual(plan.problem)
    flat = sums.window.taps == (1, 1, 1) and sums.window.positions is None
    extents, spatial = result.extents, [result.spatial, residual.spatial if residual else (0, 0, 0)]
    if flat and all(a is None or a.is_matrix for a in (result, residual)):
        extents, spatial = (1, 1, result.pixels), [(0, 0, a.pixel) if a else (0, 0, 0) for a in (result, residual)]
    result_spatial, residual_spatial = spatial
    strides = ImageStrides(result.outer, result.channel, *result_spatial)
    residual_strides = ImageStrides(*((residual.outer, residual.channel) if residual else (0, 0)), *residual_spatial)
    target = Target(count, p.groups, result.each, extents, strides, residual_strides, result.alignment(plan.config.images))
    plan.last_pass(sums, target, place, first)


def _one(pixels, count):
    return pixels is None or pixels.step_of(count) is not None


def _count(images):
    """What the time of some images depends on."""
    return images[1]


def _forward(problem, device, config):
    """The plan of conv_fwd."""
    p, plan, last = problem, Plan(problem, device, config), config.last
    x, y, positions, length = Pixels.of(p, "x"), _result(p), p.pixels // p.n, p.c_group * p.taps
    direct = _is_direct(p)
    w, w_place = filter_matrix(plan)
    columns = plan.part(config.images * p.groups * length * positions * p.x.itemsize)
    sums = None if direct else plan.part(config.images * p.k * positions * ITEMSIZE[p.compute])

    def part(plan, images):
        first, count = images
        merged = last and (not direct or _one(y, count) and _one(_residual(p), count))
        rows = (1, count * positions) if merged else (count, positions)
        _columns(plan, x, columns, first, count)
        matrix = Tensor.packed((p.groups, *rows, length) if last else (count, p.groups, length, positions), p.x.dtype)
        if direct:
            operands, where, scalars = _written(plan, first, count, merged)
        else:
            shape = (p.groups, *rows, p.k_group) if last else (count, p.groups, p.k_group, positions)
            operands, where, scalars = dict(y=Tensor.packed(shape, p.compute)), {"y": sums}, ()
        if last:
            plan.product({"a": columns, "b": w_place, **where}, scalars, a=matrix, b=_by_group(w), transpose_b=True, **operands)
        else:
            plan.product({"a": w_place, "b": columns, **where}, scalars, a=w, b=matrix, **operands)
        if not direct:
            each = p.k_group * positions
            strides = (each, count * each, 1, 0, p.k_group) if last else (p.groups * each, each, positions, 0, 1)
            _finish(plan, sums, Sums(ColumnStrides(*strides), Window(), bool(last)), count, first)
    plan.repeat(slices(p, config.images), part, _count)
    return plan


def _backward_data(problem, device, config):
    """The plan of conv_bwd_data."""
    p, plan, last = problem, Plan(problem, device, config), config.last
    dy, positions, length = Pixels.of(p, "y"), p.pixels // p.n, p.c_group * p.taps
    window = Window(p.filter, p.strides, p.pads_before, p.dilations, p.out)
    w, w_place = filter_matrix(plan)
    if not dy.is_matrix:
        dy = dy.packed(plan, last)
    patches, dtype = is_of_patches(p), _column_type(p)
    step = patches and patches_matrix(p, last)
    columns = None if step else plan.part(config.images * p.groups * length * positions * ITEMSIZE[dtype])

    def part(plan, images):
        first, count = images
        merged = last and _one(dy, count)
        given, to = dy.matrices(count, config.images, last, merged), columns
        if last:
            matrix = Tensor.packed((p.groups, *((1, count * positions) if merged else (count, positions)), length), dtype)
            strides = positions * length, count * positions * length, 1, p.c_group, length
        else:
            matrix = Tensor.packed((count, p.groups, length, positions), dtype)
            strides = p.groups * length * positions, length * positions, p.taps * positions, positions, 1
        if step:
            offset = first * p.x_strides[0] * p.x.itemsize
            to = Place("x", offset)
            matrix = Tensor(matrix.shape, (0, positions * step, step, 1), dtype, alignment_at(p.x.alignment, offset))
        if last:
            plan.product({"a": dy.place(first), "b": w_place, "y": to}, a=given, b=_by_group(w), y=matrix)
        else:
            plan.product({"a": w_place, "b": dy.place(first), "y": to}, a=w, b=given, y=matrix, transpose_a=True)
        if patches and not step:
            plan.patches(columns, ColumnStrides(*strides), first, count)
        elif not patches:
            _finish(plan, columns, Sums(ColumnStrides(*strides), window, bool(last)), count, first)
    plan.repeat(slices(p, config.images), part, _count)
    return plan


def _backward_filter(problem, device, config):
    """The plan of conv_bwd_filter."""
    p, plan, last = problem, Plan(problem, device, config), config.last
    x, dy, positions, length = Pixels.of(p, "x"), Pixels.of(p, "y"), p.pixels // p.n, p.c_group * p.taps
    parts = slices(p, config.images)
    if not _one(dy, p.n):
        dy = dy.packed(plan, last)
    columns = plan.part(config.images * p.c * p.taps * positions * p.x.itemsize)
    k, c, *taps = p.w_strides
    sizes, strides = ((*p.filter, p.c_group), (*taps, c)) if last else ((p.c_group, *p.filter), (c, *taps))
    step, flipped = collapsed(sizes, strides), p.flip and p.taps > 1
    direct = len(parts) == 1 and step is not None and not flipped and (not p.beta or addable(p, p.w.dtype))
    sums = None if direct else plan.part(p.k * length * ITEMSIZE[p.compute])

    def part(plan, images):
        first, count = images
        given = dy.rows(count, config.images, last)
        _columns(plan, x, columns, first, count, contiguous=True)
        pixels = count * positions
        matrix = Tensor.packed((p.groups, pixels, length) if last else (p.groups, length, pixels), p.x.dtype)
        scalars = ()
        if direct:
            dw = Tensor((p.groups, p.k_group, length), (p.k_group * k, k, step), p.w.dtype, p.w.alignment)
            operands, where = dict(y=dw, scaled=p.scaled), {"y": Place("w")}
            if p.beta:
                operands.update(c=dw, beta=True, in_place=True)
            scalars = tuple(n for n, used in (("alpha", p.scaled), ("beta", p.beta)) if used)
        else:
            dw = Tensor.packed((p.groups, p.k_group, length), p.compute)
            operands, where = dict(y=dw, **(dict(c=dw, in_place=True) if first else {})), {"y": sums}
        plan.product({"a": dy.place(first), "b": columns, "c": where["y"], **where}, scalars, a=given, b=matrix, transpose_a=bool(last),
                     transpose_b=not last, **operands)
    plan.repeat(parts, part, lambda images: (images[1], images[0] > 0))
    if not direct:
        tap = p.c_group if last else 1
        back = (p.taps - 1) * tap * ITEMSIZE[p.compute] if flipped else 0
        order = Sums(ColumnStrides(length, 0, 1 if last else p.taps, 0, -tap if flipped else tap), Window(), bool(last))
        target = Target(p.k, 1, p.c_group, p.filter, ImageStrides(*p.w_strides), ImageStrides(0, 0, 0, 0, 0), p.w.alignment)
        plan.last_pass(order, target, moved(sums, back))
    return plan


def _by_group(w):
    """The filter's matrices with the group first, for products whose batch is (group, n)."""
    one, groups, *shape = w.shape
    return Tensor((groups, one, *shape), (w.strides[1], 0, *w.strides[2:]), w.dtype, w.alignment)


_PLANS = {"conv_fwd": _forward, "conv_bwd_data": _backward_data, "conv_bwd_filter": _backward_filter}
ALGORITHMS = tuple(Algorithm(op=op, name="im2col_gemm", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, bound=bound, config_bound=config_bound, notes=Note.TENSOR_CORE) for op in _PLANS)
