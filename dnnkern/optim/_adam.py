"""Adam, and AdamW with its decoupled weight decay."""
import math
from typing import NamedTuple

from ..device import device_function
from ..device.fastmath import expm1, maximum
from ..host.front import public
from ..host.scalars import at_least, shares
from ._frame import make_operation, missing
from ._rule import Rule, is_array, make_arithmetic, step_number, upwards


class Numbers(NamedTuple):
    """Rate of this step, what the moments gain and keep, correction of the second one, eps, weight decay (times the rate for AdamW),
    logarithm of beta1. With the flag "counted" the rate is not corrected yet, and `root` is the logarithm of beta2."""
    rate: float
    gain1: float
    beta2: float
    gain2: float
    root: float
    eps: float
    decay: float
    log1: float


def _maker(decoupled):
    def make(given, flags, T):
        inverse, square_root = make_arithmetic(T)
        AMSGRAD = "vmax" in given

        @device_function
        def update(p, g, a, b, c, n):
            if decoupled:
                p = T(p - n.decay * p)
            else:
                g = T(g + n.decay * p)
            a = T(a + n.gain1 * T(g - a))
            b = T(n.beta2 * b + n.gain2 * g * g)
            square = b
            if AMSGRAD:
                c = maximum(c, b)
                square = c
            return T(p - n.rate * a * inverse(T(square_root(square) * n.root + n.eps))), a, b, c
        return update
    return make


def _prepare(T):
    """Of the rate itself and the logarithms of both betas: 1 - beta**step is -expm1(step * log(beta)), which loses nothing."""
    inverse, square_root = make_arithmetic(T)

    @device_function
    def prepare(n, step):
        first, second = T(-expm1(T(n.log1 * step))), T(-expm1(T(n.root * step)))
        return Numbers(T(n.rate * inverse(first)), n.gain1, n.beta2, n.gain2, T(inverse(square_root(second))), n.eps, n.decay, n.log1)
    return prepare


_NUMBERS = "lr / (1 - beta1**step)", "gain1", "beta2", "gain2", "root", "eps"
RULES = {op: Rule(op, ("m", "v", "vmax"), (*_NUMBERS, decay, "log1"), Numbers, _maker(op == "adamw_step"), 2, _prepare)
         for op, decay in (("adam_step", "weight_decay"), ("adamw_step", "lr * weight_decay"))}
ADAM, ADAMW = (make_operation(rule) for rule in RULES.values())


def moments(function, lr, beta1, beta2, eps, step):
    """Numbers of the step: its rate, what the moments gain, and what corrects the second one, computed in float64; and a last one, of no
    use. Where the step is an array: the rate as it is, and the logarithms of the betas, of which the correction is made on the device."""
    lr, eps = at_least(function, lr=lr, eps=eps)
    beta1, beta2 = shares(function, beta1=beta1, beta2=beta2)
    if is_array(step):
        log1, log2 = (math.log(beta) if beta else -math.inf for beta in (beta1, beta2))
        return lr, 1 - beta1, beta2, 1 - beta2, log2, eps, log1
    step = step_number(function, step)
    return lr / (1 - beta1 ** step), 1 - beta1, beta2, 1 - beta2, 1 / math.sqrt(1 - beta2 ** step), eps, 0.0


def counted(function, step, maximize):
    """(the array of the step's number or None, the flags)."""
    flags = upwards(function, maximize)
    return (step, ("counted", *flags)) if is_array(step) else (None, flags)


@public
def adam_step(params, grads, m, v, vmax=None, *, lr, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=0.0, step, maximize=False, master=None,
              grad_scale=None, found_inf=None, workspace=None, stream=None, **choice):
    """A step of Adam on lists of arrays, in place and in one launch.

    For each element, with the gradient ``g = grads / grad_scale + weight_decay * params``::

        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g**2
        vmax <- max(vmax, v)                                            if there is vmax, which replaces v below
        params <- params - lr * (m / (1 - beta1**step)) / (sqrt(v / (1 - beta2**step)) + eps)

    Parameters
    ----------
    params, grads
        As in `dnnkern.sgd_step`.
    m, v : lists of arrays
        The moments: float32 or the parameter's dtype; float64 if it is. Initially zeros.
    vmax : list of arrays, optional
        AMSGrad: the largest v so far, with v's dtypes. Initially zeros.
    lr, eps, weight_decay : float
        0 or more.
    beta1, beta2 : float
        In [0, 1).
    step : int, or float32 array of one element
        The step's number, from 1 on. An array is on the device, for CUDA graphs and if the host does not know which steps were skipped;
        it is not changed.
    maximize, master, grad_scale, found_inf, workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.sgd_step`.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `dnnkern.sgd_step`; also ValueError for a step below 1.

    Notes
    -----
    Deterministic. Kingma and Ba, "Adam: a method for stochastic optimization" (2014); with `vmax` Reddi, Kale and Kumar, "On the
    convergence of Adam and beyond" (2018), whose maximum is of v itself, not of v / (1 - beta2**step). Mirrors `torch.optim.Adam`.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> p, m, v = [np.ones(2, np.float32)], [np.zeros(2, np.float32)], [np.zeros(2, np.float32)]
    >>> dnnkern.adam_step(p, [np.array([3, -4], np.float32)], m, v, lr=0.25, step=1)
    >>> p
    [array([0.75, 1.25], dtype=float32)]
    """
    *numbers, log1 = moments("adam_step", lr, beta1, beta2, eps, step)
    missing("adam_step", 4, params=params, grads=grads, m=m, v=v)
    step, flags = counted("adam_step", step, maximize)
    numbers = *numbers, *at_least("adam_step", weight_decay=weight_decay), log1
    ADAM.step((params, grads, m, v, vmax, master), (grad_scale, found_inf, step), flags, numbers, workspace, stream, choice)


@public
def adamw_step(params, grads, m, v, vmax=None, *, lr, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=1e-2, step, maximize=False,
               master=None, grad_scale=None, found_inf=None, workspace=None, stream=None, **choice):
    """A step of AdamW on lists of arrays, in place and in one launch: `dnnkern.adam_step` with decoupled weight decay.

    For each element, with the gradient ``g = grads / grad_scale``::

        params <- params - lr * weight_decay * params
        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g**2
        vmax <- max(vmax, v)                                            if there is vmax, which replaces v below
        params <- params - lr * (m / (1 - beta1**step)) / (sqrt(v / (1 - beta2**step)) + eps)

    Parameters
    ----------
    params, grads, m, v, vmax, lr, beta1, beta2, eps, weight_decay, step, maximize, master, grad_scale, found_inf
        As in `dnnkern.adam_step`.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.adam_step`.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `dnnkern.adam_step`.

    Notes
    -----
    Deterministic. Loshchilov and Hutter, "Decoupled weight decay regularization" (2017). Mirrors `torch.optim.AdamW`.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> p, m, v = [np.ones(2, np.float32)], [np.zeros(2, np.float32)], [np.zeros(2, np.float32)]
    >>> dnnkern.adamw_step(p, [np.array([3, -4], np.float32)], m, v, lr=0.25, weight_decay=0.5, step=1)
    >>> p
    [array([0.625, 1.125], dtype=float32)]
    """
    *numbers, log1 = moments("adamw_step", lr, beta1, beta2, eps, step)
    missing("adamw_step", 4, params=params, grads=grads, m=m, v=v)
    (weight_decay,) = at_least("adamw_step", weight_decay=weight_decay)
    step, flags = counted("adamw_step", step, maximize)
    numbers = *numbers, float(lr) * weight_decay, log1
    ADAMW.step((params, grads, m, v, vmax, master), (grad_scale, found_inf, step), flags, numbers, workspace, stream, choice)
