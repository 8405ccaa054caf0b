"""Gradients of squared differences to measure."""
from ._mse import FLOATS as DTYPES  # noqa: F401
from ._mse import shapes

_SHAPES = shapes("mse_loss_bwd")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
