"""Dropouts to measure."""
from ._dropout import FLOATS as DTYPES  # noqa: F401
from ._dropout import shapes

_SHAPES = shapes("dropout_fwd")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
