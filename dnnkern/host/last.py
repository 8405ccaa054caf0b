"""Images with the sizes of "NCHW" and the memory of "NHWC", which PyTorch calls channels last: the layout "channels_last" of a call.

It is a call's alone; its problem has "NHWC". The descriptors of its images are permuted, once for all calls like it, where permuted views
of the arrays would cost each call a microsecond an array.
"""
import functools
from dataclasses import replace

from .tensor import Tensor

LAYOUTS = ("NCHW", "NHWC")
CHANNELS_LAST = "channels_last"
CALL_LAYOUTS = (*LAYOUTS, CHANNELS_LAST)
"""The words of a call that `of_images` makes the problem of; its maker is given one of `LAYOUTS`."""


def is_last(parameters) -> bool:
    """Whether a call's parameters have the layout."""
    return any(type(p) is str and p == CHANNELS_LAST for p in parameters)


def to_last(values) -> tuple:
    """One value per dimension, those of channels at the end.

    >>> to_last((64, 3, 224, 225)), to_first((64, 224, 225, 3))
    ((64, 224, 225, 3), (64, 3, 224, 225))
    """
    return (values[0], *values[2:], values[1])


def to_first(values) -> tuple:
    """One value per dimension, those of channels after the first."""
    return (values[0], values[-1], *values[1:-1])


def of_images(make):
    """A maker of problems, which takes "channels_last" for a layout too.

    Images, and filters, are the tensors with as many dimensions as the first one; their shapes are the parameters of as many ints.
    """
    @functools.wraps(make)
    def made(tensors, outs, *parameters, **aliases):
        dims = tensors[0].ndim if tensors[0] is not None else 0
        if dims < 2 or not is_last(parameters):
            return make(tensors, outs, *parameters, **aliases)
        single = isinstance(outs, Tensor)
        given = tuple(_permuted(t, dims, to_last) for t in tensors)
        results = outs and tuple(_permuted(t, dims, to_last) for t in ((outs,) if single else outs))
        try:
            return make(given, results[0] if single else results, *(_parameter(p, dims, "NHWC") for p in parameters), **aliases)
        except (TypeError, ValueError):
            # It names permuted shapes: the same with the caller's.
            make(tensors, outs, *("NCHW" if p == CHANNELS_LAST else p for p in parameters), **aliases)
            raise
    return made


def as_given(tensors, dims) -> tuple:
    """A problem's outputs as the arrays of a call with this layout have them."""
    return tuple(_permuted(t, dims, to_first) for t in tensors)


def _permuted(t, dims, order):
    return t if t is None or t.ndim != dims else replace(t, shape=order(t.shape), strides=order(t.strides))


def _parameter(p, dims, layout):
    if type(p) is str and p == CHANNELS_LAST:
        return layout
    return to_last(p) if type(p) is tuple and len(p) == dims and all(type(n) is int for n in p) else p
