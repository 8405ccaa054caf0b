"""A convolution with a 1x1 filter as a matrix product over pixels: its operands, and how pixels become rows.

    conv_fwd          y[pixel, k] = sum over c        x[pixel, c]  w[k, c]
    conv_bwd_data     x[pixel, c] = sum over k        y[pixel, k]  w[k, c]
    conv_bwd_filter   w[k, c]     = sum over pixels   y[pixel, k]  x[pixel, c]

The pixels' dimensions (images, depth, height, width) are merged where all arrays step evenly through two of them. The rest are the rows of
a matrix and, with channels first or a stride, a batch; groups are a batch as well. A sum over pixels that are not one dimension is a sum of
products, one for each index of the other dimension.
"""
import functools
from dataclasses import dataclass

from ...device.index import ceil_div
from ...engine.embed import Place
from ...engine.roles import Roles
from ...engine.scales import Scales
from ...engine.split_k import sums_bytes, sums_refusal
from ...host.dtypes import ITEMSIZE
from ...host.memo import remembered
from ...host.tensor import Tensor
from ...matmul import MatmulProblem


@dataclass(frozen=True)
class Product:
    """A convolution as a matrix product.

    Attributes
    ----------
    problem : MatmulProblem
    places : {str: Place}
        Its operands in the convolution's plan.
    scalars : tuple of str
        Those of the convolution that it uses.
    sums : Roles or None
        Where y is one product for each of `ranges` slices of the pixels, in the workspace: dw as their sum.
    ranges : int
    """
    problem: MatmulProblem
    places: dict
    scalars: tuple
    sums: Roles | None = None
    ranges: int = 1

    @property
    def bytes(self):
        """Workspace of the slices' products, in whole lines."""
        return ceil_div(sums_bytes(self.sums, self.ranges), 256) * 256 if self.sums else 0


def refusal(problem):
    """Why a convolution is no matrix product, or None."""
    p = problem
    if p.taps != 1:
        return f"a filter of {p.taps} taps; a matrix product has one"
    if any(p.pads_before) or any((o - 1) * s >= n for o, s, n in zip(p.out, p.strides, p.image)):
        return f"windows of one tap with padding {p.padding} reach outside the image"
    if p.op == "conv_bwd_data" and p.image != p.out:
        return f"stride {p.stride} leaves pixels of dx without a window"
    if p.residual is not None and p.beta:
        return "a residual and the former output; a matrix product adds one of them"
    if p.groups > 1 and p.bias is not None and (p.residual is not None or p.beta):
        return f"a bias of {p.groups} groups beside another addend; a batch of products adds one of them"
    if p.op == "conv_bwd_filter" and p.program is not None:
        return "runs no program after a filter's gradient, which may be the sum of several products"
    if p.groups > 1 and any(over != "all" for _, _, over, _ in p.reductions):
        dims = _pixels(p, _arrays(p))
        if len(dims) > 1:
            return f"reductions of {p.groups} groups and of pixels in {len(dims)} dimensions, which are one batch of products"
    if p.op == "conv_bwd_filter":
        dims = _pixels(p, (p.y_strides, p.x_strides))
        if len(dims) > 2:
            return f"pixels in {len(dims)} dimensions that do not merge; two are the most to sum over"
        found = product_of(p)
        return found.sums and sums_refusal(found.sums)
    return None


def _pixels(problem, arrays):
    """[(extent, strides)] of the dimensions that pixels have in all arrays, outermost first, given their strides (n, channel, o, p, q);
    those of x are the pixels that have a window."""
    p = problem
    if p.pixels == 0:
        return [(0, (1,) * len(arrays))]
    steps = (1, *p.strides)
    found = []
    for k, extent in enumerate((p.n, *p.out)):
        at = k + (k > 0)  # the channel's stride is the second
        strides = tuple(s[at] * (steps[k] if s is p.x_strides else 1) for s in arrays)
        if extent == 1:
            continue
        if found and all(outer == extent * inner for outer, inner in zip(found[-1][1], strides)):
            found[-1] = found[-1][0] * extent, strides
        else:
            found.append((extent, strides))
    return found or [(1, tuple(max(p.c, p.k) for _ in arrays))]


def _split(dims, channels):
    """(batch, rows): the dimension that becomes a matrix's, and the others. The one that is contiguous, else the largest."""
    def merit(dim):
        extent, strides = dim
        return channels and 1 in strides, extent
    rows = max(dims, key=merit)
    return [d for d in dims if d is not rows], rows


@functools.lru_cache(maxsize=1024)
@remembered
def product_of(problem) -> Product:
    """The matrix product that a convolution is; of one without `refusal`."""
    return _filter_product(problem) if problem.op == "conv_bwd_filter" else _pixel_product(problem)


def _view(tensor, dims):
    """A tensor's elements in other dimensions, [(extent, stride)]."""
    return Tensor(tuple(n for n, _ in dims), tuple(s for _, s in dims), tensor.dtype, tensor.alignment)


def _arrays(p):
    """The strides of all arrays of forward or backward data that have pixels: source, result, extras, the residual."""
    ends = (p.x_strides, p.y_strides)
    return (*(ends if p.op == "conv_fwd" else ends[::-1]), *p.extra_strides) + ((p.residual_strides,) if p.residual else ())


def _pixel_product(p):
    """Forward, and backward to the image: rows are pixels, columns channels of the output."""
    forward = p.op == "conv_fwd"
    source, target = (p.x, p.y) if forward else (p.y, p.x)
    from_strides, to_strides = (p.x_strides, p.y_strides) if forward else (p.y_strides, p.x_strides)
    depth, columns = (p.c_group, p.k_group) if forward else (p.k_group, p.c_group)
    k, c = p.w_strides[:2]
    depth_stride, column_stride = (c, k) if forward else (k, c)
    batch, (rows, row_strides) = _split(_pixels(p, _arrays(p)), to_strides[1] != 1)

    def matrices(which, strides, width):
        groups = [(p.groups, width * strides[1])] if p.groups > 1 else []
        return [*groups, *((n, s[which]) for n, s in batch), (rows, row_strides[which]), (width, strides[1])]

    def results(which, over, strides):
        """Of a reduction: groups, pixels and channels as they are, or one where it goes over them."""
        dims = matrices(which, strides, columns)
        channels = [len(dims) - 1, *([0] if p.groups > 1 else [])]
        gone = {"rows": set(range(len(dims))) - set(channels), "columns": channels, "all": range(len(dims))}[over]
        return [(1 if d in gone else n, step) for d, (n, step) in enumerate(dims)]

    a, y = _view(source, matrices(0, from_strides, depth)), _view(target, matrices(1, to_strides, columns))
    groups = [(p.groups, p.k_group * k)] if p.groups > 1 else []
    b = _view(p.w, [*groups, *((1, 0) for _ in batch if groups), (depth, depth_stride), (columns, column_stride)])
    places = {"a": Place("x" if forward else "y"), "b": Place("w"), "y": Place(p.output_name), "workspace": Place("workspace"),
              **{name: Place(name) for name in p.extra_tensors}}
    bias, added = None, None
    if p.bias is not None and p.groups == 1:
        bias, places["bias"] = p.bias, Place("bias")
    elif p.bias is not None:
        step = p.bias_stride
        added = _view(p.bias, [(p.groups, columns * step), *((1, 0) for _ in batch), (1, 0), (columns, step)])
        places["c"] = Place("bias")
    if p.residual is not None:
        added, places["c"] = _view(p.residual, matrices(-1, p.residual_strides, columns)), Place("residual")
    elif p.beta:
        added, places["c"] = y, Place(p.output_name)
    read = len(p.extras) - len(p.reductions)
    extras = [_view(t, matrices(k, s, columns)) for k, (t, s) in enumerate(zip(p.extras[:read], p.extra_strides), 2)]
    extras += [_view(t, results(k, over, s)) for k, (t, s, (_, _, over, _)) in enumerate(
        zip(p.extras[read:], p.extra_strides[read:], p.reductions), 2 + read)]
    problem = MatmulProblem(a=a, b=b, y=y, bias=bias, c=added, activation=p.activation, scaled=p.scaled, beta=p.beta, math=p.math,
                            in_place=p.beta, program=p.program, extras=tuple(extras))
    return Product(problem, places, (*(("alpha", "beta") if p.beta else ("alpha",)), *p.scalar_types))


def _filter_product(p):
    """Backward to the filter: rows are filters, columns channels, and the sum is over pixels."""
    (k_y, c_x), (k, c) = (p.y_strides[1], p.x_strides[1]), p.w_strides[:2]
    parts, (pixels, (y_step, x_step)) = _split(_pixels(p, (p.y_strides, p.x_strides)), k_y != 1 or c_x != 1)
    m, n = p.k_group, p.c_group

    def matrices(which, step, *matrix):
        groups = [(p.groups, step)] if p.groups > 1 else []
        return [*((extent, s[which]) for extent, s in parts), *groups, *matrix]

    a = _view(p.y, matrices(0, m * k_y, (m, k_y), (pixels, y_step)))
    b = _view(p.x, matrices(1, n * c_x, (pixels, x_step), (n, c_x)))
    places = {"a": Place("y"), "b": Place("x"), "y": Place("w"), "workspace": Place("workspace")}
    group = [(p.groups, m * k)] if p.groups > 1 else []
    if not parts:
        y = _view(p.w, [*group, (m, k), (n, c)])
        problem = MatmulProblem(a=a, b=b, y=y, c=y if p.beta else None, scaled=p.scaled, beta=p.beta, math=p.math, in_place=p.beta)
        return Product(problem, {**places, "c": Place("w")}, ("alpha", "beta"))
    batch = tuple((size, (0, 0, step, step)) for size, step in group)
    sums = Roles(m=m, n=n, k=pixels, a=p.y, b=p.x, y=p.w, names=("y", "x"), a_strides=(k_y, y_step), b_strides=(x_step, c_x),
                 y_strides=(k, c), c_strides=(k, c), batch=batch, epilogue=p.epilogue, bias_stride=0, scales=Scales())
    ranges, vector = parts[0][0], 16 // ITEMSIZE[p.compute]
    pitch = ceil_div(n, vector) * vector
    workspace = Tensor.packed((1,), p.compute)
    y = _view(workspace, [(ranges, p.groups * m * pitch), *((size, m * pitch) for size, _ in group), (m, pitch), (n, 1)])
    places["y"] = Place("workspace")
    found = Product(MatmulProblem(a=a, b=b, y=y, math=p.math), places, (), sums, ranges)
    places["workspace"] = Place("workspace", found.bytes)
    return found
