"""Products: matmul, convolution and its two gradients."""
import operator

from ...conv import ConvProblem
from ...device.activation import Activation
from ...matmul import MatmulProblem
from .._enums import convolution_mode, member
from .._errors import AttributeNotSet, InvalidValue, cudnnGraphNotSupportedError
from .._infer import broadcast, channels_last
from .._fuse import chain_of, prologue_of, sole_reader
from .._ir import prologue
from ._define import OPERATIONS, operation

FLOATS = ("float64", "float32", "float16", "bfloat16")
INPUTS = (*FLOATS, "int8", "float8_e4m3fn", "float8_e5m2")
OUTPUTS = {"float64": ("float64", "float32"), "float32": ("float32", "float16", "bfloat16"), "float16": ("float16", "float32", "bfloat16"),
           "bfloat16": ("bfloat16", "float32", "float16"), "int8": ("int32", "int8", "float32", "float16", "bfloat16"),
           **dict.fromkeys(("float8_e4m3fn", "float8_e5m2"), ("bfloat16", "float32", "float16", "float8_e4m3fn", "float8_e5m2"))}

ACCUMULATOR = {"float64": "float64", "int8": "int32"}
"""dtype of operands -> the type in which their products are added up, where that is not float32."""


def common_dtype(*dtypes):
    """The one in which operands of a product are multiplied: one that holds both exactly, or float32; None for their own."""
    found = set(dtypes)
    if len(found) == 1 and dtypes[0] in INPUTS or found <= {"float8_e4m3fn", "float8_e5m2"}:
        return None
    if "float64" in found or "int32" in found:
        return "float64"
    short = found & {"float16", "bfloat16"}
    exact = found <= {*short, "int8", "uint8", "bool"} or found <= {"float16", "float8_e4m3fn", "float8_e5m2"}
    return short.pop() if len(short) == 1 and exact else "float32"  # 8 bits of an integer fit a half's


def alike(part, *refs):
    """The operands of a product in one dtype, `common_dtype`."""
    dtype = common_dtype(*(r.dtype for r in refs))
    return refs if dtype is None else tuple(part.converted(r, dtype) for r in refs)


def target(part, port, dtype):
    """(where a product of this dtype writes its result, the output)"""
    out = part.output(port)
    kinds = OUTPUTS[dtype]
    return part.into(out, kinds, "int32" if dtype == "int8" and out.dtype.startswith(("int", "uint")) else
                     "float64" if dtype == "float64" else "float32"), out


# ---- matmul


@operation(outputs="C", tag="MATMUL")
def matmul(A, B, padding=0.0):
    """Matrix product of the last two dims; batch dims broadcast.

    Parameters
    ----------
    A : tensor
        (..., M, K)
    B : tensor
        (..., K, N)
    padding : float
        The value of elements past the end of ragged operands: 0.
    """
    if padding != 0.0:
        raise InvalidValue(f"matmul: padding is {padding!r}; expected 0.0")
    return {"A": A, "B": B}, {"padding": float(padding)}


@matmul.infer
def _(node):
    a, b = node.dim("A"), node.dim("B")
    node.expect(len(a) == len(b) >= 2, "B", f"dims {b} beside A's {a}", "as many, two at least")
    node.expect(a[-1] == b[-2], "B", f"K = {b[-2]} (dims {b})", f"{a[-1]}, as A has (dims {a})")
    batch = broadcast([a[:-2], b[:-2]]) if len(a) > 2 else ()
    node.expect(batch is not None, "B", f"batch dims {b[:-2]}", f"some that broadcast with A's {a[:-2]}")
    node.result("C", (*batch, a[-2], b[-1]))


@matmul.lower
def _(part):
    a, b = alike(part, part.input("A"), part.input("B"))
    written, out = target(part, "C", a.dtype)
    part.call("matmul", (a, b), (written,), *PLAIN, scalars=(1.0, 1.0))
    part.done(written, out)


PLAIN = False, False, None, None, None, False, False
"""Parameters of a product: no transposition, nothing fused."""


def _fuse_matmul(part):
    if prologue(part.nodes[1:], part.node):
        return _make_operands(part)
    if part.nodes[1].op in ("matmul", "slice"):
        return _multiply_by_both(part, *part.nodes[:3])
    a, b = alike(part, part.input("A"), part.input("B"))
    chain = chain_of(part, OPERATIONS, part.node.output("C"), ACCUMULATOR.get(a.dtype, "float32"), OUTPUTS[a.dtype])
    part.call("matmul", (a, b), (chain.main,), *PLAIN, scalars=(1.0, 1.0), chain=chain)
    if chain.program.row_steps:
        part.expect_an_algorithm()


matmul.fuse(_fuse_matmul, makes=("A", "B"), axes=lambda rank: ((rank - 2,), (rank - 1,)), shares=("A",), levels=True)


def _multiply_by_both(part, first, second, third):
    """Two products of one left operand, or one whose columns the second and the third node halve, and a program of both."""
    if second.op == "matmul":
        a, b, b_dual = alike(part, part.input("A"), part.input("B"), part.memory(part.spec.tensor(second.input("B"))))
        anchors = first.output("C"), second.output("C")
    else:
        a, both = alike(part, part.input("A"), part.input("B"))
        n, strides = both.shape[-1] // 2, both.tensor.strides
        b, b_dual = (both.view((*both.shape[:-1], n), strides, k * n * strides[-1]) for k in range(2))
        anchors = second.output("Y"), third.output("Y")
        if not part.spec.tensor(first.output("C")).virtual or first.output("C") in part.needed:
            part.needed = part.needed | set(anchors)  # which are views of it
    chain = chain_of(part, OPERATIONS, anchors, ACCUMULATOR.get(a.dtype, "float32"), OUTPUTS[a.dtype])
    part.problem(MatmulProblem, {"a": a, "b": b, "b_dual": b_dual}, {"y": chain.main}, {"alpha": 1.0, "beta": 1.0}, chain=chain)


def _make_operands(part):
    """The product of operands that its kernel makes."""
    made = {uid for n in prologue(part.nodes[1:], part.node) for _, uid in n.outputs}
    ports = {"a": "A", "b": "B"}
    dtypes = [part.dtype(part.spec_of(port)) for port in ports.values()]
    dtype = common_dtype(*dtypes) or dtypes[0]
    if dtype not in MADE:
        raise cudnnGraphNotSupportedError(f"{part}: a prologue makes {', '.join(dtypes)}; products take {', '.join(MADE)}")
    chains, refs = {}, {}
    for of, port in ports.items():
        if part.node.input(port) in made:
            chains[of] = prologue_of(part, OPERATIONS, port, dtype)
            refs[of] = chains[of].main
        else:
            refs[of] = part.converted(part.input(port), dtype)
    chain = chain_of(part, OPERATIONS, part.node.output("C"), ACCUMULATOR.get(dtype, "float32"), OUTPUTS[dtype])
    written, out = (chain.main, None) if chain else target(part, "C", dtype)
    part.problem(MatmulProblem, refs, {"y": written}, {"alpha": 1.0, "beta": 1.0}, chain=chain, prologues=chains, dtype=dtype)
    if out is not None:
        part.done(written, out)
    elif chain.program.row_steps:
        part.expect_an_algorithm()


MADE = ("float16", "bfloat16", "float32", "int8")


# ---- convolution


def geometry(function, padding, pre_padding, post_padding, stride, dilation, mode):
    """Attributes of a convolution; `padding` is on both sides."""
    if padding is not None and (pre_padding is not None or post_padding is not None):
        raise TypeError(f"{function}: got padding and pre_padding or post_padding; expected one or the other")
    pre = pre_padding if pre_padding is not None else padding if padding is not None else ()
    post = post_padding if post_padding is not None else padding if padding is not None else ()
    return {"pre_padding": _ints(function, "pre_padding", pre), "post_padding": _ints(function, "post_padding", post),
            "stride": _ints(function, "stride", stride), "dilation": _ints(function, "dilation", dilation),
            "convolution_mode": member(convolution_mode, mode, f"{function}: convolution_mode").name}


def _ints(function, name, values):
    try:
        return tuple(operator.index(v) for v in values)
    except TypeError:
        raise TypeError(f"{function}: {name} is {values!r}; expected a sequence of ints") from None


@operation(tag="CONV_FPROP")
def conv_fprop(image, weight, padding=None, pre_padding=None, post_padding=None, stride=(), dilation=(),
               convolution_mode=convolution_mode.CROSS_CORRELATION):
    """Convolution of an image (N, C, spatial dims) with filters (K, C / groups, spatial dims), for one to three spatial dims.

    Parameters
    ----------
    padding : sequence of int
        Of each spatial dim, on both sides; or `pre_padding` and `post_padding`. Default: none.
    stride, dilation : sequence of int
        Default: 1.
    """
    return ({"X": image, "W": weight},
            geometry("conv_fprop", padding, pre_padding, post_padding, stride, dilation, convolution_mode))


@operation(outputs="DX", tag="CONV_DGRAD")
def conv_dgrad(loss, filter, padding=None, pre_padding=None, post_padding=None, stride=(), dilation=(),
               convolution_mode=convolution_mode.CROSS_CORRELATION):
    """The gradient of a convolution with respect to its image, whose dims must be set (``set_dim``)."""
    return ({"DY": loss, "W": filter},
            geometry("conv_dgrad", padding, pre_padding, post_padding, stride, dilation, convolution_mode))


@operation(outputs="DW", tag="CONV_WGRAD")
def conv_wgrad(image, loss, padding=None, pre_padding=None, post_padding=None, stride=(), dilation=(),
               convolution_mode=convolution_mode.CROSS_CORRELATION):
    """The gradient of a convolution with respect to its filters, whose dims must be set (``set_dim``)."""
    return ({"X": image, "DY": loss},
            geometry("conv_wgrad", padding, pre_padding, post_padding, stride, dilation, convolution_mode))


@conv_fprop.infer
def _(node):
    _infer(node, "X", "W", "Y")


@conv_dgrad.infer
def _(node):
    _infer(node, "DX", "W", "DY")


@conv_wgrad.infer
def _(node):
    _infer(node, "X", "DW", "DY")


def _infer(node, x_port, w_port, y_port):
    """Check the dims of the image, filters and result; complete those that the forward direction infers."""
    unset = next((port for port in (x_port, w_port) if port in node.outputs and node.outputs[port]._dim is None), None)
    if unset:
        raise AttributeNotSet(f"{node.where(unset)}: dims are not set, and strides of 1 and more leave them open; call set_dim")
    x, w = node.dim(x_port), node.dim(w_port)
    node.expect(3 <= len(x) <= 5, x_port, f"dims {x}", "N, C, and one to three spatial dims")
    node.expect(len(w) == len(x), w_port, f"dims {w}", f"as many as the image's {x}")
    spatial = len(x) - 2
    for key, default in (("pre_padding", 0), ("post_padding", 0), ("stride", 1), ("dilation", 1)):
        values = node.attributes[key] or (default,) * spatial
        node.expect(len(values) == spatial, x_port, f"{key} {values}", f"one for each of {spatial} spatial dims")
        node.expect(all(v >= default for v in values), x_port, f"{key} {values}", f"{default} at least")
        node.attributes[key] = values
    node.expect(w[1] and x[1] % w[1] == 0, w_port, f"{w[1]} channels of a filter", f"a divisor of the image's {x[1]}")
    node.expect(w[0] % (x[1] // w[1]) == 0 if x[1] else True, w_port, f"{w[0]} filters", f"a multiple of {x[1] // w[1]} groups")
    extents = []
    for k, (n, r) in enumerate(zip(x[2:], w[2:])):
        padded = n + node.attributes["pre_padding"][k] + node.attributes["post_padding"][k]
        extents.append((padded - node.attributes["dilation"][k] * (r - 1) - 1) // node.attributes["stride"][k] + 1)
    node.expect(min(extents) >= 1, w_port, f"filters of {w[2:]} over an image of {x[2:]}, which give {tuple(extents)}", "1 at least")
    y = (x[0], w[0], *extents)
    if y_port in node.outputs:
        node.result(y_port, y, channels_last)
    else:
        node.expect_dim(y_port, y)
    for port in (x_port, w_port):
        if port in node.outputs:
            node.result(port, None, channels_last)


def _is_channels_last(*refs):
    return all(r.tensor.strides[1] == 1 or r.shape[1] == 1 for r in refs) and any(r.tensor.strides[1] == 1 < r.shape[1] for r in refs)


def _made_image(part, other):
    """({port: Ref} of the operands, X and `other`, of a convolution whose kernel makes the image, the `Chain` that it is made by, their
    dtype)"""
    dtypes = [part.dtype(part.spec_of(port)) for port in ("X", other)]
    dtype = common_dtype(*dtypes) or dtypes[0]
    if dtype not in ("float16", "bfloat16", "float32"):
        raise cudnnGraphNotSupportedError(f"{part}: a prologue makes {', '.join(dtypes)}; convolutions take float16, bfloat16 and float32")
    pixels, (channels,) = _axes(len(part.spec_of("X").dim))
    made = prologue_of(part, OPERATIONS, "X", dtype, (pixels, channels))
    return {"X": made.main, other: part.converted(part.input(other), dtype)}, made, dtype


class _Own:
    """What the kernels of a convolution do themselves, ``activation(conv + residual + bias)``, where the part's other nodes are just that:
    every algorithm has it, few run programs.

    Attributes
    ----------
    refs : {str: Ref}
        The bias, one value a channel, and the residual, if there are any.
    activation : Activation or None
    y : int or None
        uid of what the last node makes; None where the nodes are something else. With a filter's gradient they are but an identity.
    """

    def __init__(self, part, op, uid, dtype):
        self.part, self.refs, self.activation, self.y = part, {}, None, uid
        self.is_filter, self.dim = op == "conv_bwd_filter", part.spec.tensor(uid).dim
        self.compute, (_, *left) = ACCUMULATOR.get(dtype, "float32"), part.nodes
        while dtype in FLOATS and (found := sole_reader(part, OPERATIONS, left, self.y, self.compute)) and self._takes(*found):
            left.remove(found[0])
            self.y = found[0].outputs[0][1]
        if left or part.dtype(part.spec.tensor(self.y)) not in OUTPUTS[dtype]:
            self.y = None

    def _takes(self, node, function, others):
        """Whether the kernels have this node, too, after those that were found before."""
        kind = function.op, function.mode
        if kind == ("unary", "identity"):
            return True
        if self.is_filter or self.activation is not None:
            return False
        if function.op == "activation_fwd":
            self.activation = function.activation
            return True
        return kind == ("binary", "add") and self._adds(others[0])

    def _adds(self, t):
        if t.by_value or self.part.dtype(t) not in (FLOATS if self.compute == "float64" else FLOATS[1:]):
            return False
        (_, channels, *pixels), dim = self.dim, (*(1,) * (len(self.dim) - len(t.dim)), *t.dim)
        if dim == tuple(self.dim) and "residual" not in self.refs:
            self.refs["residual"] = self.part.memory(t)
        elif dim == (1, channels, *(1 for _ in pixels)) and "bias" not in self.refs:
            ref = self.part.memory(t)
            self.refs["bias"] = ref.view((channels,), (ref.tensor.strides[-len(pixels) - 1],))
        else:
            return False
        return True


def _lower(part, op, x_port, w_port, y_port, fused=False):
    made = chain = own = None
    result = {"conv_fwd": y_port, "conv_bwd_data": x_port, "conv_bwd_filter": w_port}[op]
    if fused and prologue(part.nodes[1:], part.node):
        converted, made, dtype = _made_image(part, w_port if op == "conv_fwd" else y_port)
    else:
        inputs = {port: part.input(port) for port in (x_port, w_port, y_port) if port != result}
        converted = dict(zip(inputs, alike(part, *inputs.values())))
        dtype = next(iter(converted.values())).dtype
    if op != "conv_fwd" and dtype not in FLOATS:
        converted, dtype = {port: part.converted(r, "float32") for port, r in converted.items()}, "float32"
    if fused and made is None:
        own = _Own(part, op, part.node.output(result), dtype)
    if fused and (own is None or own.y is None):
        rows, (columns,) = _axes(len(part.spec_of(result).dim))
        own, chain = None, chain_of(part, OPERATIONS, part.node.output(result), ACCUMULATOR.get(dtype, "float32"), OUTPUTS[dtype],
                                    (rows, columns))
    if own is not None:
        written = out = part.memory(part.spec.tensor(own.y))
    elif chain is not None:
        written = out = chain.main
    else:
        written, out = target(part, result, dtype)
    converted[result], refs = written, own.refs if own else {}
    x, w, y = (converted[port] for port in (x_port, w_port, y_port))
    groups = x.shape[1] // w.shape[1]
    rank = len(x.shape)
    layout = "NCHW"
    if _is_channels_last(x, y):
        layout, order = "NHWC", (0, *range(2, rank), 1)
        x, w, y = (r.permuted(order) for r in (x, w, y))
        chain, made = chain and chain.permuted(order), made and made.permuted(order)
        refs = {name: r.permuted(order) if name == "residual" else r for name, r in refs.items()}
    operands = {"x": x, "w": w, "y": y}
    name = {x_port: "x", w_port: "w", y_port: "y"}[result]
    part.problem(ConvProblem, {**operands, **refs}, {name: operands[name]}, {"alpha": 1.0, "beta": 0.0}, chain=chain,
                 prologues={"a": made} if made else None, dtype=dtype, op=op, groups=groups, layout=layout,
                 stride=part.attribute("stride"), padding=tuple(zip(part.attribute("pre_padding"), part.attribute("post_padding"))),
                 dilation=part.attribute("dilation"), mode=part.attribute("convolution_mode").lower(),
                 activation=Activation.of(own.activation if own else None))
    part.done(written, out)


def _axes(rank):
    """Of an image: the axes of pixels, and of channels."""
    return (0, *range(2, rank)), (1,)


conv_fprop.lower(lambda part: _lower(part, "conv_fwd", "X", "W", "Y"))
conv_dgrad.lower(lambda part: _lower(part, "conv_bwd_data", "DX", "W", "DY"))
conv_fprop.fuse(lambda part: _lower(part, "conv_fwd", "X", "W", "Y", fused=True), makes=("X",), axes=_axes)
conv_dgrad.fuse(lambda part: _lower(part, "conv_bwd_data", "DX", "W", "DY", fused=True), axes=_axes)
conv_wgrad.lower(lambda part: _lower(part, "conv_bwd_filter", "X", "DW", "DY"))
conv_wgrad.fuse(lambda part: _lower(part, "conv_bwd_filter", "X", "DW", "DY", fused=True), makes=("X",))
