"""Problems of group_norm_bwd to measure, in both layouts."""
from ._channel_norm import shapes

_SHAPES = shapes("group_norm_bwd")
SETS, DTYPES, cases, parse = _SHAPES.SETS, _SHAPES.DTYPES, _SHAPES.cases, _SHAPES.parse
