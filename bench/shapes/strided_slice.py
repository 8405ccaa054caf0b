"""Slices to measure: crops of images, heads and projections, odd rows, steps."""
from dnnkern.transform._problem import DTYPES as KNOWN

from ._transform import shapes

DTYPES = KNOWN
_SHAPES = shapes("strided_slice", {
    "images": ("64x64x226x226 {} :,:,1:225,1:225", "64x226x226x64 {} :,1:225,1:225,:", "64x256x57x57 {} :,:,1:56,1:56",
               "64x512x28x28 {} :,256:,:,:", "256x3x256x256 {} :,:,16:240,16:240"),
    "projections": ("16x4096x6144 {} :,:,2048:4096", "16x4097x1024 {} :,1:,:", "8x8192x4608 {} :,:,4096:4352"),
    "odd": ("16385x8193 {} 1:,1:", "8192x16384 {} :,3:-5", "65536x1001 {} :,500:"),
    "steps": ("64x64x224x224 {} :,:,::2,::2", "64x224x224x64 {} :,::2,::2,:", "16384x8192 {} :,::2", "16384x8192 {} :,::-1",
              "16384x8192 {} ::-1,:")}, KNOWN, "64x256x57x57 {} :,:,1:56,1:56")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
