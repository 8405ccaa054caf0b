"""Transpositions to measure: layouts of images and filters, heads of attention, matrices."""
from dnnkern.transform._problem import DTYPES as KNOWN

from ._transform import shapes

DTYPES = KNOWN
_SHAPES = shapes("transpose", {
    "layouts": ("64x256x56x56 {} NCHW:NHWC", "64x56x56x256 {} NHWC:NCHW", "64x64x112x112 {} NCHW:NHWC", "64x112x112x64 {} NHWC:NCHW",
                "128x1024x14x14 {} NCHW:NHWC", "128x14x14x1024 {} NHWC:NCHW", "128x512x7x7 {} NCHW:NHWC", "128x7x7x512 {} NHWC:NCHW",
                "8x64x16x56x56 {} NCHW:NHWC"),
    "sizes": tuple(f"{4 ** k}x256x56x56 {{}} NCHW:NHWC" for k in range(5)),
    "pictures": ("128x3x224x224 {} NCHW:NHWC", "128x224x224x3 {} NHWC:NCHW", "64x4x256x256 {} NCHW:NHWC", "256x1x28x28 {} NCHW:NHWC"),
    "filters": ("512x512x3x3 {} KCRS:KRSC", "512x3x3x512 {} KRSC:KCRS", "2048x1024x1x1 {} KCRS:KRSC"),
    "heads": ("16x4096x16x64 {} 0,2,1,3", "16x16x4096x64 {} 0,2,1,3", "32x2048x32x128 {} 0,2,1,3", "16x4096x16x64 {} 0,2,3,1"),
    "matrices": ("8192x8192 {} 1,0", "16384x4096 {} 1,0", "1024x1024 {} 1,0", "256x1024x1024 {} 0,2,1", "8191x8193 {} 1,0"),
    "ranks": ("64x65x66x67 {} 3,2,1,0", "16x17x18x19x20x21 {} 4,1,5,0,3,2", "128x32x8x64 {} 2,1,0,3")}, KNOWN, "64x64x56x56 {} NCHW:NHWC")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
