"""Reductions, the statistics of channels that batch normalization is made of (genstats, bn_finalize, dbn_weight), and softmax."""
import math

from ...host.products import FLOATS
from ...norm import BatchNormGradientProblem, BatchNormProblem
from .._enums import data_type, member, reduction_mode
from .._errors import InvalidValue
from .._fuse import Arithmetic, chain_of
from .._infer import channels_last
from ._define import OPERATIONS, operation
from .norm import Arrays, _channels, images, squeezed

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


reduction.reduces = lambda node: (("Y", node.attribute("mode").lower()),)


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


genstats.reduces = lambda node: (("SUM", "add"), ("SQ_SUM", "sum_square"))


@genstats.infer
def _(node):
    wanted = _channels(node)
    for port in ("SUM", "SQ_SUM"):
        node.result(port, wanted, channels_last, dtype=data_type.FLOAT)


@genstats.lower
def _(part):
    """Sums from batch normalization's statistics, which read the input once."""
    arrays = Arrays(part, ("X",), ())
    x, dim = arrays.whole("X"), part.spec_of("X").dim
    layout, (x,) = images(x)
    mean, rstd = (part.temporary((dim[1],), arrays.compute) for _ in range(2))
    operands = dict.fromkeys(("gamma", "beta", "running_mean", "running_var", "residual"))
    part.problem(BatchNormProblem, {"x": x, **operands}, {"y": None, "mean": mean, "rstd": rstd},
                 {"eps": 0.0, "momentum": 0.0}, layout=layout)
    small = part.spec_of("SUM").dim
    do = Arithmetic(part, "float64", small)
    mean, rstd = (do.load(r.view(small, [int(k == 1) for k in range(len(small))])) for r in (mean, rstd))
    count = do.constant(math.prod(dim) // max(dim[1], 1))
    square = do("add", do("reciprocal", do("mul", rstd, rstd)), do("mul", mean, mean))
    store(part, do, {"SUM": do("mul", mean, count), "SQ_SUM": do("mul", square, count)})


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


@bn_finalize.lower
def _(part):
    """In double: the variance is a difference of large numbers."""
    do = Arithmetic(part, "float64", part.spec_of("SUM").dim)
    count, zero, one = do.of("ACCUM_COUNT"), do.constant(0), do.constant(1)
    mean = do("div", do.of("SUM"), count)
    var = do("max", do("sub", do("div", do.of("SQ_SUM"), count), do("mul", mean, mean)), zero)
    rstd = do("rsqrt", do("add", var, do.of("EPSILON")))
    eq_scale = do("mul", do.of("SCALE"), rstd)
    found = {"EQ_SCALE": eq_scale, "EQ_BIAS": do("sub", do.of("BIAS"), do("mul", mean, eq_scale)), "MEAN": mean, "INV_VARIANCE": rstd}
    if part.spec_of("PREV_RUNNING_MEAN") is not None:
        new = do.of("MOMENTUM")
        kept = do("sub", one, new)
        unbiased = do("mul", var, do("div", count, do("max", do("sub", count, one), one)))
        for port, batch in (("MEAN", mean), ("VAR", unbiased)):
            found[f"NEXT_RUNNING_{port}"] = do("add", do("mul", kept, do.of(f"PREV_RUNNING_{port}")), do("mul", new, batch))
    store(part, do, found)


def store(part, do, found):
    """Write those of the values that anybody reads."""
    for port, value in found.items():
        do.store(part.output(port, always=False), value)
    do.done()


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
    """The sums of batch normalization's gradients, without its DX, and arithmetic of them."""
    arrays = Arrays(part, ("X", "DY"), (), same=True)
    compute, dim = arrays.compute, part.spec_of("X").dim
    dscale, dbias = (part.temporary(part.spec_of("SCALE").dim, compute) for _ in range(2))
    layout, (x, dy) = images(arrays.whole("X"), arrays.whole("DY"))
    part.problem(BatchNormGradientProblem, {"dy": dy, "x": x, "gamma": None, "y": None,
                                            **{name: squeezed(arrays.statistic(port), (1,))
                                               for name, port in (("mean", "MEAN"), ("rstd", "INV_VARIANCE"))}},
                 {"dx": None, "dgamma": squeezed(dscale, (1,)), "dbeta": squeezed(dbias, (1,))}, layout=layout)
    do = Arithmetic(part, compute, dscale.shape)
    store(part, do, _of_sums(do, do.load(dscale), do.load(dbias), dim))


def _of_sums(do, by_scale, by_bias, dim):
    """{port: value} of the weights' gradients and of the coefficients, by which an input of these dims gets its gradient."""
    rstd, mean, count = do.of("INV_VARIANCE"), do.of("MEAN"), do.constant(math.prod(dim) // max(dim[1], 1))
    eq_dy = do("mul", do.of("SCALE"), rstd)
    eq_x = do("neg", do("mul", eq_dy, do("div", do("mul", by_scale, rstd), count)))  # of -eq_dy * dscale / n * (x - mean) * rstd
    eq_bias = do("neg", do("add", do("mul", eq_dy, do("div", by_bias, count)), do("mul", eq_x, mean)))
    return {"DSCALE": by_scale, "DBIAS": by_bias, "EQ_SCALE_DY": eq_dy, "EQ_SCALE_X": eq_x, "EQ_BIAS": eq_bias}


@dbn_weight.spell
def _(do):
    """The two sums of columns are those of a product or a convolution whose result DY is made of; the rest is a small kernel."""
    types = {do.spec.tensor(do.of(port)).dtype for port in ("DY", "X")}
    if do.node.compute != "FLOAT" or not types <= {"FLOAT", "HALF", "BFLOAT16"}:
        return False
    x, dy, mean = do.of("X"), do.of("DY"), do.of("MEAN")
    normalized = do("mul", do("sub", x, mean), do.of("INV_VARIANCE"))
    do.results(_of_sums(do, do.sum(do("mul", dy, normalized), do.of("SCALE")), do.sum(dy, do.of("SCALE")), do.dim(x)))
    return True


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


@softmax.fuse
def _(part):
    _softmax(part, "softmax_fwd", ("X",), "Y", fused=True)


def _softmax(part, op, ports, result, fused=False):
    """The result in the operands' type, or forward in any that is computed as theirs."""
    arrays = Arrays(part, ports, () if fused else (result,), same=op == "softmax_bwd")
    shape, chain = part.spec_of(result).dim, None
    axis = part.attribute("axis") % len(shape)
    if fused:
        rows = [d for d in range(len(shape)) if d != axis]
        chain = chain_of(part, OPERATIONS, part.node.output(result), arrays.compute, arrays.results, (rows, axis))
    y = chain.main if fused else arrays.result(result, arrays.results)
    part.call(op, [arrays.whole(port) for port in ports], (y,), axis, False, chain=chain)
    arrays.done()
