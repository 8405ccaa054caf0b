"""Cases of layer_norm_fwd."""
from ._norm import Forward, large, table


class LayerForward(Forward):
    """Its names."""
    op, operands, written = "layer_norm_fwd", ("x", "gamma", "beta", "residual"), ("y", "mean", "rstd", "summed")


CASES, LARGE = table(LayerForward), large(LayerForward)
