"""Arrays added to others in place, to measure."""
from ._act import FLOATS as DTYPES  # noqa: F401
from ._act import shapes

_SHAPES = shapes("add_tensor")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
