"""The norm of all gradients, whether they are finite, and clipping."""
import functools

from ..host.arrays import kind_of
from ..host.front import public, stream_handle
from ..host.lists import ListOperation
from ..host.scalars import number
from ._norm_problem import SINGLES, make_norm, norm_dtype


def _operation(op):
    problem = functools.update_wrapper(functools.partial(make_norm, op), make_norm)
    return ListOperation(op, lists=("grads",), written={"out", "found_inf"} | ({"grads"} if op.startswith("clip") else set()),
                         singles=SINGLES, scalars=("max_norm",) if op.startswith("clip") else (), problem=problem)


_RESULTS = {}
"""{(kind, dtype, device) of the first gradient: dtype of the norm, device}."""
GRAD_NORM, CLIP_GRAD_NORM = _operation("grad_norm"), _operation("clip_grad_norm")


@public
def grad_norm(grads, *, grad_scale=None, found_inf=None, out=None, workspace=None, stream=None, **choice):
    """The Euclidean norm of all gradients as one vector, ``sqrt(sum((grads / grad_scale)**2))``, and whether they are finite.

    Parameters
    ----------
    grads : list of arrays
        At least one; float64, float32, float16 and bfloat16, mixed; any shapes, also empty, arbitrary strides.
    grad_scale : float32 array of one element, optional
        On the device; gradients are divided by it.
    found_inf : float32 array of one element, optional
        On the device; set to 1 if an element of grads is infinite or NaN, else to 0. Steps that receive it then do nothing.
    out : array of one element
        Output, written and returned: float32, or float64 if the first of grads is.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    norm : 0-d array, of the framework of the first of grads
        Infinite if squares overflow, which `found_inf` does not report.

    Raises
    ------
    ValueError
        An empty list, arrays of other than one element where one is expected.
    TypeError
        Unsupported dtypes, objects that are not device arrays, immutable arrays.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic: squares are added in an order that depends only on the list and the device, in float32 (float64 if an array is).
    Two launches. Mirrors `torch.nn.utils.get_total_norm`.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> found = np.zeros(1, np.float32)
    >>> float(dnnkern.grad_norm([np.array([3, 0], np.float32), np.array([[4]], np.float16)], found_inf=found))
    5.0
    >>> found
    array([0.], dtype=float32)
    """
    out = _result("grad_norm", grads, out, stream)
    GRAD_NORM.step((grads,), (out, grad_scale, found_inf), (), (), workspace, stream, choice)
    return out


@public
def clip_grad_norm(grads, max_norm, *, grad_scale=None, found_inf=None, out=None, workspace=None, stream=None, **choice):
    """Scale gradients in place so that their norm as one vector is at most `max_norm`.

    ``grads <- grads / grad_scale * min(1, max_norm / (norm + 1e-6))`` with the returned norm.

    Parameters
    ----------
    grads : list of arrays
        As in `dnnkern.grad_norm`; no two of them may share memory.
    max_norm : float
        0 or more; infinity only divides by grad_scale.
    grad_scale, found_inf, out, workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.grad_norm`.

    Returns
    -------
    norm : 0-d array, of the framework of the first of grads
        Norm of ``grads / grad_scale`` before clipping.

    Raises
    ------
    ValueError, TypeError, NotSupported
        As `dnnkern.grad_norm`; also ValueError for memory that is written twice and a `max_norm` that is negative or NaN.

    Notes
    -----
    Deterministic. Two launches: sums of squares, which every block of the second adds itself. If nothing needs scaling the gradients are
    not read again. If the norm is infinite, finite elements become 0 and infinite ones NaN; if it is NaN, all become NaN, as in PyTorch.
    Mirrors `torch.nn.utils.clip_grad_norm_`.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> grads = [np.array([3, 0], np.float32), np.array([[4]], np.float32)]
    >>> float(dnnkern.clip_grad_norm(grads, 2.5))
    5.0
    >>> [g.round(4) for g in grads]
    [array([1.5, 0. ], dtype=float32), array([[2.]], dtype=float32)]
    """
    most = number("clip_grad_norm", "max_norm", max_norm)
    if not most >= 0:
        raise ValueError(f"clip_grad_norm: max_norm={max_norm}; expected a number, 0 or more")
    out = _result("clip_grad_norm", grads, out, stream)
    CLIP_GRAD_NORM.step((grads,), (out, grad_scale, found_inf), (), (most,), workspace, stream, choice)
    return out


def _result(function, grads, out, stream):
    """The array of the norm, made if it is not given."""
    if not isinstance(grads, (list, tuple)):
        raise TypeError(f"{function}: grads is a {type(grads).__name__}; expected a list of arrays")
    if not grads:
        raise ValueError(f"{function}: grads is empty; expected one array at least")
    if out is not None:
        return out
    try:
        kind = kind_of(grads[0])
        (_, _, *known), _ = kind.describe(grads[0])
        known = kind, *known
        if known not in _RESULTS:
            _RESULTS[known] = norm_dtype(kind.tensor(grads[0]).dtype), kind.device(grads[0])
        dtype, device = _RESULTS[known]
    except RuntimeError as error:  # torch: a sparse tensor has no address
        raise TypeError(f"{function}: grads[0]: {error}") from None
    except (TypeError, ValueError) as error:
        raise type(error)(f"{function}: grads[0]: {error}") from None
    stream = kind.stream(device) if stream is None else stream_handle(function, stream)
    return kind.empty((), dtype, device, stream)
