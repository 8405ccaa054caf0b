"""Stochastic gradient descent, with momentum."""
from typing import NamedTuple

from ..device import device_function
from ..host.front import public
from ..host.scalars import at_least, flag, shares
from ._frame import make_operation, missing
from ._rule import Rule, upwards


class Numbers(NamedTuple):
    """Rate, momentum, what it gains, weight decay."""
    lr: float
    momentum: float
    gain: float
    decay: float


def _make(given, flags, T):
    MOMENTUM, NESTEROV, FIRST = bool(given), "nesterov" in flags, "first" in flags

    @device_function
    def update(p, g, a, b, c, n):
        g = T(g + n.decay * p)
        if MOMENTUM:
            if FIRST:
                a = g
            else:
                a = T(n.momentum * a + n.gain * g)
            if NESTEROV:
                g = T(g + n.momentum * a)
            else:
                g = a
        return T(p - n.lr * g), a, b, c
    return update


RULES = {"sgd_step": Rule("sgd_step", ("momenta",), ("lr", "momentum", "gain", "weight_decay"), Numbers, _make)}
SGD = make_operation(RULES["sgd_step"])
_step = SGD.step


@public
def sgd_step(params, grads, momenta=None, *, lr, momentum=0.0, dampening=0.0, nesterov=False, weight_decay=0.0, first=False, maximize=False,
             master=None, grad_scale=None, found_inf=None, workspace=None, stream=None, **choice):
    """A step of stochastic gradient descent on lists of arrays, in place and in one launch.

    For each element, with the gradient ``g = grads / grad_scale + weight_decay * params``::

        momenta <- momentum * momenta + (1 - dampening) * g             if there are momenta
        params  <- params - lr * (g + momentum * momenta if nesterov else momenta)

    Parameters
    ----------
    params : list of arrays
        float64, float32, float16 and bfloat16, mixed; any shapes, also empty, arbitrary strides. No two arrays that are written may share
        memory. The arrays of a parameter have the same shape; if they are contiguous with the same layout, they are read and written in
        16-byte vectors.
    grads : list of arrays
        One per parameter: float32, float16 or bfloat16; float64 if the parameter is.
    momenta : list of arrays, optional
        float32 or the parameter's dtype; float64 if it is. Initially zeros.
    lr, momentum, dampening, weight_decay : float
        0 or more, momentum and dampening below 1. Changing them compiles nothing.
    nesterov : bool
        Nesterov momentum; requires momentum and no dampening.
    first : bool
        The first step: momenta are set to g, as in PyTorch; this differs only with dampening.
    maximize : bool
        Ascend: use -grads.
    master : list of float32 arrays, optional
        Master weights of float16 and bfloat16 parameters: they are updated, and params, which are not read, receive their rounded values.
    grad_scale : float32 array of one element, optional
        On the device; gradients are divided by it. They are not written.
    found_inf : float32 array of one element, optional
        On the device; if it is not 0 the step does nothing. `dnnkern.grad_norm` sets it.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Raises
    ------
    ValueError
        Lists of different lengths, arrays of different shapes, numbers out of range, memory that is written twice.
    TypeError
        Unsupported dtypes, objects that are not device arrays, immutable arrays.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. Computed in float32 (float64 for float64), each result rounded once. NaN and infinities in a gradient propagate by
    the formula. Lists of the same objects at the same addresses as in an earlier call are not checked again. Mirrors
    `torch.optim.SGD`.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> params, momenta = [np.ones(3, np.float32), np.ones((2, 2), np.float32)], [np.zeros(3, np.float32), np.zeros((2, 2), np.float32)]
    >>> grads = [np.full(3, 0.5, np.float32), np.ones((2, 2), np.float32)]
    >>> for _ in range(2):
    ...     dnnkern.sgd_step(params, grads, momenta, lr=0.5, momentum=0.5)
    >>> params
    [array([0.375, 0.375, 0.375], dtype=float32), array([[-0.25, -0.25],
           [-0.25, -0.25]], dtype=float32)]
    """
    lr, weight_decay = at_least("sgd_step", lr=lr, weight_decay=weight_decay)
    momentum, dampening = shares("sgd_step", momentum=momentum, dampening=dampening)
    if momenta is None and momentum:
        raise ValueError(f"sgd_step: momentum={momentum} without momenta; expected a list of arrays")
    nesterov, first = flag("sgd_step", "nesterov", nesterov), flag("sgd_step", "first", first)
    if nesterov and (not momentum or dampening):
        raise ValueError(f"sgd_step: nesterov with momentum={momentum} and dampening={dampening}; expected momentum, and no dampening")
    missing("sgd_step", 2, params=params, grads=grads)
    flags = (("nesterov",) if nesterov else ()) + (("first",) if first and momenta is not None else ()) + upwards("sgd_step", maximize)
    numbers = lr, momentum, 1 - dampening, weight_decay
    _step((params, grads, momenta, master), (grad_scale, found_inf, None), flags, numbers, workspace, stream, choice)
