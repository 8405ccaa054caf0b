"""Channels as blocks of pixels, to measure: enlarged pictures, decoders."""
from dnnkern.transform._problem import DTYPES as KNOWN

from ._transform import shapes

DTYPES = KNOWN
_SHAPES = shapes("depth_to_space", {"layers": ("16x256x128x128 {} 2", "64x1024x28x28 {} 2", "16x144x96x96 {} 3"),
                                    "pictures": ("16x12x512x512 {} 2", "16x48x256x256 {} 4")}, KNOWN, "16x256x128x128 {} 2")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
