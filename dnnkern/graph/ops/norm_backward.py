"""The gradients of normalizations, from the statistics that the forward operations returned."""
from ...device.pointwise import Function
from ...host.choices import activation_of
from ...norm import BatchNormGradientProblem, GroupNormGradientProblem, LayerNormGradientProblem, RmsNormGradientProblem
from .._errors import cudnnGraphNotSupportedError
from .._fuse import Arithmetic, prologue_of
from .._infer import channels_last
from .._ir import prologue
from ._define import OPERATIONS, operation
from .norm import Arrays, _channels, as_rows, images, normalized, squeezed


def _ports(grad, input, scale, mean, inv_variance):
    return {"DY": grad, "X": input, "SCALE": scale, "MEAN": mean, "INV_VARIANCE": inv_variance}


def _results(node, weight):
    node.expect_dim("DY", node.dim("X"))
    node.result("DX", node.dim("X"), node.stride("X"))
    for port in ("DSCALE", "DBIAS"):
        node.result(port, weight, node.stride("SCALE") if node.inputs.get("SCALE") is not None else channels_last)


# ---- rows


@operation(outputs="DX DSCALE DBIAS", tag="LAYERNORM_BPROP")
def layernorm_backward(grad, input, scale, mean, inv_variance):
    """The gradients of `layernorm`.

    Returns
    -------
    list
        [DX, DSCALE, DBIAS]
    """
    return _ports(grad, input, scale, mean, inv_variance), {}


@operation(outputs="DX DSCALE DBIAS", tag="RMSNORM_BPROP")
def rmsnorm_backward(grad, input, scale, inv_variance, has_dbias=False):
    """The gradients of `rmsnorm`.

    Returns
    -------
    list
        [DX, DSCALE, DBIAS]; None for DBIAS without `has_dbias`.
    """
    ports = _ports(grad, input, scale, None, inv_variance)
    return ports, {"has_dbias": bool(has_dbias)}, {} if has_dbias else {"DBIAS": None}


@operation(outputs="DX DSCALE DBIAS", tag="ADALAYERNORM_BPROP")
def adalayernorm_backward(grad, input, scale, mean, inv_variance):
    """The gradients of `adalayernorm`; results as `layernorm_backward`'s, one DSCALE and DBIAS for each sample."""
    return _ports(grad, input, scale, mean, inv_variance), {}


def _infer_rows(node, adaptive=False):
    dim, scale = node.dim("X"), node.dim("SCALE")
    node.expect(len(scale) == len(dim) and all(n in (1, m) for n, m in zip(scale, dim)), "SCALE", f"dims {scale}", f"1 or X's, {dim}")
    axes = normalized(dim, scale, adaptive)
    for port in ("MEAN", "INV_VARIANCE"):
        if node.inputs.get(port) is not None:
            node.expect_dim(port, tuple(1 if k in axes else n for k, n in enumerate(dim)))
    _results(node, scale)


layernorm_backward.infer(_infer_rows)
rmsnorm_backward.infer(_infer_rows)
adalayernorm_backward.infer(lambda node: _infer_rows(node, adaptive=True))


@layernorm_backward.lower
def _(part):
    _lower_rows(part, LayerNormGradientProblem, ("mean", "rstd"))


@rmsnorm_backward.lower
def _(part):
    _lower_rows(part, RmsNormGradientProblem, ("rstd",))


def _lower_rows(part, kind, statistics):
    arrays = Arrays(part, ("X", "DY"), ("DX",), same=True)
    x, dy, gamma = arrays.whole("X"), arrays.whole("DY"), arrays.weight("SCALE")
    axes = normalized(x.shape, gamma.shape)
    kept = tuple(k for k in range(len(x.shape)) if k not in axes)
    dx = arrays.result("DX", arrays.results, x.shape)
    dgamma = squeezed(arrays.result("DSCALE", arrays.weights, gamma.shape), axes)
    dbeta = squeezed(arrays.result("DBIAS", arrays.weights, gamma.shape), axes) if part.attribute("has_dbias", True) else None
    known = {name: squeezed(arrays.statistic(port), kept)
             for name, port in (("mean", "MEAN"), ("rstd", "INV_VARIANCE")) if name in statistics}
    part.problem(kind, {"dy": as_rows(dy, kept, axes), "x": as_rows(x, kept, axes), "gamma": squeezed(gamma, axes), **known},
                 {"dx": as_rows(dx, kept, axes), "dgamma": dgamma, "dbeta": dbeta}, axis=len(kept))
    arrays.done()


@adalayernorm_backward.lower
def _(part):
    """In the compute type: DX is layer normalization's, of the gradient times the sample's scale; DSCALE and DBIAS are sums over a
    sample."""
    arrays = Arrays(part, ("X", "DY"), ("DX",), same=True)
    compute, shape, small = arrays.compute, part.spec_of("X").dim, part.spec_of("SCALE").dim
    axes = normalized(shape, small, adaptive=True)
    kept = tuple(k for k in range(len(shape)) if k not in axes)
    summed = tuple(k for k in range(len(shape)) if small[k] == 1 and shape[k] != 1)
    scaled, product, dy = (part.temporary(shape, compute) for _ in range(3))
    do = Arithmetic(part, compute, shape)
    given = do.of("DY")
    do.store(scaled, do("mul", given, do.of("SCALE")))
    do.store(product, do("mul", given, do("mul", do("sub", do.of("X"), do.of("MEAN")), do.of("INV_VARIANCE"))))
    do.store(dy, given)
    do.done()
    x = part.converted(part.input("X"), compute)
    dx = arrays.result("DX", (compute,), shape)
    unused = [part.temporary([shape[a] for a in axes], compute) for _ in range(2)]
    part.problem(LayerNormGradientProblem, {"dy": as_rows(scaled, kept, axes), "x": as_rows(x, kept, axes), "gamma": None,
                                            "mean": squeezed(arrays.statistic("MEAN"), kept),
                                            "rstd": squeezed(arrays.statistic("INV_VARIANCE"), kept)},
                 {"dx": as_rows(dx, kept, axes), "dgamma": unused[0], "dbeta": unused[1]}, axis=len(kept))
    for port, of in (("DSCALE", product), ("DBIAS", dy)):
        result = arrays.result(port, (compute,), small)
        if summed:
            part.call("reduce", (of,), (result,), "add", summed, True, None)
        else:
            part.copy(of, result)
    arrays.done()


# ---- channels


@operation(outputs="DX DSCALE DBIAS", tag="INSTANCENORM_BPROP")
def instancenorm_backward(grad, input, scale, mean=None, inv_variance=None):
    """The gradients of `instancenorm`; results as `layernorm_backward`'s."""
    return _ports(grad, input, scale, mean, inv_variance), {}


@operation(outputs="DX DSCALE DBIAS", tag="GROUPNORM_BPROP")
def groupnorm_backward(grad, input, scale, mean, inv_variance, num_groups):
    """The gradients of `groupnorm`; results as `layernorm_backward`'s."""
    return _ports(grad, input, scale, mean, inv_variance), {"groups": int(num_groups)}


@operation(outputs="DX DSCALE DBIAS", tag="BATCHNORM_BPROP")
def batchnorm_backward(grad, input, scale, mean, inv_variance, peer_stats=()):
    """The gradients of `batchnorm`; results as `layernorm_backward`'s."""
    peers = {f"PEER_STAT_{k}": t for k, t in enumerate(peer_stats or ())}
    return {**_ports(grad, input, scale, mean, inv_variance), **peers}, {}


def _infer_groups(node):
    weight, dim = _channels(node, "SCALE"), node.dim("X")
    groups = node.attributes.get("groups", dim[1])
    node.expect(groups >= 1 and dim[1] % groups == 0, "X", f"{dim[1]} channels", f"a multiple of {groups} groups")
    missing = [port for port in ("MEAN", "INV_VARIANCE") if node.inputs.get(port) is None]
    if missing:
        node.refuse(None, f"without {' and '.join(missing)}; expected what the forward operation returned")
    for port in ("MEAN", "INV_VARIANCE"):
        node.expect_dim(port, (dim[0], groups, *(1,) * (len(dim) - 2)))
    _results(node, weight)


instancenorm_backward.infer(_infer_groups)
groupnorm_backward.infer(_infer_groups)


@batchnorm_backward.infer
def _(node):
    weight = _channels(node, "SCALE", "MEAN", "INV_VARIANCE")
    if any(port.startswith("PEER_STAT") for port in node.inputs):
        node.refuse(None, "peer_stats, statistics of several GPUs; expected none")
    _results(node, weight)


def _takes(spec, node, others, outside):
    """What `Operation.takes` tells: kernels make dy; their results are in memory when they are done."""
    results = {uid for _, uid in node.outputs}
    if any(uid in results for other in others for _, uid in other.inputs):
        return f"results of {node.op} are read from memory"
    return None


class Past:
    """What a gradient by channels does to dy before its sums, of a part whose pointwise nodes make DY: a program, `chain`, or relu's
    gradient of `y`, which the kernel has as `activation`. `dy` is the array that it is done to; `kept` is where what it gives is stored
    as well, or None. Without such nodes DY is `dy`."""

    def __init__(self, part):
        self.activation, self.y, self.chain, self.kept, t = None, None, None, None, part.spec_of("DY")
        nodes = prologue(part.nodes[1:], part.node)
        if not nodes:
            self.dy = part.input("DY")
            return
        if not t.virtual or t.uid in part.needed:
            self.kept = part.memory(t)
        x = part.input("X")
        self._find_relu(part, nodes, t, x)
        if self.y is None:
            compute = "float64" if x.dtype == "float64" else "float32"
            self.chain = prologue_of(part, OPERATIONS, "DY", compute, ((0, *range(2, len(t.dim))), 1), (x.dtype,))
            self.dy = self.chain.main
        dtypes = {x.dtype, self.dy.dtype, *(r.dtype for r in (self.y, self.kept, part.output("DX", always=False)) if r is not None)}
        if len(dtypes) > 1:
            raise cudnnGraphNotSupportedError(f"{part}: DY is made of {self.dy.dtype}, beside {', '.join(sorted(dtypes))}; expected one")

    def _find_relu(self, part, nodes, t, x):
        """relu's gradient of arrays like x: its results are its operands' values, or 0, so that nothing is rounded."""
        (function, of), *more = OPERATIONS[nodes[-1].op].formula(nodes[-1])
        if len(nodes) > 1 or more or function != Function.of("relu_backward") or part.dtype(t) not in (x.dtype, "float32", "float64"):
            return
        dy, y = (part.spec.tensor(nodes[-1].input(port)) for port in of)
        if all(o.dim == t.dim and not o.by_value and part.dtype(o) == x.dtype for o in (dy, y)):
            self.activation, self.dy, self.y = "relu", part.memory(dy), part.memory(y)


def _lower_channels(part, kind, statistic, **fields):
    past = Past(part)
    arrays = Arrays(part, ("X",), ("DX",), same=True, more=(past.dy,))
    x, dy = arrays.whole("X"), part.converted(past.dy, arrays.dtype)
    small, rank = (1, x.shape[1], *(1,) * (len(x.shape) - 2)), len(x.shape)
    dx = arrays.result("DX", arrays.results, x.shape)
    dgamma, dbeta = (squeezed(arrays.result(port, arrays.weights, small), (1,)) for port in ("DSCALE", "DBIAS"))
    beside = {name: r for name, r in (("y", past.y), ("dresidual", past.kept)) if r is not None}
    layout, (x, dy, dx, *others) = images(x, dy, dx, *beside.values())
    beside = dict(zip(beside, others))
    chain = past.chain and past.chain.permuted((0, *range(2, rank), 1) if layout == "NHWC" else range(rank))
    mean, rstd = (squeezed(arrays.statistic(port), statistic) for port in ("MEAN", "INV_VARIANCE"))
    results = {"dx": dx, "dgamma": dgamma, "dbeta": dbeta}
    if past.kept is not None:
        results["dresidual"] = beside["dresidual"]
    part.problem(kind, {"dy": dy, "x": x, "gamma": squeezed(arrays.weight("SCALE"), (1,)), "mean": mean, "rstd": rstd,
                        "y": beside.get("y")}, results, chain=chain, layout=layout,
                 activation=activation_of(part.node.op, past.activation), **fields)
    arrays.done()


def _lower_groups(part):
    _lower_channels(part, GroupNormGradientProblem, (0, 1), groups=part.attribute("groups", part.spec_of("X").dim[1]))


def _lower_batch(part):
    _lower_channels(part, BatchNormGradientProblem, (1,))


for _operation in (instancenorm_backward, groupnorm_backward):
    _operation.lower(_lower_groups)
    _operation.fuse(_lower_groups, takes=_takes, makes=("DY",))
batchnorm_backward.lower(_lower_batch)
batchnorm_backward.fuse(_lower_batch, takes=_takes, makes=("DY",), keeps=("DY",))
