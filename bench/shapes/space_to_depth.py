"""Blocks of pixels as channels, to measure: first layers, encoders."""
from dnnkern.transform._problem import DTYPES as KNOWN

from ._transform import shapes

DTYPES = KNOWN
_SHAPES = shapes("space_to_depth", {"layers": ("16x64x256x256 {} 2", "64x256x56x56 {} 2", "16x16x288x288 {} 3"),
                                    "pictures": ("64x3x224x224 {} 2", "64x3x224x224 {} 16", "16x3x1024x1024 {} 4")}, KNOWN,
                 "16x64x256x256 {} 2")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
