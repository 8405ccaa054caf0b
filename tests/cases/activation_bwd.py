"""Cases of activation_bwd."""
from ._activation import Backward, SlopeBackward, cases, large, slope_cases

CASES, LARGE = cases(Backward, "activation_bwd") + slope_cases(), large(Backward, "activation_bwd")
LARGE += [SlopeBackward(f"dslope-large-{name}", shape, dtype, "prelu", op="activation_bwd", slope=slope) for name, shape, slope, dtype in (
    ("channels-f32", (16, 64, 56, 56), (64, 1, 1), "float32"), ("columns-f16", (32768, 250), (250,), "float16"))]
