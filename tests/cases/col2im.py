"""Cases of col2im."""
from ._window import cases, large

CASES = cases("col2im")
LARGE = large("col2im")
