"""Gated linear units with SiLU and GELU."""
import functools

import torch
import torch.nn.functional as F

import dnnkern

from .._above import gradients
from .._operator import operator
from .._rules import leading
from .._table import Refused
from .._tensors import one_dtype
from ._front import public


@functools.cache
def _programs(activation, dtype):
    """(y of gate and up, both gradients of dy, gate and up)."""
    from ...device.pointwise import Function
    from ...device.program import Program, Step
    compute = "float64" if dtype == "float64" else "float32"

    def step(mode, *values):
        return Step(Function.of(mode), values, compute=compute)
    matrix = dtype, "matrix"
    forward = Program((matrix,) * 2, (step(activation, 0), step("mul", 2, 1)), ((3, *matrix),), accumulators=0)
    backward = Program((matrix,) * 3, (step("mul", 0, 2), step(f"{activation}_backward", 3, 1), step(activation, 1), step("mul", 0, 5)),
                       ((4, *matrix), (6, *matrix)), accumulators=0)
    return forward, backward


def _word(x):
    return str(x.dtype).removeprefix("torch.")


def _run(gate, up, activation):
    return dnnkern.fused_pointwise(_programs(activation, _word(gate))[0], (gate, up), out=gate.new_empty(gate.shape))


def _run_gradients(dy, gate, up, activation, out):
    dnnkern.fused_pointwise(_programs(activation, _word(gate))[1], (dy, gate, up), out=out)
    return out


ACTIVATIONS = {"swish": F.silu, "gelu": F.gelu, "gelu_tanh": functools.partial(F.gelu, approximate="tanh")}


def _pytorchs(gate, up, activation):
    return ACTIVATIONS[activation](gate) * up


def _fake_both(dy, gate, up, activation):
    return gate.new_empty(gate.shape), up.new_empty(up.shape)


def _run_both(dy, gate, up, activation):
    return _run_gradients(dy, gate, up, activation, _fake_both(dy, gate, up, activation))


_both = operator("gated_gradients(Tensor dy, Tensor gate, Tensor up, str activation) -> (Tensor, Tensor)", _run_both, _fake_both,
                 "gated backward", batch=leading("dy", "gate", "up"))


def _gradient(dy, wanted, gate, up, activation):
    if torch.is_grad_enabled():
        return gradients(lambda gate, up: _pytorchs(gate, up, activation), (gate, up), dy)
    return _both(dy, gate, up, activation)


gated = operator("gated(Tensor gate, Tensor up, str activation) -> Tensor", _run, lambda gate, up, activation: gate.new_empty(gate.shape),
                 "gated", _gradient, batch=leading("gate", "up"))


# ---- of halves of one array: its gradient is one array, too

def _run_halves(x, activation, dim):
    return _run(*x.chunk(2, dim), activation)


def _fake_halves(x, activation, dim):
    return x.new_empty([n // 2 if d == dim % x.dim() else n for d, n in enumerate(x.shape)])


def _run_gradient_of_halves(dy, x, activation, dim):
    dx = x.new_empty(x.shape)
    _run_gradients(dy, *x.chunk(2, dim), activation, dx.chunk(2, dim))
    return dx


_of_halves = operator("gated_halves_gradient(Tensor dy, Tensor x, str activation, int dim) -> Tensor", _run_gradient_of_halves,
                      lambda dy, x, *_: x.new_empty(x.shape), "gated backward", batch=leading("dy", "x", shifted=("dim",)))


def _gradient_of_halves(dy, wanted, x, activation, dim):
    if torch.is_grad_enabled():
        return gradients(lambda x: _pytorchs(*x.chunk(2, dim), activation), [x], dy)
    return [_of_halves(dy, x, activation, dim)]


_halves = operator("gated_halves(Tensor x, str activation, int dim) -> Tensor", _run_halves, _fake_halves, "gated", _gradient_of_halves,
                   batch=leading("x", shifted=("dim",)))


def _glu(name, gate, up, dim, activation):
    if up is None:
        if not gate.dim() or not -gate.dim() <= dim < gate.dim() or gate.shape[dim] % 2:
            raise ValueError(f"{name}: gate has shape {tuple(gate.shape)} and dim is {dim}; expected an even size there, or up")
    elif gate.shape != up.shape:
        raise ValueError(f"{name}: up has shape {tuple(up.shape)}; expected gate's, {tuple(gate.shape)}")
    one_dtype(gate, up)
    if gate.numel() == 0:
        raise Refused("no elements")
    return _halves(gate, activation, dim) if up is None else gated(gate, up, activation)


def _composition(activation):
    def call(gate, up=None, *, dim=-1):
        return _pytorchs(*(gate.chunk(2, dim) if up is None else (gate, up)), activation)
    return call


@public(_composition("swish"))
def swiglu(gate, up=None, *, dim=-1):
    """``silu(gate) * up`` in one kernel, and one for both gradients.

    Parameters
    ----------
    gate : Tensor
        float64, float32, float16 or bfloat16. Without `up` it has both, gate first, as halves along `dim`: what one product with the
        weights of both gives.
    up : Tensor, optional
        Of gate's shape; PyTorch's functions take other dtypes.
    dim : int

    Returns
    -------
    Tensor
        Packed; computed in float32 (float64 for float64) and rounded once. Of gate's shape, or half of it.

    Raises
    ------
    ValueError
        Shapes that differ, an odd size along dim.

    Notes
    -----
    ``torch.nn.functional.glu`` has the gate in the second half. Shazeer, "GLU variants improve transformer" (2020).

    Examples
    --------
    >>> import torch
    >>> from dnnkern.torch import functional
    >>> both = torch.tensor([[0.0, 1.0, 5.0, 3.0]])
    >>> functional.swiglu(both)
    tensor([[0.0000, 2.1932]])
    >>> functional.swiglu(both[:, :2], both[:, 2:])
    tensor([[0.0000, 2.1932]])
    """
    return _glu("swiglu", gate, up, dim, "swish")


def _geglu_of(gate, up=None, *, dim=-1, approximate="none"):
    return _composition("gelu_tanh" if approximate == "tanh" else "gelu")(gate, up, dim=dim)


@public(_geglu_of)
def geglu(gate, up=None, *, dim=-1, approximate="none"):
    """``gelu(gate) * up`` in one kernel, and one for both gradients.

    Parameters
    ----------
    gate, up, dim
        As in `swiglu`.
    approximate : "none" or "tanh"
        As in ``torch.nn.functional.gelu``.

    Returns
    -------
    Tensor
        As `swiglu`.

    Raises
    ------
    ValueError
        As `swiglu`; another approximation.

    Examples
    --------
    >>> import torch
    >>> from dnnkern.torch import functional
    >>> functional.geglu(torch.tensor([0.0, 1.0]), torch.tensor([5.0, 2.0]), approximate="tanh")
    tensor([0.0000, 1.6824])
    """
    if approximate not in ("none", "tanh"):
        raise ValueError(f"geglu: approximate is {approximate!r}; expected 'none' or 'tanh'")
    return _glu("geglu", gate, up, dim, "gelu_tanh" if approximate == "tanh" else "gelu")
