"""Softmax and log-softmax."""
import dnnkern

from .._table import Refused, aten, nothing
from .._tensors import one_dtype


def _forward(x, dim, half_to_float, log):
    one_dtype(x)
    if half_to_float:
        raise Refused("float32 results of 16-bit numbers")
    return dnnkern.softmax_fwd(x, axis=dim, log=log)


def _backward(dy, y, dim, input_dtype, log):
    one_dtype(dy, y)
    if input_dtype is not dy.dtype:
        raise Refused("float32 results of 16-bit numbers")
    return dnnkern.softmax_bwd(dy, y, axis=dim, log=log)


@aten("_softmax", state=nothing)
def softmax(x, dim, half_to_float):
    """``softmax_fwd``."""
    return _forward(x, dim, half_to_float, False)


@aten("_log_softmax", state=nothing)
def log_softmax(x, dim, half_to_float):
    """``softmax_fwd`` with log."""
    return _forward(x, dim, half_to_float, True)


@aten("_softmax_backward_data", state=nothing)
def softmax_backward(dy, y, dim, input_dtype):
    """``softmax_bwd``."""
    return _backward(dy, y, dim, input_dtype, False)


@aten("_log_softmax_backward_data", state=nothing)
def log_softmax_backward(dy, y, dim, input_dtype):
    """``softmax_bwd`` with log."""
    return _backward(dy, y, dim, input_dtype, True)
