"""Gradients of rotary embeddings to measure."""
from ._rope import FLOATS as DTYPES  # noqa: F401
from ._rope import shapes

_SHAPES = shapes("rope_bwd")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
