"""Adagrad."""
from ..device import device_function
from ..dispatch import Note
from ._frame import make_operation, missing
from ._rule import Rule, at_least, make_arithmetic, step_number


def _make(given, flags, T):
    inverse, root = make_arithmetic(T)

    @device_function
    def update(p, g, a, b, c, n):
        lr, eps, decay = n[0], n[1], n[2]
        g = T(g + decay * p)
        a = T(a + g * g)
        return T(p - lr * g * inverse(T(root(a) + eps))), a, b, c
    return update


RULES = {"adagrad_step": Rule("adagrad_step", ("sums",), ("lr", "eps", "decay"), _make, 1)}
ADAGRAD = make_operation(RULES["adagrad_step"])


def adagrad_step(params, grads, sums, *, lr, lr_decay=0.0, eps=1e-10, weight_decay=0.0, step, master=None, grad_scale=None, found_inf=None,
                 workspace=None, stream=None, algo=None, allow=Note.NONE):
    """A step of Adagrad on lists of arrays, in place and in one launch.

    For each element, with the gradient ``g = grads / grad_scale + weight_decay * params``::

        sums   <- sums + g**2
        params <- params - lr / (1 + (step - 1) * lr_decay) * g / (sqrt(sums) + eps)

    Parameters
    ----------
    params, grads
        As `dnnkern.sgd_step`'s.
    sums : list of arrays
        Sums of the squares: float32 or the parameter's dtype; float64 where it is. They begin as zeros, or a little more.
    lr, lr_decay, eps, weight_decay : float
        0 or more.
    step : int
        Which step it is, from 1 on.
    master, grad_scale, found_inf, workspace, stream, algo, allow
        As `dnnkern.sgd_step`'s.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `dnnkern.sgd_step` does; ValueError too for a step below 1.

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
    rate = lr / (1 + (step_number("adagrad_step", step) - 1) * lr_decay)
    missing("adagrad_step", 3, params=params, grads=grads, sums=sums)
    ADAGRAD.step((params, grads, sums, master), (grad_scale, found_inf), (), (rate, eps, weight_decay), workspace, stream, algo, allow)
