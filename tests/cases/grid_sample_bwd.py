"""Cases of grid_sample_bwd."""
from ._grid import SampleBackward, sample_cases, sample_large

CASES, LARGE = sample_cases(SampleBackward), sample_large(SampleBackward)
