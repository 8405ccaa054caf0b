"""Affine grids to measure."""
from dnnkern.host.products import FLOATS

from ._transform import shapes

DTYPES = FLOATS
_SHAPES = shapes("affine_grid_fwd", {"images": ("64x3x224x224 {}", "256x3x512x512 {} --corners", "8x1x64x128x128 {}")}, FLOATS,
                 "64x3x224x224 {}")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
