"""Cases of im2col."""
from ._window import cases, large

CASES = cases("im2col")
LARGE = large("im2col")
