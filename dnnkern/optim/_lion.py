"""Lion: the sign of an interpolated momentum."""
from typing import NamedTuple

from ..device import device_function
from ..host.front import public
from ..host.scalars import at_least, shares
from ._frame import make_operation, missing
from ._rule import Rule, upwards


class Numbers(NamedTuple):
    """Rate, what both interpolations keep and gain, weight decay times the rate."""
    lr: float
    beta1: float
    gain1: float
    beta2: float
    gain2: float
    decay: float


def _make(given, flags, T):
    @device_function
    def update(p, g, a, b, c, n):
        d = T(n.beta1 * a + n.gain1 * g)
        sign = T(1) if d > T(0) else T(-1) if d < T(0) else d  # 0, and NaN
        p = T(p - n.decay * p)
        return T(p - n.lr * sign), T(n.beta2 * a + n.gain2 * g), b, c
    return update


RULES = {"lion_step": Rule("lion_step", ("m",), ("lr", "beta1", "gain1", "beta2", "gain2", "lr * weight_decay"), Numbers, _make, 1)}
LION = make_operation(RULES["lion_step"])


@public
def lion_step(params, grads, m, *, lr, beta1=0.9, beta2=0.99, weight_decay=0.0, maximize=False, master=None, grad_scale=None,
              found_inf=None, workspace=None, stream=None, **choice):
    """A step of Lion on lists of arrays, in place and in one launch.

    For each element, with the gradient ``g = grads / grad_scale``::

        params <- params - lr * (sign(beta1 * m + (1 - beta1) * g) + weight_decay * params)
        m      <- beta2 * m + (1 - beta2) * g

    Parameters
    ----------
    params, grads
        As in `dnnkern.sgd_step`.
    m : list of arrays
        The momentum: float32 or the parameter's dtype; float64 if it is. Initially zeros.
    lr, weight_decay : float
        0 or more.
    beta1, beta2 : float
        In [0, 1).
    maximize, master, grad_scale, found_inf, workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.sgd_step`.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `dnnkern.sgd_step`.

    Notes
    -----
    Deterministic. Chen and others, "Symbolic discovery of optimization algorithms" (2023).

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> p, m = [np.ones(2, np.float32)], [np.zeros(2, np.float32)]
    >>> dnnkern.lion_step(p, [np.array([3, -4], np.float32)], m, lr=0.25)
    >>> p
    [array([0.75, 1.25], dtype=float32)]
    """
    lr, weight_decay = at_least("lion_step", lr=lr, weight_decay=weight_decay)
    beta1, beta2 = shares("lion_step", beta1=beta1, beta2=beta2)
    missing("lion_step", 3, params=params, grads=grads, m=m)
    flags, numbers = upwards("lion_step", maximize), (lr, beta1, 1 - beta1, beta2, 1 - beta2, lr * weight_decay)
    LION.step((params, grads, m, master), (grad_scale, found_inf, None), flags, numbers, workspace, stream, choice)
