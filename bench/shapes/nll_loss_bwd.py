"""Gradients of nll_loss to measure."""
from ._cross_entropy import FLOATS as DTYPES  # noqa: F401
from ._cross_entropy import shapes

_SHAPES = shapes("nll_loss_bwd")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
