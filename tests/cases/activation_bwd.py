"""Cases of activation_bwd."""
from ._activation import Backward, cases, large

CASES, LARGE = cases(Backward, "activation_bwd"), large(Backward, "activation_bwd")
