"""Cases of rms_norm_fwd."""
from ._norm import Forward, large, table


class RmsForward(Forward):
    """Its names."""
    op, operands, written = "rms_norm_fwd", ("x", "gamma", "beta", "residual"), ("y", "rstd", "summed")
    layer = False


CASES, LARGE = table(RmsForward), large(RmsForward)
