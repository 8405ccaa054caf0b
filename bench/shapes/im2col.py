"""Windows to measure for im2col: layers of networks, in both layouts."""
from dnnkern.transform.window._problem import SUMMED

from ._transform import shapes

DTYPES = SUMMED
_SHAPES = shapes("im2col", {
    "resnet50": ("32x64x56x56 {} 3x3 p1", "32x128x28x28 {} 3x3 p1", "32x256x14x14 {} 3x3 p1", "32x512x7x7 {} 3x3 p1",
                 "32x128x56x56 {} 3x3 s2 p1", "32x3x224x224 {} 7x7 s2 p3 # first layer"),
    "vgg16": ("16x64x224x224 {} 3x3 p1", "16x256x56x56 {} 3x3 p1"),
    "others": ("32x96x55x55 {} 5x5 p2", "16x256x28x28 {} 3x3 p2 d2", "32x256x4096 {} 3 p1", "4x64x16x56x56 {} 3x3x3 p1",
               "64x3x224x224 {} 16x16 s16 # patches")}, SUMMED, "32x64x56x56 {} 3x3 p1", ("nchw", "nhwc"))
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
