"""Normalizations and their gradients: batch, layer, adaptive layer, RMS, instance and group; statistics of them alone and their use.

Layer and RMS normalization run over the dims in which the scale is not 1; adaptive layer normalization has a scale for each sample.
Statistics have 1 there, INV_VARIANCE is 1 / sqrt(variance + epsilon). Variances are of all n values, the running one of n - 1.
"""
import itertools

from ...device.pointwise import Function
from .._enums import member, norm_forward_phase
from .._errors import InvalidValue
from .._fuse import chain_of, made_of, sole_reader
from .._infer import channels_last, row_major
from .._ir import prologue
from ...host.choices import activation_of
from ...host.products import FLOATS, FP8, alike
from ...norm import BatchNormProblem, LayerNormProblem, RmsNormProblem
from ._define import OPERATIONS, operation

TRAINING = norm_forward_phase.TRAINING.name


def phase_of(function, phase):
    """The phase's name; statistics are results of training alone."""
    found = member(norm_forward_phase, phase, f"{function}: norm_forward_phase")
    if found is norm_forward_phase.NOT_SET:
        raise InvalidValue(f"{function}: norm_forward_phase is NOT_SET; expected INFERENCE or TRAINING")
    return found.name


def normalized(node_dim, scale_dim, adaptive=False):
    """The dims that are normalized: where the scale is not 1, or, where it is 1 throughout, those after the first in which x is 1 too."""
    found = tuple(k for k, n in enumerate(scale_dim) if n != 1 and not (adaptive and k == 0))
    return found or tuple(k for k, n in enumerate(node_dim) if k and n == 1)


# ---- the library's arrays of a node


class Arrays:
    """The operands and results of a normalization in the types its kernels take: operands of x's dims in one type, results of these dims
    in those of `results`, weights in `weights`, statistics in the type of the sums."""

    def __init__(self, part, whole, results, same=False, more=()):
        """`same`: results have the operands' type; `more`: arrays of x's dims that are operands as well."""
        self.part = part
        of_results = {r.dtype for port in results if (r := part.output(port)) is not None}
        found = {part.input(port).dtype for port in whole} | {r.dtype for r in more}
        if len(found) > 1 or same and found != of_results or "float64" in of_results:
            found |= of_results
        (dtype,) = found if len(found) == 1 else ("float64" if "float64" in found else "float32",)
        self.dtype = dtype if dtype in FLOATS else "float32"
        self.compute = "float64" if self.dtype == "float64" else "float32"
        self.weights = alike(self.dtype)
        self.results = (self.dtype,) if same else self.weights
        self.pending = []

    def whole(self, port):
        """An operand of x's dims."""
        return self.part.converted(self.part.input(port), self.dtype)

    def weight(self, port):
        """A scale or a bias; None where it is missing."""
        r = self.part.input(port)
        return r if r is None or r.dtype in self.weights else self.part.converted(r, self.compute)

    def statistic(self, port):
        """A mean or an inverse deviation."""
        return self.part.converted(self.part.input(port), self.compute)

    def result(self, port, dtypes, dim=None):
        """A result that may have one of these types; a temporary of these dims where the node has no such result."""
        target = self.part.output(port)
        return self.part.temporary(dim, self._preferred(dtypes)) if target is None else self._written(target, dtypes)

    def result_of(self, uid, dtypes):
        """The same of a tensor that another node of the part makes."""
        return self._written(self.part.memory(self.part.spec.tensor(uid)), dtypes)

    def _preferred(self, dtypes):
        return self.compute if self.compute in dtypes else dtypes[0]

    def _written(self, target, dtypes):
        written = self.part.into(target, dtypes, self._preferred(dtypes))
        self.pending.append((written, target))
        return written

    def done(self):
        """Convert the results that are of other types."""
        for written, target in self.pending:
            self.part.done(written, target)


def squeezed(ref, axes):
    """An array without the dims that are not among `axes`; those have extent 1."""
    return None if ref is None else ref.view([ref.shape[a] for a in axes], [ref.tensor.strides[a] for a in axes])


def images(*refs):
    """(layout, arrays of x's dims as that layout has them): "NHWC" where the channels are the fastest dim of all, else as they are."""
    x = refs[0]
    rank = len(x.shape)
    if rank > 2 and x.shape[1] > 1 and all(r.tensor.strides[1] == 1 for r in refs):
        return "NHWC", [r.permuted((0, *range(2, rank), 1)) for r in refs]
    return "NCHW", list(refs)


def as_rows(ref, kept, axes):
    """An array of x's dims with the normalized ones at the end."""
    return ref.permuted((*kept, *axes))


# ---- pointwise neighbours


def _takes(spec, node, others, outside):
    """What `Operation.takes` tells: kernels run any program of y; their statistics are in memory when they are done."""
    results = {uid for port, uid in node.outputs if port != "Y"}
    if any(uid in results for other in others for _, uid in other.inputs):
        return f"statistics of {node.op} are read from memory"
    return None


class After:
    """The pointwise nodes of a part after a normalization by channels. Its kernels have an addition of an array of x's type (`addition`)
    and an activation, in this order, of their own: `residual` (of one or none) and `activation`; the nodes that are left are `chain`, or
    None. `y` is where the result goes."""

    def __init__(self, part, arrays, addition=False):
        self.part, self.compute, self.residual, self.activation = part, arrays.compute, [], None
        _, *self.left = part.nodes
        value = part.node.output("Y")
        while self.activation is None and (node := self._next(value, arrays.dtype, addition)) is not None:
            self.left.remove(node)
            value = node.outputs[0][1]
        rank, self.chain = len(part.spec.tensor(value).dim), None
        if self.left:
            self.chain = chain_of(part, OPERATIONS, value, arrays.compute, arrays.results, ((0, *range(2, rank)), 1), self.left)
        self.y = self.chain.main if self.left else arrays.result_of(value, arrays.results)

    def _next(self, value, dtype, addition):
        """The node that is the kernel's own, of what nothing but it reads, in the type that the kernel computes in."""
        found = sole_reader(self.part, OPERATIONS, self.left, value, self.compute)
        if found is None:
            return None
        node, f, added = found
        if f.op == "activation_fwd" and (not self.residual or BatchNormProblem.follows_residual(f.activation)):
            self.activation = f.activation
        elif (f.op, f.mode) == ("binary", "add") and addition and not self.residual and all(
                o.dim == self.part.spec.tensor(value).dim and not o.by_value and self.part.dtype(o) == dtype for o in added):
            self.residual = [self.part.memory(o) for o in added]
        else:
            return None
        return node

    def images(self, x):
        """(layout, arrays like x: x, y and what is added, the chain), as `images` has them."""
        layout, arrays = images(x, self.y, *self.residual)
        rank = len(x.shape)
        chain = self.chain and self.chain.permuted((0, *range(2, rank), 1) if layout == "NHWC" else range(rank))
        return layout, arrays, chain


# ---- forward


def _infer_rows(node, adaptive=False, statistics=("MEAN", "INV_VARIANCE")):
    dim, scale = node.dim("X"), node.dim("SCALE")
    node.expect(len(scale) == len(dim), "SCALE", f"dims {scale}", f"as many as X's {dim}")
    node.expect(all(n in (1, m) for n, m in zip(scale, dim)), "SCALE", f"dims {scale}", f"1 or X's, {dim}")
    axes = normalized(dim, scale, adaptive)
    node.expect(axes, "SCALE", f"dims {scale}", f"some that say which of X's {dim} are normalized")
    if adaptive:
        node.expect(scale[0] in (1, dim[0]), "SCALE", f"dims {scale}", f"one for each sample, or for all ({dim[0]} or 1)")
    if node.inputs.get("BIAS") is not None:
        node.expect_dim("BIAS", scale)
    node.expect(all(dim[a] for a in axes), "X", f"dims {dim}", f"one element at least in the normalized ones, {axes}")
    node.result("Y", dim, node.stride("X"))
    for port in statistics:
        node.result(port, tuple(1 if k in axes else n for k, n in enumerate(dim)), _order(node))
    return axes


def _order(node):
    stride = node.stride("X")
    return channels_last if len(stride) > 2 and stride[1] == 1 else row_major


@operation(outputs="Y MEAN INV_VARIANCE", tag="LAYERNORM")
def layernorm(norm_forward_phase, input, scale, bias, epsilon):
    """Layer normalization over the dims in which `scale` is not 1: ``(x - mean) * inv_variance * scale + bias``.

    Returns
    -------
    list
        [Y, MEAN, INV_VARIANCE]; None for the statistics in the phase INFERENCE.
    """
    phase = phase_of("layernorm", norm_forward_phase)
    absent = {} if phase == TRAINING else {"MEAN": None, "INV_VARIANCE": None}
    return {"X": input, "SCALE": scale, "BIAS": bias, "EPSILON": epsilon}, {"phase": phase}, absent


@layernorm.infer
def _(node):
    _infer_rows(node)


@layernorm.lower
def _(part):
    _lower_rows(part, LayerNormProblem, ("MEAN", "INV_VARIANCE"))


@operation(outputs="Y INV_VARIANCE", tag="RMSNORM")
def rmsnorm(norm_forward_phase, input, scale, bias=None, epsilon=None):
    """RMS normalization over the dims in which `scale` is not 1: ``x * inv_variance * scale + bias``.

    Returns
    -------
    list
        [Y, INV_VARIANCE]; None for the statistic in the phase INFERENCE.
    """
    phase = phase_of("rmsnorm", norm_forward_phase)
    if epsilon is None:
        raise TypeError("rmsnorm: epsilon is missing; expected a tensor passed by value")
    return ({"X": input, "SCALE": scale, "BIAS": bias, "EPSILON": epsilon}, {"phase": phase},
            {} if phase == TRAINING else {"INV_VARIANCE": None})


@rmsnorm.infer
def _(node):
    _infer_rows(node, statistics=("INV_VARIANCE",))


@rmsnorm.lower
def _(part):
    _lower_rows(part, RmsNormProblem, ("INV_VARIANCE",))


def _of_programs(arrays):
    """What y may be past a program."""
    return (*arrays.results, *(FP8 if arrays.compute == "float32" else ()))


def _lower_rows(part, kind, statistics, fused=False, adaptive=False):
    """The kernel has the weights that lie in memory, one for all rows; a program begins with the others: one rounding, to Y."""
    arrays = Arrays(part, ("X",), () if fused else ("Y",))
    x, compute, results = arrays.whole("X"), arrays.compute, _of_programs(arrays)
    axes = normalized(x.shape, part.spec_of("SCALE").dim, adaptive)
    kept = tuple(k for k in range(len(x.shape)) if k not in axes)
    small = [1 if k in axes else n for k, n in enumerate(x.shape)]
    made = {uid for node in prologue(part.nodes[1:], part.node) for _, uid in node.outputs}
    own = () if adaptive else tuple(itertools.takewhile(lambda port: part.node.input(port) not in made, ("SCALE", "BIAS")))
    weights = {port: function for port, function in (("SCALE", "mul"), ("BIAS", "add"))
               if port not in own and part.spec_of(port) is not None}

    def weighted(values, value):
        weight = made_of(part, OPERATIONS, values, x.shape)
        for port, function in weights.items():
            uid = part.node.input(port)
            if uid in made:
                of = weight(uid)
            else:
                ref = arrays.weight(port).broadcast(x.shape)
                of = values.load(ref.dtype, ref)
            value = values.step(Function.of(function), [value, of], None, compute)
        return value
    chain = None
    if fused or weights:
        allowed = results if fused else (part.output("Y").dtype,)
        chain = chain_of(part, OPERATIONS, part.node.output("Y"), compute, allowed, (kept, axes), None if fused else [],
                         weighted if weights else None)
    y = chain.main if fused else arrays.result("Y", results if weights else arrays.results)
    found = [squeezed(arrays.result(port, (compute,), small), kept) for port in statistics]
    gamma, beta = (squeezed(arrays.weight(port), axes) if port in own else None for port in ("SCALE", "BIAS"))
    x_rows, y_rows = as_rows(x, kept, axes), as_rows(y, kept, axes)
    part.problem(kind, {"x": x_rows, "gamma": gamma, "beta": beta}, {"y": y_rows, **dict(zip(("mean", "rstd")[-len(found):], found))},
                 {"eps": part.number("EPSILON")}, chain=chain and chain.permuted((*kept, *axes)), axis=len(kept))
    arrays.done()


def _fuse_rows(operation, *how, **more):
    operation.fuse(lambda part: _lower_rows(part, *how, fused=True, **more), takes=_takes, makes=("SCALE", "BIAS"))


_fuse_rows(layernorm, LayerNormProblem, ("MEAN", "INV_VARIANCE"))
_fuse_rows(rmsnorm, RmsNormProblem, ("INV_VARIANCE",))


@operation(outputs="Y MEAN INV_VARIANCE", tag="ADALAYERNORM")
def adalayernorm(norm_forward_phase, input, scale, bias=None, epsilon=None):
    """Layer normalization with a scale and a bias for each sample, of dims (N, 1, .., C); results as `layernorm`'s."""
    phase = phase_of("adalayernorm", norm_forward_phase)
    if epsilon is None:
        raise TypeError("adalayernorm: epsilon is missing; expected a tensor passed by value")
    absent = {} if phase == TRAINING else {"MEAN": None, "INV_VARIANCE": None}
    return {"X": input, "SCALE": scale, "BIAS": bias, "EPSILON": epsilon}, {"phase": phase}, absent


@adalayernorm.infer
def _(node):
    _infer_rows(node, adaptive=True)


@adalayernorm.lower
def _(part):
    _lower_rows(part, LayerNormProblem, ("MEAN", "INV_VARIANCE"), adaptive=True)


_fuse_rows(adalayernorm, LayerNormProblem, ("MEAN", "INV_VARIANCE"), adaptive=True)


@operation(outputs="Y MEAN INV_VARIANCE", tag="INSTANCENORM")
def instancenorm(norm_forward_phase, input, scale, bias, epsilon):
    """Normalization of each channel of each sample; results as `layernorm`'s, statistics (N, C, 1, ..)."""
    phase = phase_of("instancenorm", norm_forward_phase)
    absent = {} if phase == TRAINING else {"MEAN": None, "INV_VARIANCE": None}
    return {"X": input, "SCALE": scale, "BIAS": bias, "EPSILON": epsilon}, {"phase": phase}, absent


@operation(outputs="Y MEAN INV_VARIANCE", tag="GROUPNORM")
def groupnorm(norm_forward_phase, input, scale, bias, epsilon, num_groups):
    """Normalization of groups of neighbouring channels of each sample; results as `layernorm`'s, statistics (N, num_groups, 1, ..)."""
    phase = phase_of("groupnorm", norm_forward_phase)
    absent = {} if phase == TRAINING else {"MEAN": None, "INV_VARIANCE": None}
    return {"X": input, "SCALE": scale, "BIAS": bias, "EPSILON": epsilon}, {"phase": phase, "groups": int(num_groups)}, absent


def _channels(node, *ports):
    """Check weights of one element a channel."""
    dim = node.dim("X")
    node.expect(2 <= len(dim) <= 5, "X", f"dims {dim}", "N, C, and up to three spatial dims")
    wanted = (1, dim[1], *(1,) * (len(dim) - 2))
    for port in ports:
        if node.inputs.get(port) is not None:
            node.expect_dim(port, wanted)
    return wanted


def _infer_groups(node):
    _channels(node, "SCALE", "BIAS")
    dim = node.dim("X")
    groups = node.attributes.get("groups", dim[1])
    node.expect(groups >= 1 and dim[1] % groups == 0, "X", f"{dim[1]} channels", f"a multiple of {groups} groups")
    node.result("Y", dim, node.stride("X"))
    for port in ("MEAN", "INV_VARIANCE"):
        node.result(port, (dim[0], groups, *(1,) * (len(dim) - 2)), channels_last)


instancenorm.infer(_infer_groups)
groupnorm.infer(_infer_groups)


def _lower_groups(part):
    arrays = Arrays(part, ("X",), ())
    x = arrays.whole("X")
    groups = part.attribute("groups", x.shape[1])
    after = After(part, arrays)
    small = (x.shape[0], groups, *(1,) * (len(x.shape) - 2))
    mean, rstd = (squeezed(arrays.result(port, (arrays.compute,), small), (0, 1)) for port in ("MEAN", "INV_VARIANCE"))
    layout, (x, y), chain = after.images(x)
    gamma, beta = (squeezed(arrays.weight(port), (1,)) for port in ("SCALE", "BIAS"))
    part.call("group_norm_fwd", (x, gamma, beta), (y, mean, rstd), groups, layout, after.activation, scalars=(part.number("EPSILON"),),
              chain=chain)
    arrays.done()


instancenorm.lower(_lower_groups)
groupnorm.lower(_lower_groups)
for _operation in (instancenorm, groupnorm):
    _operation.fuse(_lower_groups, takes=_takes)


@operation(outputs="Y MEAN INV_VARIANCE NEXT_RUNNING_MEAN NEXT_RUNNING_VAR", tag="BATCHNORM")
def batchnorm(input, scale, bias, in_running_mean=None, in_running_var=None, epsilon=None, momentum=None, peer_stats=()):
    """Batch normalization with the statistics of the batch.

    Returns
    -------
    list
        [Y, MEAN, INV_VARIANCE, NEXT_RUNNING_MEAN, NEXT_RUNNING_VAR]; ``next = (1 - momentum) * running + momentum * batch``, with the
        variance of n - 1. The last two are None without running statistics; they may be the same memory.
    """
    if epsilon is None:
        raise TypeError("batchnorm: epsilon is missing; expected a tensor passed by value")
    running = (in_running_mean, in_running_var, momentum)
    if any(t is None for t in running) and any(t is not None for t in running):
        raise InvalidValue("batchnorm: expected in_running_mean, in_running_var and momentum together, or none of them")
    peers = {f"PEER_STAT_{k}": t for k, t in enumerate(peer_stats or ())}
    absent = {} if momentum is not None else {"NEXT_RUNNING_MEAN": None, "NEXT_RUNNING_VAR": None}
    return ({"X": input, "SCALE": scale, "BIAS": bias, "PREV_RUNNING_MEAN": in_running_mean, "PREV_RUNNING_VAR": in_running_var,
             "EPSILON": epsilon, "MOMENTUM": momentum, **peers}, {}, absent)


@batchnorm.infer
def _(node):
    wanted = _channels(node, "SCALE", "BIAS", "PREV_RUNNING_MEAN", "PREV_RUNNING_VAR")
    if any(port.startswith("PEER_STAT") for port in node.inputs):
        node.refuse(None, "peer_stats, statistics of several GPUs; expected none")
    node.result("Y", node.dim("X"), node.stride("X"))
    for port in ("MEAN", "INV_VARIANCE", "NEXT_RUNNING_MEAN", "NEXT_RUNNING_VAR"):
        node.result(port, wanted, channels_last)


def _lower_batch(part):
    arrays = Arrays(part, ("X",), ())
    x = arrays.whole("X")
    small = (1, x.shape[1], *(1,) * (len(x.shape) - 2))
    after = After(part, arrays, addition=True)
    mean, rstd = (squeezed(arrays.result(port, (arrays.compute,), small), (1,)) for port in ("MEAN", "INV_VARIANCE"))
    running, moved = [], {}
    for end in ("MEAN", "VAR"):
        before = arrays.weight(f"PREV_RUNNING_{end}")
        running.append(squeezed(before, (1,)))
        if before is not None:
            moved[f"next_{end.lower()}"] = squeezed(arrays.result(f"NEXT_RUNNING_{end}", arrays.weights, small), (1,))
    gamma, beta = (squeezed(arrays.weight(port), (1,)) for port in ("SCALE", "BIAS"))
    layout, (x, y, *residual), chain = after.images(x)
    kind = {"mode": "spatial", "layout": layout, "activation": activation_of("batchnorm", after.activation)}
    part.problem(BatchNormProblem, dict(zip(("x", "gamma", "beta", "running_mean", "running_var", "residual"),
                                            (x, gamma, beta, *running, *residual, None))),
                 {"y": y, "mean": mean, "rstd": rstd, **moved},
                 {"eps": part.number("EPSILON"), "momentum": part.number("MOMENTUM", default=0.0)}, chain=chain, **kind)
    arrays.done()


batchnorm.lower(_lower_batch)
batchnorm.fuse(_lower_batch, takes=_takes)


@operation(outputs="Y", tag="BATCHNORM_INFERENCE")
def batchnorm_inference(input, mean, inv_variance, scale, bias):
    """Batch normalization with given statistics: ``(x - mean) * inv_variance * scale + bias``."""
    return {"X": input, "MEAN": mean, "INV_VARIANCE": inv_variance, "SCALE": scale, "BIAS": bias}, {}


@batchnorm_inference.infer
def _(node):
    _channels(node, "MEAN", "INV_VARIANCE", "SCALE", "BIAS")
    node.result("Y", node.dim("X"), node.stride("X"))


def _inference(node):
    sub, mul, add = map(Function.of, ("sub", "mul", "add"))
    return (sub, ("X", "MEAN")), (mul, (0, "INV_VARIANCE")), (mul, (1, "SCALE")), (add, (2, "BIAS"))


batchnorm_inference.formula = _inference
