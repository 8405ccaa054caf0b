"""Attention to measure."""
from ._attention import FLOATS as DTYPES  # noqa: F401
from ._attention import shapes

_SHAPES = shapes("sdpa_fwd")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
