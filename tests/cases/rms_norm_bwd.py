"""Cases of rms_norm_bwd."""
from ._norm import Backward, large, table


class RmsBackward(Backward):
    """Its names."""
    op, operands, written = "rms_norm_bwd", ("dy", "x", "gamma", "rstd", "dsummed"), ("dx", "dgamma", "dbeta")
    layer, optional = False, ("dbeta",)


CASES, LARGE = table(RmsBackward), large(RmsBackward)
