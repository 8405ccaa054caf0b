"""Adagrad."""
from typing import NamedTuple

from ..device import device_function
from ..host.front import public
from ..host.scalars import at_least
from ._frame import make_operation, missing
from ._rule import Rule, is_array, make_arithmetic, step_number, upwards


class Numbers(NamedTuple):
    """Rate of this step, eps, weight decay, what the rate loses per step. With the flag "counted" the rate is that of the first step."""
    lr: float
    eps: float
    decay: float
    lr_decay: float


def _make(given, flags, T):
    inverse, root = make_arithmetic(T)

    @device_function
    def update(p, g, a, b, c, n):
        g = T(g + n.decay * p)
        a = T(a + g * g)
        return T(p - n.lr * g * inverse(T(root(a) + n.eps))), a, b, c
    return update


def _prepare(T):
    """The rate of this step."""
    inverse, _ = make_arithmetic(T)

    @device_function
    def prepare(n, step):
        return Numbers(T(n.lr * inverse(T(T(1) + T(step - T(1)) * n.lr_decay))), n.eps, n.decay, n.lr_decay)
    return prepare


RULES = {"adagrad_step": Rule("adagrad_step", ("sums",), ("lr", "eps", "weight_decay", "lr_decay"), Numbers, _make, 1, _prepare)}
ADAGRAD = make_operation(RULES["adagrad_step"])


@public
def adagrad_step(params, grads, sums, *, lr, lr_decay=0.0, eps=1e-10, weight_decay=0.0, step, maximize=False, master=None,
                 grad_scale=None, found_inf=None, workspace=None, stream=None, **choice):
    """A step of Adagrad on lists of arrays, in place and in one launch.

    For each element, with the gradient ``g = grads / grad_scale + weight_decay * params``::

        sums   <- sums + g**2
        params <- params - lr / (1 + (step - 1) * lr_decay) * g / (sqrt(sums) + eps)

    Parameters
    ----------
    params, grads
        As in `dnnkern.sgd_step`.
    sums : list of arrays
        Sums of the squares: float32 or the parameter's dtype; float64 if it is. Initially zeros or small positive values.
    lr, lr_decay, eps, weight_decay : float
        0 or more.
    step : int, or float32 array of one element
        As in `dnnkern.adam_step`.
    maximize, master, grad_scale, found_inf, workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.sgd_step`.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `dnnkern.sgd_step`; also ValueError for a step below 1.

    Notes
    -----
    Deterministic. Duchi, Hazan and Singer, "Adaptive subgradient methods" (2011). Mirrors `torch.optim.Adagrad`.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> p, sums = [np.ones(2, np.float32)], [np.zeros(2, np.float32)]
    >>> dnnkern.adagrad_step(p, [np.array([3, -4], np.float32)], sums, lr=0.25, step=1)
    >>> p
    [array([0.75, 1.25], dtype=float32)]
    """
    lr, lr_decay, eps, weight_decay = at_least("adagrad_step", lr=lr, lr_decay=lr_decay, eps=eps, weight_decay=weight_decay)
    rate = lr if is_array(step) else lr / (1 + (step_number("adagrad_step", step) - 1) * lr_decay)
    missing("adagrad_step", 3, params=params, grads=grads, sums=sums)
    singles = grad_scale, found_inf, step if is_array(step) else None
    flags = (("counted",) if is_array(step) else ()) + upwards("adagrad_step", maximize)
    ADAGRAD.step((params, grads, sums, master), singles, flags, (rate, eps, weight_decay, lr_decay), workspace, stream, choice)
