"""Gradients to clip."""
from ._optim import FLOATS as DTYPES  # noqa: F401
from ._optim import norms

_SHAPES = norms("clip_grad_norm")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
