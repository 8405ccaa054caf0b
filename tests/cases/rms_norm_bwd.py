"""Cases of rms_norm_bwd."""
from ._norm import Backward, large, table


class RmsBackward(Backward):
    """Its names."""
    op, names, results = "rms_norm_bwd", ("dy", "x", "gamma", "rstd"), ("dx", "dgamma")
    layer = False


CASES, LARGE = table(RmsBackward), large(RmsBackward)
