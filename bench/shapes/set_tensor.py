"""Arrays to fill."""
from dnnkern.transform._problem import DTYPES as KNOWN

from ._transform import shapes

DTYPES = KNOWN
_SHAPES = shapes("set_tensor", {"large": ("268435456 {}", "64x256x56x56 {}"), "odd": ("268435453 {}",), "small": ("4096 {}", "1048576 {}")},
                 KNOWN, "1048576 {}")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
