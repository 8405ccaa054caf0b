"""Cases of glu_bwd."""
from ._glu import Backward, cases, large

CASES, LARGE = cases(Backward, "glu_bwd"), large(Backward, "glu_bwd")
