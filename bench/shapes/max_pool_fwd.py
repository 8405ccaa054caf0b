"""Windows to measure for max_pool_fwd, in both layouts."""
from ._pool import shapes

_SHAPES = shapes("max_pool_fwd")
SETS, DTYPES, cases, parse = _SHAPES.SETS, _SHAPES.DTYPES, _SHAPES.cases, _SHAPES.parse
