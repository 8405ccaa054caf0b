"""Problems of layer_norm_fwd to measure."""
from ._norm import FLOATS as DTYPES  # noqa: F401
from ._norm import shapes

_SHAPES = shapes("layer_norm_fwd")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
