"""Gradients of borders to measure: of images in either layout, of sequences."""
from dnnkern.host.products import FLOATS

from ._transform import shapes

DTYPES = FLOATS
_SHAPES = shapes("pad_bwd", {
    "images": tuple(f"{shape} {{}} {pads} {mode}" for shape, pads in (("64x64x224x224", "0,0,1,1"), ("64x256x55x55", "0,0,1,1"),
                                                                      ("32x3x512x512", "0,0,3,3"), ("64x224x224x64", "0,1,1,0"))
                    for mode in ("edge", "reflect")),
    "rows": ("16384x4097 {} 0,2:3 edge",)}, FLOATS, "64x64x224x224 {} 0,0,1,1 reflect")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
