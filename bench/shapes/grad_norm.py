"""Norms of gradients to measure."""
from ._optim import FLOATS as DTYPES  # noqa: F401
from ._optim import norms

_SHAPES = norms("grad_norm")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
