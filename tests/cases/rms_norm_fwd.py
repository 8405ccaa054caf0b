"""Cases of rms_norm_fwd."""
from ._norm import Forward, large, table


class RmsForward(Forward):
    """Its names."""
    op, names, results = "rms_norm_fwd", ("x", "gamma", "beta"), ("y", "rstd")
    layer = False


CASES, LARGE = table(RmsForward), large(RmsForward)
