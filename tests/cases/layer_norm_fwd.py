"""Cases of layer_norm_fwd."""
from ._norm import Forward, large, table


class LayerForward(Forward):
    """Its names."""
    op, names, results = "layer_norm_fwd", ("x", "gamma", "beta"), ("y", "mean", "rstd")


CASES, LARGE = table(LayerForward), large(LayerForward)
