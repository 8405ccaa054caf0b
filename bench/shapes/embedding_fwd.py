"""Embeddings to measure."""
from ._embedding import DTYPES, shapes  # noqa: F401

_SHAPES = shapes("embedding_fwd")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
