"""Images of another size, to measure."""
from dnnkern.host.products import FLOATS

from ._transform import IMAGES, shapes

DTYPES = FLOATS
_SHAPES = shapes("resample_fwd", IMAGES, FLOATS, "16x256x64x64 {} 128x128 bilinear", ("nchw", "nhwc"))
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
