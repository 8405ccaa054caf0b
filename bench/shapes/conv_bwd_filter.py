"""Problems of conv_bwd_filter to measure."""
from bench.shapes._conv import Shapes

_SHAPES = Shapes("conv_bwd_filter")
SETS, DTYPES, cases, parse = _SHAPES.SETS, _SHAPES.DTYPES, _SHAPES.cases, _SHAPES.parse
