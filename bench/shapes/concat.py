"""Concatenations to measure: skip connections, dense blocks, features side by side."""
from dnnkern.transform._problem import DTYPES as KNOWN

from ._transform import shapes

DTYPES = KNOWN
_SHAPES = shapes("concat", {
    "skips": ("16x64x512x512,16x64x512x512 {} 1", "32x256x128x128,32x256x128x128 {} 1", "32x128x128x256,32x128x128x256 {} 3",
              "64x512x28x28,64x512x28x28 {} 1"),
    "dense": ("64x256x56x56,64x32x56x56 {} 1", "64x28x28x480,64x28x28x32 {} 3", "64x1000x7x7,64x24x7x7 {} 1",
              "64x32x56x56,64x32x56x56,64x32x56x56,64x32x56x56,64x32x56x56,64x32x56x56,64x32x56x56,64x32x56x56 {} 1"),
    "features": ("65536x1024,65536x1024,65536x1024 {} 1", "16384x4096,16384x1 {} 1", "65536x100,65536x37,65536x500 {} 1"),
    "rows": ("4096x8192,4096x8192 {} 0", "16383x4097,1x4097 {} 0"),
    "small": ("32x256,32x256,32x256,32x256 {} 1", "8x4096,8x4096 {} 0")}, KNOWN, "32x128x128x256,32x128x128x256 {} 3")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
