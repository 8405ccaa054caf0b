"""Cases of layer_norm_bwd."""
from ._norm import Backward, large, table


class LayerBackward(Backward):
    """Its names."""
    op, operands, written = "layer_norm_bwd", ("dy", "x", "gamma", "mean", "rstd", "dsummed"), ("dx", "dgamma", "dbeta")


CASES, LARGE = table(LayerBackward), large(LayerBackward)
