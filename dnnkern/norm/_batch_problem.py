"""Batch normalisation's problems: training, inference, gradients."""
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..device.epilogue import Activation
from ..engine.programs import names_beside
from ..host.choices import activation_of
from ..host.last import of_images
from ..host.tensor import Tensor
from ._channel_problem import RUNNING, STATISTIC, WEIGHT, WHOLE, ChannelNorm, check_given, for_activation, results_of
from ._channel_program import WithChannelProgram

if TYPE_CHECKING:
    from ..device.program import Program


@dataclass(frozen=True)
class BatchNormProblem(WithChannelProgram, ChannelNorm):
    """``y = activation((x - mean) * rstd * gamma + beta + residual)`` with the mean and ``rstd = 1 / sqrt(var + eps)`` of each channel.

    Attributes
    ----------
    x : Tensor
    y : Tensor or None
        None for statistics alone.
    gamma, beta, residual : Tensor or None
    running_mean, running_var : Tensor or None
        Moved towards the mean and the unbiased variance, in place.
    mean, rstd : Tensor
    mode : "spatial" or "per_activation"
        Statistics over images and pixels, or over images alone.
    layout : "NCHW" or "NHWC"
    activation : Activation
    next_mean, next_var : Tensor or None
        Where the running statistics are written instead.
    program : Program or None
        What becomes of each element of y before it is rounded, see `device.program`: images and pixels are rows, channels columns.
    extras : tuple of Tensor
        The program's operands, those that are read broadcasting to x, see `engine.programs`.
    """
    x: Tensor
    gamma: Tensor | None
    beta: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    residual: Tensor | None
    y: Tensor | None
    mean: Tensor
    rstd: Tensor
    mode: str = "spatial"
    layout: str = "NCHW"
    activation: Activation = Activation()
    next_mean: Tensor | None = None
    next_var: Tensor | None = None
    program: "Program | None" = None
    extras: tuple = ()
    op, result_names = "batch_norm_train_fwd", ("y", "mean", "rstd", "next_mean", "next_var")

    def __post_init__(self):
        self._check()
        for end in ("mean", "var"):
            if self.tensor(f"next_{end}") is not None and self.tensor(f"running_{end}") is None:
                raise ValueError(f"{self.op}: next_{end} without running_{end}")

    @property
    def extra_names(self):
        """(operands, outputs, scalars) that its operation has more: running statistics that are not updated in place, the program's."""
        operands, outputs, scalars = names_beside(self.program)
        return operands, (*self.moved_names, *outputs), scalars

    @property
    def moved_names(self):
        """Of the running statistics that are not updated in place."""
        return tuple(name for name in ("next_mean", "next_var") if self.tensor(name) is not None)

    @property
    def over(self):
        """{operand that may be exactly a result: that one}, of those that are not updated in place."""
        return {name.replace("next", "running"): name for name in self.moved_names}

    def moved(self, end):
        """The name of the array that the running mean or var is written to."""
        return f"next_{end}" if self.tensor(f"next_{end}") is not None else f"running_{end}"

    @property
    def arrays(self):
        return (("x", self.x, WHOLE), ("gamma", self.gamma, WEIGHT), ("beta", self.beta, WEIGHT),
                ("running_mean", self.running_mean, RUNNING), ("running_var", self.running_var, RUNNING),
                ("residual", self.residual, WHOLE), ("y", self.y, WHOLE), ("mean", self.mean, STATISTIC), ("rstd", self.rstd, STATISTIC),
                ("next_mean", self.next_mean, RUNNING), ("next_var", self.next_var, RUNNING))


@dataclass(frozen=True)
class BatchNormInferProblem(WithChannelProgram, ChannelNorm):
    """``y = program(activation((x - mean) / sqrt(var + eps) * gamma + beta + residual))``; attributes as `BatchNormProblem`'s."""
    x: Tensor
    gamma: Tensor | None
    beta: Tensor | None
    mean: Tensor
    var: Tensor
    residual: Tensor | None
    y: Tensor
    mode: str = "spatial"
    layout: str = "NCHW"
    activation: Activation = Activation()
    program: "Program | None" = None
    extras: tuple = ()
    op, result_names, averages = "batch_norm_infer", ("y",), False

    def __post_init__(self):
        self._check()

    @property
    def arrays(self):
        return (("x", self.x, WHOLE), ("gamma", self.gamma, WEIGHT), ("beta", self.beta, WEIGHT), ("mean", self.mean, RUNNING),
                ("var", self.var, RUNNING), ("residual", self.residual, WHOLE), ("y", self.y, WHOLE))


@dataclass(frozen=True)
class BatchNormGradientProblem(WithChannelProgram, ChannelNorm):
    """The gradients of `BatchNormProblem`: with ``dz = dy * activation'`` and ``n = (x - mean) * rstd``, averages and sums over
    what a mean is of, ``dx = gamma * rstd * (dz - avg(dz) - n * avg(dz * n))``, ``dgamma = sum(dz * n)``, ``dbeta = sum(dz)``,
    ``dresidual = dz``; of frozen statistics ``dx = gamma * rstd * dz``.

    Attributes
    ----------
    dy, x : Tensor
    dx : Tensor or None
        None for the weights' gradients alone.
    gamma : Tensor or None
    mean, rstd : Tensor
        What the forward operation gave.
    y : Tensor or None
        Its result, where the activation's gradient follows from it.
    dgamma, dbeta : Tensor
    dresidual : Tensor or None
    mode, layout, activation
    beta : Tensor or None
        As given to it, where the activation's gradient needs ``(x - mean) * rstd * gamma + beta``.
    frozen : bool
        Whether the statistics are constants.
    program : Program or None
        What becomes of each element of dy before the activation's gradient: images and pixels are rows, channels columns. It stores
        nothing; dresidual is what it gives.
    extras : tuple of Tensor
        The program's operands, broadcasting to dy.
    """
    dy: Tensor
    x: Tensor
    gamma: Tensor | None
    mean: Tensor
    rstd: Tensor
    y: Tensor | None
    dx: Tensor | None
    dgamma: Tensor
    dbeta: Tensor
    dresidual: Tensor | None = None
    mode: str = "spatial"
    layout: str = "NCHW"
    activation: Activation = Activation()
    beta: Tensor | None = None
    frozen: bool = False
    program: "Program | None" = None
    extras: tuple = ()
    op, result_names, programmed = "batch_norm_bwd", ("dx", "dgamma", "dbeta", "dresidual"), "dy"

    def __post_init__(self):
        self._check()

    @property
    def output_names(self):
        """Names of the outputs that there are, where operands of a program are beside them."""
        return tuple(name for name in self.result_names if self.tensor(name) is not None)

    @property
    def arrays(self):
        return (("dy", self.dy, WHOLE), ("x", self.x, WHOLE), ("gamma", self.gamma, WEIGHT), ("mean", self.mean, STATISTIC),
                ("rstd", self.rstd, STATISTIC), ("y", self.y, WHOLE), ("beta", self.beta, WEIGHT), ("dx", self.dx, WHOLE),
                ("dgamma", self.dgamma, WEIGHT), ("dbeta", self.dbeta, WEIGHT), ("dresidual", self.dresidual, WHOLE))


@of_images
def make_batch_train(tensors, outs, mode, layout, activation, aliases):
    """`BatchNormProblem` of a call."""
    op, names = "batch_norm_train_fwd", ("x", "gamma", "beta", "running_mean", "running_var", "residual")
    given = dict(zip(names, tensors))
    check_given(op, given, ("x",))
    outs = results_of(op, given, outs, BatchNormProblem.result_names[:3], layout, mode)
    return BatchNormProblem(*tensors, *outs, mode, layout, activation_of(op, activation))


@of_images
def make_batch_infer(tensors, outs, mode, layout, activation, aliases):
    """`BatchNormInferProblem` of a call."""
    op, names = "batch_norm_infer", ("x", "gamma", "beta", "mean", "var", "residual")
    given = dict(zip(names, tensors))
    check_given(op, given, ("x", "mean", "var"))
    outs = results_of(op, given, outs, ("y",), layout, mode)
    return BatchNormInferProblem(*tensors, *outs, mode, layout, activation_of(op, activation))


@of_images
def make_batch_backward(tensors, outs, mode, layout, activation, residual, aliases, frozen=False):
    """`BatchNormGradientProblem` of a call."""
    op, names = "batch_norm_bwd", ("dy", "x", "gamma", "mean", "rstd", "y", "beta")
    if not isinstance(residual, bool):
        raise TypeError(f"{op}: residual is {residual!r}; expected True or False")
    activation, given = activation_of(op, activation), dict(zip(names, tensors))
    check_given(op, given, ("dy", "x", "mean", "rstd"))
    wanted = BatchNormGradientProblem.result_names[:4 if residual else 3]
    outs = results_of(op, given, outs, wanted, layout, mode)
    (y, beta), missing = for_activation(op, activation, given), (None,) * (4 - len(outs))
    return BatchNormGradientProblem(*tensors[:5], y, *outs, *missing, mode, layout, activation, beta, frozen)


@of_images
def make_batch_backward_frozen(tensors, outs, mode, layout, activation, residual, aliases):
    """`BatchNormGradientProblem` of a call whose statistics are constants."""
    return make_batch_backward(tensors, outs, mode, layout, activation, residual, aliases, frozen=True)
