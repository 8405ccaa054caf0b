"""Softmax's gradients to measure."""
from ._softmax import FLOATS as DTYPES  # noqa: F401
from ._softmax import shapes

_SHAPES = shapes("softmax_bwd")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
