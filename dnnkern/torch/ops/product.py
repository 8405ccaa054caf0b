"""Matrix products."""
from ... import matmul
from ...device import HOST_MEMORY
from .._table import Refused, aten
from .._tensors import math_of, one_dtype

_GELU = "gelu" if HOST_MEMORY else "gelu_tanh"  # of PyTorch's kernels


def _product(a, b, dims, c=None, alpha=1, beta=1, **more):
    """``alpha * a @ b + beta * c``."""
    one_dtype(a, b, c)
    if a.dim() != dims or b.dim() != dims or dims == 3 and a.shape[0] != b.shape[0]:
        raise Refused(f"{a.dim()}-D and {b.dim()}-D operands")
    math = math_of("matmul", a)
    if c is None or beta == 0:
        _check_out(more, a, b, dims)
        return matmul(a, b, alpha=float(alpha), math=math, **more)
    if c.dim() > dims:
        raise Refused(f"a {c.dim()}-D tensor is added to a {dims}-D product")
    _check_out(more, a, b, dims)
    if beta == 1 and c.dim() == 1 and c.shape[0] == b.shape[-1]:
        return matmul(a, b, bias=c, alpha=float(alpha), math=math, **more)
    return matmul(a, b, c=c, alpha=float(alpha), beta=float(beta), math=math, **more)


def _check_out(more, a, b, dims):
    """PyTorch resizes an ``out=`` of another shape, and converts to its dtype."""
    out = more.get("out")
    if out is not None and (out.dtype is not a.dtype or out.shape != (*a.shape[:dims - 1], b.shape[-1])):
        raise Refused(f"out is {out.dtype} of shape {tuple(out.shape)}")


@aten("mm", "mm.out")
def mm(a, b, **out):
    """``a @ b`` of matrices."""
    return _product(a, b, 2, **out)


@aten("bmm", "bmm.out")
def bmm(a, b, **out):
    """``a @ b`` of batches."""
    return _product(a, b, 3, **out)


@aten("addmm", "addmm.out")
def addmm(c, a, b, *, beta=1, alpha=1, **out):
    """``beta * c + alpha * a @ b`` of matrices."""
    return _product(a, b, 2, c, alpha, beta, **out)


@aten("baddbmm", "baddbmm.out")
def baddbmm(c, a, b, *, beta=1, alpha=1, **out):
    """``beta * c + alpha * a @ b`` of batches."""
    return _product(a, b, 3, c, alpha, beta, **out)


@aten("addmm_")
def addmm_(c, a, b, *, beta=1, alpha=1):
    """`addmm` into c."""
    return _product(a, b, 2, c, alpha, beta, out=c)


@aten("baddbmm_")
def baddbmm_(c, a, b, *, beta=1, alpha=1):
    """`baddbmm` into c."""
    return _product(a, b, 3, c, alpha, beta, out=c)


@aten("_addmm_activation", "_addmm_activation.out")
def addmm_activation(c, a, b, *, beta=1, alpha=1, use_gelu=False, **out):
    """`addmm`, then relu or gelu."""
    return _product(a, b, 2, c, alpha, beta, activation=_GELU if use_gelu else "relu", **out)
