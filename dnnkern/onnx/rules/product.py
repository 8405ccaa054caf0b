"""Convolutions and matrix products, and how a graph draws them."""
import math

import numpy as np

from .._errors import Refused
from .._table import rule
from .._values import FLOATS, Value
from .pointwise import number, only


def window_of(node, x, filter):
    """(strides, dilations, ((before, after), ...)) of a window of these extents on the image x."""
    n = x.ndim - 2
    if not 1 <= n <= 3:
        raise Refused(f"{n} spatial dimensions")
    strides, dilations = (tuple(node.attribute(name) or [1] * n) for name in ("strides", "dilations"))
    pads = node.attribute("pads") or [0] * 2 * n
    auto = node.attribute("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        found = []
        for size, stride, dilation, extent in zip(x.shape[2:], strides, dilations, filter):
            total = max((-(-size // stride) - 1) * stride + dilation * (extent - 1) + 1 - size, 0)
            less, more = total // 2, total - total // 2
            found.append((less, more) if auto == "SAME_UPPER" else (more, less))
        return strides, dilations, tuple(found)
    if auto == "VALID":
        pads = [0] * 2 * n
    if min(pads) < 0:
        raise Refused(f"pads {pads}")
    return strides, dilations, tuple(zip(pads[:n], pads[n:]))


@rule("Conv", (1, 11, 22), "`conv_fwd`")
def convolution(node, x, w, bias=None):
    """In one to three dimensions."""
    only((x, w, bias), FLOATS)
    strides, dilations, padding = window_of(node, x, w.shape[2:])
    return node.call("conv_fwd", x, w, bias, stride=strides, padding=padding, dilation=dilations, groups=node.attribute("group", 1))


@rule("ConvTranspose", (1, 11, 22), "`conv_transpose_fwd`")
def transposed_convolution(node, x, w, bias=None):
    """`output_shape` and `auto_pad` say how much of the result is cropped."""
    only((x, w, bias), FLOATS)
    n = x.ndim - 2
    strides, dilations = (tuple(node.attribute(name) or [1] * n) for name in ("strides", "dilations"))
    more, pads = list(node.attribute("output_padding") or [0] * n), node.attribute("pads") or [0] * 2 * n
    shape, auto = node.attribute("output_shape"), node.attribute("auto_pad", "NOTSET")
    padding = list(zip(pads[:n], pads[n:]))
    if shape or auto in ("SAME_UPPER", "SAME_LOWER"):
        shape = shape or [size * stride for size, stride in zip(x.shape[2:], strides)]
        for k, (size, extent) in enumerate(zip(x.shape[2:], w.shape[2:])):
            total = strides[k] * (size - 1) + more[k] + dilations[k] * (extent - 1) + 1 - shape[-n:][k]
            if total < 0:  # the result is longer than what the windows cover
                more[k], total = more[k] - total, 0
            less = total // 2
            padding[k] = (less, total - less) if auto == "SAME_UPPER" else (total - less, less)
    return node.call("conv_transpose_fwd", x, w, bias, stride=strides, padding=tuple(padding), output_padding=tuple(more),
                     dilation=dilations, groups=node.attribute("group", 1))


@rule("CausalConvWithState", (27,), "`conv_fwd`, `concat`, `strided_slice`")
def causal_convolution(node, x, w, bias=None, past=None):
    """Depthwise, over the steps so far."""
    only((x, w, bias, past), FLOATS)
    activation = node.attribute("activation", "none")
    if activation not in ("none", "silu", "swish"):
        raise Refused(f"activation {activation!r}")
    (batch, channels, length), k = x.shape, w.shape[2]
    if k > 1:
        past = past or number(node, 0.0, x.dtype).host() * np.ones((batch, channels, k - 1))
        past = past if isinstance(past, Value) else Value(past.astype(number(node, 0.0, x.dtype).host().dtype))
        x = node.call("concat", [past, x], axis=2)
    y = node.call("conv_fwd", x, w, bias, groups=channels, activation=None if activation == "none" else "swish")
    state = node.call("strided_slice", x, (None, None, length), (None,) * 3) if node.is_wanted(1) else None
    return y, state


@rule("MatMul", (1, 9, 13), "`matmul`")
def product(node, a, b):
    """NumPy's."""
    only((a, b), FLOATS)
    return node.call("matmul", a, b)


@rule("Gemm", (7, 9, 11, 13), "`matmul`")
def gemm(node, a, b, c=None):
    """alpha A B + beta C."""
    only((a, b, c), FLOATS)
    beta = float(node.attribute("beta", 1.0))
    added = {} if c is None or beta == 0 else {"bias": c} if c.ndim == 1 and beta == 1 and c.shape[0] != 1 else {"c": c, "beta": beta}
    return node.call("matmul", a, b, alpha=float(node.attribute("alpha", 1.0)), transpose_a=bool(node.attribute("transA", 0)),
                     transpose_b=bool(node.attribute("transB", 0)), **added)


@rule("Einsum", (12, 28), "`matmul`, `transpose`, `reduce`")
def einsum(node, *operands):
    """One or two operands, no index twice in one of them: transpositions, sums and one product."""
    only(operands, FLOATS)
    equation = node.attribute("equation").replace(" ", "")
    terms, arrow, result = equation.partition("->")
    if not arrow:
        result = "".join(sorted(i for i in set(terms) - {","} if terms.count(i) == 1))
    terms = terms.split(",")
    if "." in equation or len(terms) > 2 or any(len(set(t)) < len(t) for t in terms):
        raise Refused(f"equation {equation!r}")
    sizes = {i: n for t, x in zip(terms, operands) for i, n in zip(t, x.shape)}
    if any(x.shape != tuple(sizes[i] for i in t) for t, x in zip(terms, operands)):
        raise Refused(f"equation {equation!r} with extents that broadcast")
    summed = []
    for k, (t, x) in enumerate(zip(terms, operands)):  # what no other term has is summed first
        others = set(result).union(*terms[:k], *terms[k + 1:])
        alone = [axis for axis, i in enumerate(t) if i not in others]
        if alone:
            x, t = node.call("reduce", x, "add", axes=alone), "".join(i for i in t if i in others)
        summed.append((t, x))
    if len(summed) == 1:
        (t, x), = summed
        return _arranged(node, x, t, result)
    (s, a), (t, b) = summed
    both = [i for i in s if i in t]
    batch, inner = [i for i in both if i in result], [i for i in both if i not in result]
    rows, columns = [i for i in s if i not in both], [i for i in t if i not in both]

    def extent(indices):
        return math.prod(sizes[i] for i in indices)
    a = _arranged(node, a, s, batch + rows + inner).reshape(extent(batch), extent(rows), extent(inner))
    b = _arranged(node, b, t, batch + inner + columns).reshape(extent(batch), extent(inner), extent(columns))
    y = node.call("matmul", a, b).reshape(*(sizes[i] for i in batch + rows + columns))
    return _arranged(node, y, batch + rows + columns, result)


def _arranged(node, x, source, target):
    """x with its indices in another order."""
    order = [list(source).index(i) for i in target]
    return x if order == sorted(order) else node.call("transpose", x, order)


# ---- in graphs

def draw_convolution(plan, node):
    """(tensor, shape) of a convolution and its bias."""
    x, w = plan.values[node.inputs[0]], plan.values[node.inputs[1]]
    strides, dilations, padding = window_of(node, x, w.shape[2:])
    plan.rank = x.ndim
    before, after = zip(*padding)
    y = plan.graph.conv_fprop(plan.tensor(node.inputs[0]), plan.tensor(node.inputs[1]), pre_padding=before, post_padding=after,
                              stride=strides, dilation=dilations)
    shape = (x.shape[0], w.shape[0], *((size + b + a - d * (r - 1) - 1) // s + 1
                                       for size, b, a, d, r, s in zip(x.shape[2:], before, after, dilations, w.shape[2:], strides)))
    if w.shape[1] * node.attribute("group", 1) != x.shape[1]:
        raise ValueError(f"{x.shape[1]} channels; expected {w.shape[1]} times {node.attribute('group', 1)}")
    if len(node.inputs) > 2 and node.inputs[2]:
        y = plan.graph.bias(y, plan.tensor(node.inputs[2], (1, w.shape[0], *[1] * (x.ndim - 2))))
    return y, shape


def draw_product(plan, node):
    """(tensor, shape) of a product; its batch dimensions are one where the right operand has none."""
    a, b = (plan.values[name].shape for name in node.inputs)
    if min(len(a), len(b)) < 2:
        raise ValueError("a product of a vector")
    plan.rank = max(len(a), len(b), 3)
    y = plan.graph.matmul(plan.tensor(node.inputs[0]), plan.tensor(node.inputs[1]))
    return y, (*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1])


def draw_gemm(plan, node):
    """(tensor, shape) of alpha A B + beta C, with C by rows of the result."""
    names = node.inputs
    a, b = (plan.values[name].shape for name in names[:2])
    plan.rank = 3
    operands = [plan.transposed(name) if node.attribute(flag, 0) else plan.tensor(name) for name, flag in zip(names, ("transA", "transB"))]
    y = plan.graph.matmul(*operands)
    m, n = a[1 if node.attribute("transA", 0) else 0], b[0 if node.attribute("transB", 0) else 1]
    alpha, beta = float(node.attribute("alpha", 1.0)), float(node.attribute("beta", 1.0))
    if alpha != 1:
        y = plan.drawn(("mul", y, alpha))
    if len(names) > 2 and names[2] and beta:
        c = plan.tensor(names[2])
        y = plan.drawn(("add", y, c if beta == 1 else ("mul", c, beta)))
    return y, (m, n)
