"""Problems of batch_norm_bwd_apply to measure, in both layouts."""
from ._channel_norm import shapes

_SHAPES = shapes("batch_norm_bwd_apply")
SETS, DTYPES, cases, parse = _SHAPES.SETS, _SHAPES.DTYPES, _SHAPES.cases, _SHAPES.parse
