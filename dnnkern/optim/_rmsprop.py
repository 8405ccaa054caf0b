"""RMSprop, centred and with momentum where its lists are given."""
from typing import NamedTuple

from ..device import device_function
from ..host.front import public
from ..host.scalars import at_least, shares
from ._frame import make_operation, missing
from ._rule import Rule, make_arithmetic, upwards


class Numbers(NamedTuple):
    """Rate, what the averages keep and gain, eps, momentum, weight decay."""
    lr: float
    kept: float
    gain: float
    eps: float
    momentum: float
    decay: float


def _make(given, flags, T):
    CENTERED, MOMENTUM = "means" in given, "momenta" in given
    inverse, root = make_arithmetic(T)

    @device_function
    def update(p, g, a, b, c, n):
        g = T(g + n.decay * p)
        a = T(n.kept * a + n.gain * g * g)
        square = a
        if CENTERED:
            b = T(b + n.gain * T(g - b))
            square = T(a - b * b)
        g = T(g * inverse(T(root(square) + n.eps)))
        if MOMENTUM:
            c = T(n.momentum * c + g)
            g = c
        return T(p - n.lr * g), a, b, c
    return update


RULES = {"rmsprop_step": Rule("rmsprop_step", ("v", "means", "momenta"), ("lr", "kept", "gain", "eps", "momentum", "weight_decay"),
                              Numbers, _make, 1)}
RMSPROP = make_operation(RULES["rmsprop_step"])


@public
def rmsprop_step(params, grads, v, means=None, momenta=None, *, lr, alpha=0.99, eps=1e-8, momentum=0.0, weight_decay=0.0,
                 maximize=False, master=None, grad_scale=None, found_inf=None, workspace=None, stream=None, **choice):
    """A step of RMSprop on lists of arrays, in place and in one launch.

    For each element, with the gradient ``g = grads / grad_scale + weight_decay * params``::

        v     <- alpha * v + (1 - alpha) * g**2
        means <- alpha * means + (1 - alpha) * g                        if there are means
        d      = g / (sqrt(v - means**2) + eps)                         without means g / (sqrt(v) + eps)
        momenta <- momentum * momenta + d; d = momenta                  if there are momenta
        params <- params - lr * d

    Parameters
    ----------
    params, grads
        As in `dnnkern.sgd_step`.
    v : list of arrays
        Means of the squares: float32 or the parameter's dtype; float64 if it is. Initially zeros, like the other states.
    means : list of arrays, optional
        Means of the gradients; with them the squares are centred.
    momenta : list of arrays, optional
    lr, eps, weight_decay : float
        0 or more.
    alpha, momentum : float
        In [0, 1).
    maximize, master, grad_scale, found_inf, workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.sgd_step`.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `dnnkern.sgd_step`.

    Notes
    -----
    Deterministic. If rounding makes a centred square negative the parameter becomes NaN, as in PyTorch. Mirrors
    `torch.optim.RMSprop`.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> p, v = [np.ones(2, np.float32)], [np.zeros(2, np.float32)]
    >>> dnnkern.rmsprop_step(p, [np.array([3, -4], np.float32)], v, lr=0.25, alpha=0.75)
    >>> p
    [array([0.5, 1.5], dtype=float32)]
    """
    lr, eps, weight_decay = at_least("rmsprop_step", lr=lr, eps=eps, weight_decay=weight_decay)
    alpha, momentum = shares("rmsprop_step", alpha=alpha, momentum=momentum)
    if momenta is None and momentum:
        raise ValueError(f"rmsprop_step: momentum={momentum} without momenta; expected a list of arrays")
    missing("rmsprop_step", 3, params=params, grads=grads, v=v)
    numbers = lr, alpha, 1 - alpha, eps, momentum, weight_decay
    flags = upwards("rmsprop_step", maximize)
    RMSPROP.step((params, grads, v, means, momenta, master), (grad_scale, found_inf, None), flags, numbers, workspace, stream, choice)
