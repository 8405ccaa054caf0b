"""Windows to measure for avg_pool_bwd, in both layouts."""
from ._pool import shapes

_SHAPES = shapes("avg_pool_bwd")
SETS, DTYPES, cases, parse = _SHAPES.SETS, _SHAPES.DTYPES, _SHAPES.cases, _SHAPES.parse
