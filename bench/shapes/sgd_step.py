"""Steps of gradient descent to measure."""
from ._optim import FLOATS as DTYPES  # noqa: F401
from ._optim import shapes

_SHAPES = shapes("sgd_step")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
