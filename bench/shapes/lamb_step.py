"""Steps of LAMB to measure."""
from ._optim import FLOATS as DTYPES  # noqa: F401
from ._optim import shapes

_SHAPES = shapes("lamb_step")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
