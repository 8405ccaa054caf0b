"""Group normalisation's problems, forward and backward; instance normalisation is the one with a channel a group."""
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..device.epilogue import Activation
from ..host.choices import activation_of, one_of
from ..host.last import CALL_LAYOUTS, of_images
from ..host.tensor import Tensor
from ..host.window import integer
from ._channel_problem import (STATISTIC, WEIGHT, WHOLE, ChannelNorm, channel_axis, check_given, for_activation,
                               results_of)
from ._channel_program import WithChannelProgram

if TYPE_CHECKING:
    from ..device.program import Program


@dataclass(frozen=True)
class GroupNormProblem(WithChannelProgram, ChannelNorm):
    """``y = activation((x - mean) * rstd * gamma + beta)`` with the mean and ``rstd = 1 / sqrt(var + eps)`` of each image and group of
    neighbouring channels.

    Attributes
    ----------
    x, y : Tensor
    gamma, beta : Tensor or None
        One element a channel.
    mean, rstd : Tensor (N, groups)
    groups : int
    layout : "NCHW" or "NHWC"
    activation : Activation
    program, extras
        As `BatchNormProblem`'s.
    """
    x: Tensor
    gamma: Tensor | None
    beta: Tensor | None
    y: Tensor
    mean: Tensor
    rstd: Tensor
    groups: int
    layout: str = "NCHW"
    activation: Activation = Activation()
    program: "Program | None" = None
    extras: tuple = ()
    op, result_names = "group_norm_fwd", ("y", "mean", "rstd")

    def __post_init__(self):
        self._check()

    @property
    def arrays(self):
        return (("x", self.x, WHOLE), ("gamma", self.gamma, WEIGHT), ("beta", self.beta, WEIGHT), ("y", self.y, WHOLE),
                ("mean", self.mean, STATISTIC), ("rstd", self.rstd, STATISTIC))


@dataclass(frozen=True)
class GroupNormGradientProblem(WithChannelProgram, ChannelNorm):
    """The gradients of `GroupNormProblem`: with ``dz = dy * activation'``, ``n = (x - mean) * rstd``, ``g = dz * gamma`` and
    averages over what a mean is of, ``dx = rstd * (g - avg(g) - n * avg(g * n))``; summed over images and pixels,
    ``dgamma = sum(dz * n)`` and ``dbeta = sum(dz)``.

    Attributes
    ----------
    dy, x, dx : Tensor
    gamma : Tensor or None
    mean, rstd : Tensor
        What the forward operation gave.
    y : Tensor or None
        Its result, where the activation's gradient follows from it.
    dgamma, dbeta : Tensor
    groups, layout, activation
    beta : Tensor or None
        As given to it, where the activation's gradient needs ``(x - mean) * rstd * gamma + beta``.
    program, extras
        As `BatchNormGradientProblem`'s.
    """
    dy: Tensor
    x: Tensor
    gamma: Tensor | None
    mean: Tensor
    rstd: Tensor
    y: Tensor | None
    dx: Tensor
    dgamma: Tensor
    dbeta: Tensor
    groups: int
    layout: str = "NCHW"
    activation: Activation = Activation()
    beta: Tensor | None = None
    program: "Program | None" = None
    extras: tuple = ()
    op, result_names, programmed = "group_norm_bwd", ("dx", "dgamma", "dbeta"), "dy"

    def __post_init__(self):
        self._check()

    @property
    def arrays(self):
        return (("dy", self.dy, WHOLE), ("x", self.x, WHOLE), ("gamma", self.gamma, WEIGHT), ("mean", self.mean, STATISTIC),
                ("rstd", self.rstd, STATISTIC), ("y", self.y, WHOLE), ("beta", self.beta, WEIGHT), ("dx", self.dx, WHOLE),
                ("dgamma", self.dgamma, WEIGHT), ("dbeta", self.dbeta, WEIGHT))


def _make(kind, function, tensors, outs, groups, layout, activation):
    forward = kind is GroupNormProblem
    given = dict(zip(("x", "gamma", "beta") if forward else ("dy", "x", "gamma", "mean", "rstd", "y", "beta"), tensors))
    activation = activation_of(function, activation)
    check_given(function, given, ("x",) if forward else ("dy", "x", "mean", "rstd"))
    one_of(function, "layout", layout, CALL_LAYOUTS)
    x = given["x"]
    groups = (x.shape[channel_axis(x, layout)] if x.ndim > 1 else 1) if groups is None else integer(function, "groups", groups, 1)
    outs = results_of(function, given, outs, kind.result_names, layout, groups=groups)
    y, *beta = (None,) if forward else for_activation(function, activation, given)
    operands = tensors if forward else (*tensors[:5], y)
    try:
        return kind(*operands, *outs, groups, layout, activation, *beta)
    except (TypeError, ValueError) as error:  # the problem is group normalisation's, whoever asked
        raise type(error)(str(error).replace(kind.op, function, 1)) from None


@of_images
def make_group_forward(tensors, outs, groups, layout, activation, aliases):
    """`GroupNormProblem` of a call of group_norm_fwd."""
    if groups is None:
        raise TypeError("group_norm_fwd: groups is None; expected an int")
    return _make(GroupNormProblem, "group_norm_fwd", tensors, outs, groups, layout, activation)


@of_images
def make_group_backward(tensors, outs, groups, layout, activation, aliases):
    """`GroupNormGradientProblem` of a call of group_norm_bwd."""
    if groups is None:
        raise TypeError("group_norm_bwd: groups is None; expected an int")
    return _make(GroupNormGradientProblem, "group_norm_bwd", tensors, outs, groups, layout, activation)


@of_images
def make_instance_forward(tensors, outs, layout, activation, aliases):
    """`GroupNormProblem` of a call of instance_norm_fwd."""
    return _make(GroupNormProblem, "instance_norm_fwd", tensors, outs, None, layout, activation)


@of_images
def make_instance_backward(tensors, outs, layout, activation, aliases):
    """`GroupNormGradientProblem` of a call of instance_norm_bwd."""
    return _make(GroupNormGradientProblem, "instance_norm_bwd", tensors, outs, None, layout, activation)
