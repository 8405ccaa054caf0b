"""Normalizations and their gradients: batch, layer, adaptive layer, RMS, instance and group; statistics of them alone and their use.

Layer and RMS normalization run over the dims in which the scale is not 1; adaptive layer normalization has a scale for each sample.
Statistics have 1 there, INV_VARIANCE is 1 / sqrt(variance + epsilon). Variances are of all n values, the running one of n - 1.
"""
from .._enums import member, norm_forward_phase
from .._errors import InvalidValue
from .._infer import channels_last, row_major
from ._define import operation

FLOATS = ("float64", "float32", "float16", "bfloat16")
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
    """The operands and results of a normalization in the types its kernels take: what has x's dims in one type, that of x where results
    have it too; weights in it or in the type of the sums, statistics in the latter."""

    def __init__(self, part, whole, results):
        self.part = part
        found = {part.input(port).dtype for port in whole} | {r.dtype for port in results if (r := part.output(port)) is not None}
        (dtype,) = found if len(found) == 1 else ("float64" if "float64" in found else "float32",)
        self.dtype = dtype if dtype in FLOATS else "float32"
        self.compute = "float64" if self.dtype == "float64" else "float32"
        self.pending = []

    def whole(self, port):
        """An operand of x's dims."""
        return self.part.converted(self.part.input(port), self.dtype)

    def weight(self, port):
        """A scale or a bias; None where it is missing."""
        r = self.part.input(port)
        return r if r is None or r.dtype in (self.dtype, self.compute) else self.part.converted(r, self.compute)

    def statistic(self, port):
        """A mean or an inverse deviation."""
        return self.part.converted(self.part.input(port), self.compute)

    def result(self, port, dtypes, dim=None):
        """A result that may have one of these types; a temporary of these dims where the node has no such result."""
        target = self.part.output(port)
        if target is None:
            return self.part.temporary(dim, dtypes[-1])
        written = self.part.into(target, dtypes, dtypes[-1])
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
    _lower_rows(part, "layer_norm_fwd", ("MEAN", "INV_VARIANCE"))


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
    _lower_rows(part, "rms_norm_fwd", ("INV_VARIANCE",))


def _lower_rows(part, op, statistics):
    from ...norm import LayerNormProblem, RmsNormProblem
    arrays = Arrays(part, ("X",), ("Y",))
    x, gamma, beta = arrays.whole("X"), arrays.weight("SCALE"), arrays.weight("BIAS")
    axes = normalized(x.shape, gamma.shape)
    kept = tuple(k for k in range(len(x.shape)) if k not in axes)
    small = [1 if k in axes else n for k, n in enumerate(x.shape)]
    y = arrays.result("Y", (arrays.dtype,))
    found = [squeezed(arrays.result(port, (arrays.compute,), small), kept) for port in statistics]
    gamma, beta = squeezed(gamma, axes), squeezed(beta, axes)
    x_rows, y_rows = as_rows(x, kept, axes), as_rows(y, kept, axes)
    kind = LayerNormProblem if op == "layer_norm_fwd" else RmsNormProblem
    part.problem(kind, {"x": x_rows, "gamma": gamma, "beta": beta}, {"y": y_rows, **dict(zip(("mean", "rstd")[-len(found):], found))},
                 {"eps": part.number("EPSILON")}, axis=len(kept))
    arrays.done()


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
    """The rows in the compute type, then the samples' scales and biases: one rounding, to Y."""
    from ...norm import LayerNormProblem
    arrays = Arrays(part, ("X",), ("Y",))
    compute = arrays.compute
    x, gamma, beta = (part.converted(part.input(port), compute) for port in ("X", "SCALE", "BIAS"))
    axes = normalized(x.shape, gamma.shape, adaptive=True)
    kept = tuple(k for k in range(len(x.shape)) if k not in axes)
    small = [1 if k in axes else n for k, n in enumerate(x.shape)]
    mean, rstd = (squeezed(arrays.result(port, (compute,), small), kept) for port in ("MEAN", "INV_VARIANCE"))
    plain = part.temporary(x.shape, compute, x.tensor.strides)
    part.problem(LayerNormProblem, {"x": as_rows(x, kept, axes), "gamma": None, "beta": None},
                 {"y": as_rows(plain, kept, axes), "mean": mean, "rstd": rstd}, {"eps": part.number("EPSILON")}, axis=len(kept))
    y = part.output("Y")
    last = y if y.dtype == compute else part.temporary(x.shape, compute)
    scaled = last if beta is None else part.temporary(x.shape, compute)
    part.call("binary", (plain, gamma.broadcast(x.shape)), (scaled,), "mul")
    if beta is not None:
        part.call("binary", (scaled, beta.broadcast(x.shape)), (last,), "add")
    part.done(last, y)
    arrays.done()


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


@instancenorm.lower
def _(part):
    _lower_groups(part)


@groupnorm.lower
def _(part):
    _lower_groups(part)


def _lower_groups(part):
    arrays = Arrays(part, ("X",), ("Y",))
    x = arrays.whole("X")
    groups = part.attribute("groups", x.shape[1])
    y = arrays.result("Y", (arrays.dtype,))
    small = (x.shape[0], groups, *(1,) * (len(x.shape) - 2))
    mean, rstd = (squeezed(arrays.result(port, (arrays.compute,), small), (0, 1)) for port in ("MEAN", "INV_VARIANCE"))
    layout, (x, y) = images(x, y)
    gamma, beta = (squeezed(arrays.weight(port), (1,)) for port in ("SCALE", "BIAS"))
    part.call("group_norm_fwd", (x, gamma, beta), (y, mean, rstd), groups, layout, None, scalars=(part.number("EPSILON"),))
    arrays.done()


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


@batchnorm.lower
def _(part):
    arrays = Arrays(part, ("X",), ("Y",))
    x = arrays.whole("X")
    small = (1, x.shape[1], *(1,) * (len(x.shape) - 2))
    y = arrays.result("Y", (arrays.dtype,))
    mean, rstd = (squeezed(arrays.result(port, (arrays.compute,), small), (1,)) for port in ("MEAN", "INV_VARIANCE"))
    running = []
    for end in ("MEAN", "VAR"):  # a copy, which the kernel moves towards the batch's
        before = part.input(f"PREV_RUNNING_{end}")
        if before is None:
            running.append(None)
            continue
        after = arrays.result(f"NEXT_RUNNING_{end}", (arrays.dtype, arrays.compute), small)
        part.duplicate(before, after)
        running.append(squeezed(after, (1,)))
    layout, (x, y) = images(x, y)
    gamma, beta = (squeezed(arrays.weight(port), (1,)) for port in ("SCALE", "BIAS"))
    part.call("batch_norm_train_fwd", (x, gamma, beta, *running, None), (y, mean, rstd), "spatial", layout, None,
              scalars=(part.number("EPSILON"), part.number("MOMENTUM", default=0.0)))
    arrays.done()


@operation(outputs="Y", tag="BATCHNORM_INFERENCE")
def batchnorm_inference(input, mean, inv_variance, scale, bias):
    """Batch normalization with given statistics: ``(x - mean) * inv_variance * scale + bias``."""
    return {"X": input, "MEAN": mean, "INV_VARIANCE": inv_variance, "SCALE": scale, "BIAS": bias}, {}


@batchnorm_inference.infer
def _(node):
    _channels(node, "MEAN", "INV_VARIANCE", "SCALE", "BIAS")
    node.result("Y", node.dim("X"), node.stride("X"))


@batchnorm_inference.lower
def _(part):
    """The kernel takes a variance: the inverse's square, inverted."""
    arrays = Arrays(part, ("X",), ("Y",))
    x, rstd = arrays.whole("X"), squeezed(arrays.statistic("INV_VARIANCE"), (1,))
    square, var = (part.temporary(rstd.shape, arrays.compute) for _ in range(2))
    part.call("binary", (rstd, rstd), (square,), "mul")
    part.call("unary", (square,), (var,), "reciprocal", None)
    y = arrays.result("Y", (arrays.dtype,))
    layout, (x, y) = images(x, y)
    gamma, beta = (squeezed(arrays.weight(port), (1,)) for port in ("SCALE", "BIAS"))
    mean = squeezed(arrays.statistic("MEAN"), (1,))
    part.call("batch_norm_infer", (x, gamma, beta, mean, var, None), (y,), "spatial", layout, None, scalars=(0.0,))
    arrays.done()
