"""Cases of grid_sample_fwd."""
from ._grid import SampleForward, sample_cases, sample_large

CASES, LARGE = sample_cases(SampleForward), sample_large(SampleForward)
