"""CTC losses to measure."""
from ._ctc import FLOATS as DTYPES  # noqa: F401
from ._ctc import shapes

_SHAPES = shapes("ctc_loss_fwd")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
