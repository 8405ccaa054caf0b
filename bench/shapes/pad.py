"""Borders to measure: of images in either layout, of sequences, of rows."""
from dnnkern.transform._problem import DTYPES as KNOWN

from ._transform import shapes

DTYPES = KNOWN
_SHAPES = shapes("pad", {
    "images": tuple(f"{shape} {{}} {pads}{mode}" for shape, pads in (("64x64x224x224", "0,0,1,1"), ("64x256x55x55", "0,0,1,1"),
                                                                     ("32x3x512x512", "0,0,3,3"), ("64x224x224x64", "0,1,1,0"))
                    for mode in ("", " edge", " reflect")),
    "channels": ("64x224x224x3 {} 0,0,0,0:1", "64x224x224x3 {} 0,0,0,0:5", "65536x1000 {} 0,0:24"),
    "rows": ("16x4000x1024 {} 0,0:96,0", "8191x8191 {} 0:1,0:1", "16384x4097 {} 0,2:3 edge")}, KNOWN, "64x64x224x224 {} 0,0,1,1")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
