"""Gradients of dropouts to measure."""
from ._dropout import FLOATS as DTYPES  # noqa: F401
from ._dropout import shapes

_SHAPES = shapes("dropout_bwd")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
