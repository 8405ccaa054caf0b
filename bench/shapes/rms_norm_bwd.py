"""Problems of rms_norm_bwd to measure."""
from ._norm import FLOATS as DTYPES  # noqa: F401
from ._norm import shapes

_SHAPES = shapes("rms_norm_bwd")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
