"""Cases of affine_grid_fwd."""
from ._grid import AffineForward, affine_cases, affine_large

CASES, LARGE = affine_cases(AffineForward), affine_large(AffineForward)
