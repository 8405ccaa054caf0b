"""Problems of lrn_bwd to measure, in both layouts."""
from ._lrn import shapes

_SHAPES = shapes("lrn_bwd")
SETS, DTYPES, cases, parse = _SHAPES.SETS, _SHAPES.DTYPES, _SHAPES.cases, _SHAPES.parse
