"""Problems of group_norm_fwd to measure, in both layouts."""
from ._channel_norm import shapes

_SHAPES = shapes("group_norm_fwd")
SETS, DTYPES, cases, parse = _SHAPES.SETS, _SHAPES.DTYPES, _SHAPES.cases, _SHAPES.parse
