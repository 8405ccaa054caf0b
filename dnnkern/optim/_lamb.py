"""LAMB: Adam's direction, as long as the parameters are."""
from typing import NamedTuple

from ..device import device_function
from ..device.fastmath import expm1
from ..host.front import public
from ..host.scalars import at_least
from ._adam import counted, moments
from ._frame import make_operation, missing
from ._rule import Rule, make_arithmetic


class Numbers(NamedTuple):
    """Corrections of both moments, what they gain and keep, eps, weight decay, rate. With the flag "counted" `correction` and `root` are
    the logarithms of beta1 and beta2."""
    correction: float
    gain1: float
    beta2: float
    gain2: float
    root: float
    eps: float
    decay: float
    lr: float


def _make(given, flags, T):
    """Device functions ``advance(g, m, v, n) -> (m, v)``, ``direction(p, m, v, n)`` and ``ratio(p_squares, d_squares)``."""
    inverse, root = make_arithmetic(T)
    MAXIMIZE = "maximize" in flags

    @device_function
    def advance(g, m, v, n):
        if MAXIMIZE:
            g = -g
        return T(m + n.gain1 * T(g - m)), T(n.beta2 * v + n.gain2 * g * g)

    @device_function
    def direction(p, m, v, n):
        return T(n.correction * m * inverse(T(root(v) * n.root + n.eps)) + n.decay * p)

    @device_function
    def ratio(p_squares, d_squares):
        found = T(1)
        if p_squares > T(0) and d_squares > T(0):
            found = T(root(p_squares) * inverse(root(d_squares)))
        return found
    return advance, direction, ratio


def _prepare(T):
    """The corrections, of the logarithms of both betas; as Adam's."""
    inverse, root = make_arithmetic(T)

    @device_function
    def prepare(n, step):
        first, second = T(-expm1(T(n.correction * step))), T(-expm1(T(n.root * step)))
        return Numbers(inverse(first), n.gain1, n.beta2, n.gain2, T(inverse(root(second))), n.eps, n.decay, n.lr)
    return prepare


_NUMBERS = "correction", "gain1", "beta2", "gain2", "root", "eps", "weight_decay", "lr"
RULES = {"lamb_step": Rule("lamb_step", ("m", "v"), _NUMBERS, Numbers, _make, 2, _prepare)}
LAMB = make_operation(RULES["lamb_step"])


@public
def lamb_step(params, grads, m, v, *, lr, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.0, step, maximize=False, master=None,
              grad_scale=None, found_inf=None, workspace=None, stream=None, **choice):
    """A step of LAMB on lists of arrays, in place: the step of each array is proportional to its norm.

    For each element, with the gradient ``g = grads / grad_scale``, and norms over each array::

        m <- beta1 * m + (1 - beta1) * g
        v <- beta2 * v + (1 - beta2) * g**2
        d  = (m / (1 - beta1**step)) / (sqrt(v / (1 - beta2**step)) + eps) + weight_decay * params         of m and v as stored
        params <- params - lr * |params| / |d| * d                      the quotient is 1 if either norm is 0

    Parameters
    ----------
    params, grads, m, v, lr, beta1, beta2, eps, weight_decay, step, maximize, master, grad_scale, found_inf
        As in `dnnkern.adam_step`.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.adam_step`.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `dnnkern.adam_step`.

    Notes
    -----
    Deterministic: squares are added in one order. Three launches per list: moments and sums of squares, norms, parameters.
    You and others, "Large batch optimization for deep learning: training BERT in 76 minutes" (2019), with no bounds on the norm.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> p, m, v = [np.full(4, 2, np.float32)], [np.zeros(4, np.float32)], [np.zeros(4, np.float32)]
    >>> dnnkern.lamb_step(p, [np.array([3, -4, 3, -4], np.float32)], m, v, lr=0.25, step=1)
    >>> p[0].round(3)
    array([1.5, 2.5, 1.5, 2.5], dtype=float32)
    """
    correction, *numbers, log1 = moments("lamb_step", 1.0, beta1, beta2, eps, step)
    lr, weight_decay = at_least("lamb_step", lr=lr, weight_decay=weight_decay)
    missing("lamb_step", 4, params=params, grads=grads, m=m, v=v)
    step, flags = counted("lamb_step", step, maximize)
    numbers = correction if step is None else log1, *numbers, weight_decay, lr
    LAMB.step((params, grads, m, v, master), (grad_scale, found_inf, step), flags, numbers, workspace, stream, choice)
