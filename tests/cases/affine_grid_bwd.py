"""Cases of affine_grid_bwd."""
from ._grid import AffineBackward, affine_cases, affine_large

CASES, LARGE = affine_cases(AffineBackward), affine_large(AffineBackward)
