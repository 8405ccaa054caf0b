"""Problems of conv_fwd to measure."""
from bench.shapes._conv import Shapes

_SHAPES = Shapes("conv_fwd")
SETS, DTYPES, cases, parse = _SHAPES.SETS, _SHAPES.DTYPES, _SHAPES.cases, _SHAPES.parse
