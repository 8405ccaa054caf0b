"""Problems of batch_norm_infer to measure, in both layouts."""
from ._channel_norm import shapes

_SHAPES = shapes("batch_norm_infer")
SETS, DTYPES, cases, parse = _SHAPES.SETS, _SHAPES.DTYPES, _SHAPES.cases, _SHAPES.parse
