"""Cases of glu_fwd."""
from ._glu import Forward, cases, large

CASES, LARGE = cases(Forward, "glu_fwd"), large(Forward, "glu_fwd")
