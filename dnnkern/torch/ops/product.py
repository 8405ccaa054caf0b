"""Matrix products."""
import dnnkern

from ...device import HOST_MEMORY
from .._table import Refused, aten
from .._tensors import PRECISIONS, math_of, one_dtype

_state = PRECISIONS["matmul"]
_GELU = "gelu" if HOST_MEMORY else "gelu_tanh"  # of PyTorch's kernels


def _math(dims, a, b, c=None, out=None):
    """Checks the operands of a product of matrices or batches, and says what is allowed for float32."""
    one_dtype(a, b, c)
    if a.dim() != dims or b.dim() != dims or dims == 3 and a.shape[0] != b.shape[0]:
        raise Refused(f"{a.dim()}-D and {b.dim()}-D operands")
    if c is not None and c.dim() > dims:
        raise Refused(f"a {c.dim()}-D tensor is added to a {dims}-D product")
    if out is not None and (out.dtype is not a.dtype or out.shape != (*a.shape[:-1], b.shape[-1])):
        raise Refused(f"out is {out.dtype} of shape {tuple(out.shape)}")  # PyTorch converts, or resizes it
    return math_of("matmul", a)


def _sum(dims, c, a, b, beta, alpha, out=None, activation=None):
    """``beta * c + alpha * a @ b``."""
    math = _math(dims, a, b, c, out)
    if beta == 0:
        return dnnkern.matmul(a, b, alpha=float(alpha), math=math, activation=activation, out=out)
    if beta == 1 and c.dim() == 1 and c.shape[0] == b.shape[-1]:
        return dnnkern.matmul(a, b, bias=c, alpha=float(alpha), math=math, activation=activation, out=out)
    return dnnkern.matmul(a, b, c=c, alpha=float(alpha), beta=float(beta), math=math, activation=activation, out=out)


@aten("mm", state=_state)
def mm(a, b):
    """``a @ b`` of matrices."""
    return dnnkern.matmul(a, b, math=_math(2, a, b))


@aten("bmm", state=_state)
def bmm(a, b):
    """``a @ b`` of batches."""
    return dnnkern.matmul(a, b, math=_math(3, a, b))


@aten("mm.out")
def mm_out(a, b, *, out):
    """`mm` into out."""
    return dnnkern.matmul(a, b, math=_math(2, a, b, out=out), out=out)


@aten("bmm.out")
def bmm_out(a, b, *, out):
    """`bmm` into out."""
    return dnnkern.matmul(a, b, math=_math(3, a, b, out=out), out=out)


@aten("addmm", "addmm.out", state=_state)
def addmm(c, a, b, *, beta=1, alpha=1, out=None):
    """``beta * c + alpha * a @ b`` of matrices."""
    return _sum(2, c, a, b, beta, alpha, out)


@aten("baddbmm", "baddbmm.out", state=_state)
def baddbmm(c, a, b, *, beta=1, alpha=1, out=None):
    """``beta * c + alpha * a @ b`` of batches."""
    return _sum(3, c, a, b, beta, alpha, out)


@aten("addmm_")
def addmm_(c, a, b, *, beta=1, alpha=1):
    """`addmm` into c."""
    return _sum(2, c, a, b, beta, alpha, c)


@aten("baddbmm_")
def baddbmm_(c, a, b, *, beta=1, alpha=1):
    """`baddbmm` into c."""
    return _sum(3, c, a, b, beta, alpha, c)


@aten("_addmm_activation", "_addmm_activation.out")
def addmm_activation(c, a, b, *, beta=1, alpha=1, use_gelu=False, out=None):
    """`addmm`, then relu or gelu."""
    return _sum(2, c, a, b, beta, alpha, out, _GELU if use_gelu else "relu")
