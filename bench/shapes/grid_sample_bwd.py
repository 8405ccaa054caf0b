"""Gradients of sampled images to measure."""
from dnnkern.host.products import FLOATS

from ._transform import GRIDS, shapes

DTYPES = FLOATS
_SHAPES = shapes("grid_sample_bwd", GRIDS, FLOATS, "32x64x112x112 {} 112x112")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
