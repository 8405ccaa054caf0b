"""Reductions, the statistics of channels that batch normalization is made of (genstats, bn_finalize, dbn_weight), and softmax."""
from .._enums import data_type, member, reduction_mode
from .._errors import InvalidValue
from .._infer import channels_last
from ._define import operation
from .norm import _channels

FLOATS = ("float64", "float32", "float16", "bfloat16")
OF_FLOATS = ("AVG", "NORM2")


@operation(tag="REDUCTION")
def reduction(input, mode):
    """Reduce the dims in which the result's dims, set by ``set_dim``, are 1. Without them nothing is reduced.

    Parameters
    ----------
    mode : reduction_mode
        ADD, MUL, MIN, MAX, AMAX, AVG, NORM1, NORM2 or MUL_NO_ZEROS.
    """
    mode = member(reduction_mode, mode, "reduction: mode")
    if mode is reduction_mode.NOT_SET:
        raise InvalidValue("reduction: mode is NOT_SET")
    return {"X": input}, {"mode": mode.name}


@reduction.infer
def _(node):
    dim, out = node.dim("X"), node.outputs["Y"]
    if out._dim is not None:
        node.expect(len(out._dim) == len(dim) and all(n in (1, m) for n, m in zip(out._dim, dim)), "Y", f"dims {out._dim}",
                    f"1 or X's, {dim}")
    node.result("Y", out._dim or dim, channels_last)


@reduction.lower
def _(part):
    _reduce(part, part.input("X"), part.output("Y"), part.attribute("mode").lower())


def _reduce(part, x, y, mode):
    """Of floats in their own type where the result has it, or floats; else in the compute type, integers as integers."""
    axes = tuple(k for k, (n, m) in enumerate(zip(x.shape, y.shape)) if m == 1 and n != 1)
    if x.dtype in FLOATS:
        # Sums are float32, so the type of x suffices where the result's is that or float32.
        dtype = x.dtype if y.dtype in (x.dtype, "float32") and not (x.dtype == "float64" != y.dtype) else \
            "float64" if "float64" in (x.dtype, y.dtype) else "float32"
    elif mode.upper() in OF_FLOATS or y.dtype in FLOATS:
        dtype = "float64" if x.dtype in ("int32", "int64") or y.dtype == "float64" else "float32"
    else:
        dtype = x.dtype if x.dtype in ("int8", "uint8", "int32", "int64") else "int32"
    x = part.converted(x, dtype)
    kinds = ("int32", "int64") if dtype not in FLOATS else (dtype, "float32") if dtype in FLOATS[2:] else (dtype,)
    written = part.into(y, kinds, kinds[0] if dtype not in FLOATS[2:] else "float32")
    if not axes and mode in ("amax", "norm1", "norm2"):
        part.call("reduce", (x.view((1, *x.shape), (0, *x.tensor.strides)),), (written,), mode, (0,), False, None)
    else:
        part.call("reduce", (x,), (written,), mode, axes, True, None)
    part.done(written, y)


@operation(outputs="SUM SQ_SUM", tag="GENSTATS")
def genstats(input):
    """The sum and the sum of squares of every channel.

    Returns
    -------
    list
        [SUM, SQ_SUM], of dims (1, C, 1, ..) and type FLOAT.
    """
    return {"X": input}, {}


@genstats.infer
def _(node):
    wanted = _channels(node)
    for port in ("SUM", "SQ_SUM"):
        node.result(port, wanted, channels_last, dtype=data_type.FLOAT)


@genstats.lower
def _(part):
    x = part.input("X")
    if x.dtype not in FLOATS:
        x = part.converted(x, "float32")
    for port, mode in (("SUM", "add"), ("SQ_SUM", "sum_square")):
        y = part.output(port, always=False)
        if y is not None:
            _reduce(part, x, y, mode)


# ---- what batch normalization does with such sums


@operation(outputs="EQ_SCALE EQ_BIAS MEAN INV_VARIANCE NEXT_RUNNING_MEAN NEXT_RUNNING_VAR", tag="BN_FINALIZE")
def bn_finalize(sum, sq_sum, scale, bias, epsilon, accum_count, prev_running_mean=None, prev_running_var=None, momentum=None):
    """The statistics of batch normalization from `genstats`'s sums of `accum_count` values.

    Returns
    -------
    list
        [EQ_SCALE, EQ_BIAS, MEAN, INV_VARIANCE, NEXT_RUNNING_MEAN, NEXT_RUNNING_VAR]: ``y = x * eq_scale + eq_bias``; the last two are
        None without running statistics.
    """
    running = (prev_running_mean, prev_running_var, momentum)
    if any(t is None for t in running) and any(t is not None for t in running):
        raise InvalidValue("bn_finalize: expected prev_running_mean, prev_running_var and momentum together, or none of them")
    absent = {} if momentum is not None else {"NEXT_RUNNING_MEAN": None, "NEXT_RUNNING_VAR": None}
    return ({"SUM": sum, "SQ_SUM": sq_sum, "SCALE": scale, "BIAS": bias, "EPSILON": epsilon, "ACCUM_COUNT": accum_count,
             "PREV_RUNNING_MEAN": prev_running_mean, "PREV_RUNNING_VAR": prev_running_var, "MOMENTUM": momentum}, {}, absent)


@bn_finalize.infer
def _(node):
    wanted = node.dim("SUM")
    for port in ("SQ_SUM", "SCALE", "BIAS", "PREV_RUNNING_MEAN", "PREV_RUNNING_VAR"):
        if node.inputs.get(port) is not None:
            node.expect_dim(port, wanted)
    for port in node.operation.outputs:
        node.result(port, wanted, node.stride("SUM"), dtype=data_type.FLOAT)


class Chain:
    """Arithmetic of small arrays, one step an operation, in one type."""

    def __init__(self, part, dtype, shape):
        self.part, self.dtype, self.shape = part, dtype, shape

    def of(self, port):
        """An input, in the type and dims."""
        return self.part.converted(self.part.input(port), self.dtype).broadcast(self.shape)

    def binary(self, mode, a, b):
        """A new array."""
        found = self.part.temporary(self.shape, self.dtype)
        self.part.call("binary", (a, b), (found,), mode)
        return found

    def unary(self, mode, a):
        """A new array."""
        found = self.part.temporary(self.shape, self.dtype)
        self.part.call("unary", (a,), (found,), mode, None)
        return found

    def constant(self, value):
        """A number in every element."""
        found = self.part.temporary((1,) * len(self.shape), self.dtype)
        self.part.fill(found, value)
        return found.broadcast(self.shape)

    def store(self, port, a):
        """Write an output, if anybody reads it."""
        y = self.part.output(port, always=False)
        if y is not None:
            self.part.copy(a, y)


@bn_finalize.lower
def _(part):
    """In double: the variance is a difference of large numbers."""
    do = Chain(part, "float64", part.spec_of("SUM").dim)
    count = do.of("ACCUM_COUNT")
    mean = do.binary("div", do.of("SUM"), count)
    square = do.binary("div", do.of("SQ_SUM"), count)
    var = do.binary("max", do.binary("sub", square, do.binary("mul", mean, mean)), do.constant(0.0))
    rstd = do.unary("rsqrt", do.binary("add", var, do.of("EPSILON")))
    eq_scale = do.binary("mul", do.of("SCALE"), rstd)
    do.store("EQ_SCALE", eq_scale)
    do.store("EQ_BIAS", do.binary("sub", do.of("BIAS"), do.binary("mul", mean, eq_scale)))
    do.store("MEAN", mean)
    do.store("INV_VARIANCE", rstd)
    if part.input("PREV_RUNNING_MEAN") is not None:
        one, new = do.constant(1.0), do.of("MOMENTUM")
        kept = do.binary("sub", one, new)
        unbiased = do.binary("mul", var, do.binary("div", count, do.binary("max", do.binary("sub", count, one), one)))
        for port, batch in (("MEAN", mean), ("VAR", unbiased)):
            moved = do.binary("add", do.binary("mul", kept, do.of(f"PREV_RUNNING_{port}")), do.binary("mul", new, batch))
            do.store(f"NEXT_RUNNING_{port}", moved)


@operation(outputs="DSCALE DBIAS EQ_SCALE_DY EQ_SCALE_X EQ_BIAS", tag="DBN_WEIGHT")
def dbn_weight(dy, x, mean, inv_variance, scale):
    """The gradients of batch normalization's weights, and what its input's gradient is made of.

    Returns
    -------
    list
        [DSCALE, DBIAS, EQ_SCALE_DY, EQ_SCALE_X, EQ_BIAS]: ``dx = dy * eq_scale_dy + x * eq_scale_x + eq_bias``.
    """
    return {"DY": dy, "X": x, "MEAN": mean, "INV_VARIANCE": inv_variance, "SCALE": scale}, {}


@dbn_weight.infer
def _(node):
    wanted = _channels(node, "MEAN", "INV_VARIANCE", "SCALE")
    node.expect_dim("DY", node.dim("X"))
    for port in node.operation.outputs:
        node.result(port, wanted, channels_last, dtype=data_type.FLOAT)


@dbn_weight.lower
def _(part):
    compute = "float64" if part.input("X").dtype == "float64" else "float32"
    x, dy = (part.converted(part.input(port), compute) for port in ("X", "DY"))
    do, small = Chain(part, compute, x.shape), part.spec_of("SCALE").dim
    weights = Chain(part, compute, small)
    hat = do.binary("mul", do.binary("sub", x, do.of("MEAN")), do.of("INV_VARIANCE"))
    axes = tuple(k for k in range(len(x.shape)) if k != 1)
    dscale, dbias = (part.temporary(small, compute) for _ in range(2))
    part.call("reduce", (do.binary("mul", dy, hat),), (dscale,), "add", axes, True, None)
    part.call("reduce", (dy,), (dbias,), "add", axes, True, None)
    count = weights.constant(float(x.tensor.size // max(x.shape[1], 1)))
    rstd, mean = weights.of("INV_VARIANCE"), weights.of("MEAN")
    eq_dy = weights.binary("mul", weights.of("SCALE"), rstd)
    by_x = weights.binary("div", weights.binary("mul", dscale, rstd), count)  # of xhat's part: -eq_dy * dscale / n * (x - mean) * rstd
    eq_x = weights.unary("neg", weights.binary("mul", eq_dy, by_x))
    average = weights.binary("mul", eq_dy, weights.binary("div", dbias, count))
    eq_bias = weights.unary("neg", weights.binary("add", average, weights.binary("mul", eq_x, mean)))
    for port, a in zip(("DSCALE", "DBIAS", "EQ_SCALE_DY", "EQ_SCALE_X", "EQ_BIAS"), (dscale, dbias, eq_dy, eq_x, eq_bias)):
        weights.store(port, a)


# ---- softmax


@operation(tag="SOFTMAX")
def softmax(input, axis=-1):
    """``exp(x - max) / sum(exp(x - max))`` along an axis."""
    return {"X": input}, {"axis": int(axis)}


@operation(outputs="DX", tag="SOFTMAX_BPROP")
def softmax_backward(loss, input, axis=-1):
    """The gradient of `softmax`, from its result, which is `input`."""
    return {"DY": loss, "Y": input}, {"axis": int(axis)}


def _infer_softmax(node):
    first = "X" if "X" in node.inputs else "Y"
    dim, axis = node.dim(first), node.attributes["axis"]
    node.expect(-len(dim) <= axis < len(dim), first, f"axis {axis} of {len(dim)} dims", f"{-len(dim)} to {len(dim) - 1}")
    if first == "Y":
        node.expect_dim("DY", dim)
    node.result("Y" if first == "X" else "DX", dim, node.stride(first))


softmax.infer(_infer_softmax)
softmax_backward.infer(_infer_softmax)


@softmax.lower
def _(part):
    _softmax(part, "softmax_fwd", ("X",), "Y")


@softmax_backward.lower
def _(part):
    _softmax(part, "softmax_bwd", ("DY", "Y"), "DX")


def _softmax(part, op, ports, result):
    refs, y = [part.input(port) for port in ports], part.output(result)
    found = {r.dtype for r in (*refs, y)}
    (dtype,) = found if len(found) == 1 and found <= set(FLOATS) else ("float64" if "float64" in found else "float32",)
    written = part.into(y, (dtype,), dtype)
    part.call(op, [part.converted(r, dtype) for r in refs], (written,), part.attribute("axis") % len(y.shape), False)
    part.done(written, y)
