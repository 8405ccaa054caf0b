"""Problems of lrn_fwd to measure, in both layouts."""
from ._lrn import shapes

_SHAPES = shapes("lrn_fwd")
SETS, DTYPES, cases, parse = _SHAPES.SETS, _SHAPES.DTYPES, _SHAPES.cases, _SHAPES.parse
