"""Cases of activation_fwd."""
from ._activation import Forward, cases, large

CASES, LARGE = cases(Forward, "activation_fwd"), large(Forward, "activation_fwd")
