"""Reductions of results that are known within bounds: what cases of products and convolutions share."""
import numpy as np


def _norm2(v, axes):
    return np.sqrt((v * v).sum(axes, keepdims=True))


MODES = {"add": lambda v, axes: v.sum(axes, keepdims=True), "sum_square": lambda v, axes: (v * v).sum(axes, keepdims=True),
         "avg": lambda v, axes: v.mean(axes, keepdims=True), "norm1": lambda v, axes: np.abs(v).sum(axes, keepdims=True),
         "max": lambda v, axes: v.max(axes, keepdims=True), "min": lambda v, axes: v.min(axes, keepdims=True),
         "amax": lambda v, axes: np.abs(v).max(axes, keepdims=True), "norm2": _norm2}
"""Mode -> ``f(values, axes)``; sizes are kept."""


def reduced(v, bound, mode, axes, roundoff):
    """(result, bound) of a reduction of values that are within a bound."""
    size, count = np.abs(v) + bound, np.prod([v.shape[a] for a in axes])
    if mode in ("max", "min", "amax"):
        error = bound.max(axes, keepdims=True)
    elif mode in ("sum_square", "norm2"):
        error = (2 * size * bound + roundoff * (2 + count ** 0.5) * size * size).sum(axes, keepdims=True)
        if mode == "norm2":
            error = error / np.maximum(_norm2(v, axes), 1e-30) + 4 * roundoff * _norm2(v, axes)
    else:
        error = (bound + roundoff * count ** 0.5 * size).sum(axes, keepdims=True) / (count if mode == "avg" else 1)
    return MODES[mode](v, axes), error
