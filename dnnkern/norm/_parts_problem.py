"""Problems of batch normalisation in parts, which others add up or merge in between: the statistics of several parts as those of the whole,
and the gradient from given sums."""
import contextlib
from dataclasses import dataclass

from ..device.epilogue import Activation
from ..host.choices import activation_of
from ..host.last import of_images
from ..host.products import FLOATS
from ..host.tensor import Tensor
from ._batch_problem import BatchNormGradientProblem, BatchNormProblem
from ._channel_problem import STATISTIC, WEIGHT, WHOLE, ChannelNorm, check_given, for_activation, results_of

COUNTS = ("int32", "int64", "float32", "float64")
FLOAT_COUNTS = ("float32", "float64")


def _check_counts(op, counts, parts=None):
    if counts.dtype not in COUNTS:
        raise TypeError(f"{op}: counts is {counts.dtype}; expected one of {', '.join(COUNTS)}")
    if counts.ndim != 1 or parts is not None and counts.shape != (parts,):
        raise ValueError(f"{op}: counts has shape {counts.shape}; expected {'one for each part' if parts is None else (parts,)}")


@dataclass(frozen=True)
class BatchNormMergeProblem:
    """Statistics of parts as those of the whole.

    Attributes
    ----------
    means, rstds : Tensor
        (parts, channels).
    counts : Tensor
        (parts,): values of a channel in each.
    running_mean, running_var : Tensor or None
    mean, var, rstd : Tensor
        (channels,).
    """
    means: Tensor
    rstds: Tensor
    counts: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None
    mean: Tensor
    var: Tensor
    rstd: Tensor
    op = "batch_norm_merge"

    @property
    def compute(self):
        """The type of the arithmetic."""
        return self.means.dtype

    def __post_init__(self):
        op, means = self.op, self.means
        if means.dtype not in FLOAT_COUNTS:
            raise TypeError(f"{op}: means is {means.dtype}; expected float32 or float64")
        if means.ndim != 2 or not means.shape[0]:
            raise ValueError(f"{op}: means has shape {means.shape}; expected (parts, channels), one part at least")
        _check_counts(op, self.counts, means.shape[0])
        channels = means.shape[1:]
        for name, shape, dtypes in (("rstds", means.shape, (means.dtype,)), ("running_mean", channels, FLOATS),
                                    ("running_var", channels, FLOATS), *((n, channels, (means.dtype,)) for n in ("mean", "var", "rstd"))):
            t = getattr(self, name)
            label = f"{name} of out" if name in ("mean", "var", "rstd") else name
            if t is None:
                continue
            if t.dtype not in dtypes:
                raise TypeError(f"{op}: {label} is {t.dtype}; expected {' or '.join(dtypes)} beside means of {means.dtype}")
            if t.shape != shape:
                raise ValueError(f"{op}: {label} has shape {t.shape}; expected {shape}")
            if name != "rstds":
                t.check_addresses(op, label)

    @property
    def dtype(self):
        return self.means.dtype

    @property
    def scalar_type(self):
        return self.dtype

    @property
    def outputs(self):
        return self.mean, self.var, self.rstd

    @property
    def is_empty(self):
        return not self.mean.size

    @property
    def flops(self):
        return 10 * self.means.size

    @property
    def bytes(self):
        """Bytes that must move: each element once, running statistics twice."""
        running = sum(2 * t.nbytes for t in (self.running_mean, self.running_var) if t is not None)
        return 2 * self.means.nbytes + self.counts.nbytes + running + sum(t.nbytes for t in self.outputs)

    def operand_values(self, name):
        """Counts, and what is a standard deviation's inverse."""
        import numpy as np
        if name == "counts":
            return np.arange(2, 2 + self.means.shape[0])
        return np.linspace(0.5, 2, self.rstds.size).reshape(self.rstds.shape).astype(self.dtype) if name == "rstds" else None

    def __str__(self):
        running = " running" * (self.running_mean is not None or self.running_var is not None)
        strided = "".join(f", {name} strides {t.strides}" for name, t in (("means", self.means), ("rstds", self.rstds)) if not t.is_packed)
        return f"{self.op} {'x'.join(map(str, self.means.shape))} {self.dtype} counts {self.counts.dtype}{running}{strided}"


@dataclass(frozen=True)
class BatchNormGradientApplyProblem(ChannelNorm):
    """dx of `BatchNormGradientProblem` from the sums of all parts: ``dx = gamma * rstd * (dz - (dbeta + n * dgamma) / sum(counts))``.

    Attributes
    ----------
    dy, x, gamma, mean, rstd, y, beta, dx, dresidual, mode, layout, activation
        As there.
    dgamma, dbeta : Tensor
        The sums.
    counts : Tensor
        Values of a channel in each part.
    """
    dy: Tensor
    x: Tensor
    gamma: Tensor | None
    mean: Tensor
    rstd: Tensor
    dgamma: Tensor
    dbeta: Tensor
    counts: Tensor
    y: Tensor | None
    dx: Tensor
    dresidual: Tensor | None = None
    mode: str = "spatial"
    layout: str = "NCHW"
    activation: Activation = Activation()
    beta: Tensor | None = None
    op, result_names, averages = "batch_norm_bwd_apply", ("dx", "dresidual"), False

    def __post_init__(self):
        self._check()
        _check_counts(self.op, self.counts)

    @property
    def arrays(self):
        return (("dy", self.dy, WHOLE), ("x", self.x, WHOLE), ("gamma", self.gamma, WEIGHT), ("mean", self.mean, STATISTIC),
                ("rstd", self.rstd, STATISTIC), ("dgamma", self.dgamma, STATISTIC), ("dbeta", self.dbeta, STATISTIC),
                ("y", self.y, WHOLE), ("beta", self.beta, WEIGHT), ("dx", self.dx, WHOLE), ("dresidual", self.dresidual, WHOLE))

    def operand_values(self, name):
        """A count that is not small beside sums."""
        import numpy as np
        return np.full(self.counts.shape, 1000) if name == "counts" else None


@contextlib.contextmanager
def _said_by(function, op):
    """Errors of an operation's problem begin with the function that makes it."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"{function}:" + str(error).removeprefix(f"{op}:").removeprefix(f"{function}:")) from None


@of_images
def make_stats(tensors, outs, mode, layout, aliases):
    """`BatchNormProblem` of statistics alone."""
    function, (x,) = "batch_norm_stats", tensors
    check_given(function, {"x": x}, ("x",))
    mean, rstd = results_of(function, {"x": x, "gamma": None}, outs, ("mean", "rstd"), layout, mode)
    with _said_by(function, "batch_norm_train_fwd"):
        return BatchNormProblem(x, None, None, None, None, None, None, mean, rstd, mode, layout)


def make_merge(tensors, outs, aliases):
    """`BatchNormMergeProblem` of a call."""
    op, names = "batch_norm_merge", ("means", "rstds", "counts", "running_mean", "running_var")
    for name, t in zip(names[:3], tensors):
        if t is None:
            raise TypeError(f"{op}: {name}: got NoneType; expected an array")
    means = tensors[0]
    if outs is None:
        outs = tuple(Tensor.packed(means.shape[1:], means.dtype) for _ in range(3))
    return BatchNormMergeProblem(*tensors, *outs)


@of_images
def make_sums(tensors, outs, mode, layout, activation, aliases):
    """`BatchNormGradientProblem` of the sums alone."""
    function, names = "batch_norm_bwd_sums", ("dy", "x", "gamma", "mean", "rstd", "y", "beta")
    activation, given = activation_of(function, activation), dict(zip(names, tensors))
    check_given(function, given, ("dy", "x", "mean", "rstd"))
    if outs is None:
        (mean,) = results_of(function, given, None, ("mean",), layout, mode)
        outs = mean, mean
    y, beta = for_activation(function, activation, given)
    with _said_by(function, "batch_norm_bwd"):
        return BatchNormGradientProblem(*tensors[:5], y, None, *outs, None, mode, layout, activation, beta)


@of_images
def make_apply(tensors, outs, mode, layout, activation, residual, aliases):
    """`BatchNormGradientApplyProblem` of a call."""
    op, names = "batch_norm_bwd_apply", ("dy", "x", "gamma", "mean", "rstd", "dgamma", "dbeta", "counts", "y", "beta")
    activation, given = activation_of(op, activation), dict(zip(names, tensors))
    check_given(op, given, names[:2] + names[3:8])
    outs = results_of(op, given, outs, ("dx", "dresidual")[:1 + residual], layout, mode)
    y, beta = for_activation(op, activation, given)
    return BatchNormGradientApplyProblem(*tensors[:8], y, *outs, *(None,) * (1 - residual), mode, layout, activation, beta)
