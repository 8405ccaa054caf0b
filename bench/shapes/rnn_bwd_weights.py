"""Recurrent networks to measure."""
from ._rnn import FLOATS as DTYPES  # noqa: F401
from ._rnn import shapes

_SHAPES = shapes("rnn_bwd_weights")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
