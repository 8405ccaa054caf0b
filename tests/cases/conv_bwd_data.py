"""Cases of conv_bwd_data, ``dx = alpha * (transposed conv)(dy, w) + beta * out``, and of conv_transpose_fwd, which adds an epilogue.

In every case x is the image of the forward convolution, that is the result here, and y what it is computed from.
"""
from activations import ACTIVATIONS

from ._conv import SHORT, Conv, Table, beyond_int32
from ._conv_reductions import reductions
from ._conv_tables import FLOATS, large, plain_epilogues, shared

ALL = dict(bias=True, residual=True, transposed=True)


def _transposed(t):
    for dtype in FLOATS:
        t.case("transposed-nhwc-1x8x8x6-k16-4x4-s2-p1", (1, 8, 8, 6), 16, (4, 4), dtype, layout="NHWC", stride=2, padding=1,
               transposed=True)
        t.case("epilogue-transposed-nhwc-1x8x6x6-k16-2x2-s2", (1, 8, 6, 6), 16, (2, 2), dtype, layout="NHWC", stride=2, activation="relu",
               **ALL)
    t.case("transposed-output-padding-1x4x8x10-k5-3x3-s2-p1", (1, 4, 8, 10), 5, (3, 3), stride=2, padding=1, bias=True, transposed=True)
    t.case("transposed-s3x1-d2-2x3x11x7-k4-3x2", (2, 3, 11, 7), 4, (3, 2), "float16", stride=(3, 1), dilation=(2, 1), transposed=True)
    t.case("transposed-groups2-1x8x7x6-k4-3x3-s2", (1, 8, 7, 6), 4, (3, 3), stride=2, padding=((1, 0), (0, 1)), groups=2, bias=True,
           transposed=True)
    t.case("transposed-1d-1x6x20-k4-r4-s4", (1, 6, 20), 4, (4,), stride=4, bias=True, activation="tanh", transposed=True)
    t.case("transposed-3d-1x2x4x5x4-k3-2x3x2-s2", (1, 2, 4, 5, 4), 3, (2, 3, 2), stride=2, bias=True, transposed=True)
    t.case("transposed-depthwise-nhwc-1x16x6x6-2x2-s2", (1, 16, 6, 6), 16, (2, 2), "bfloat16", layout="NHWC", stride=2, groups=16,
           bias=True, transposed=True)
    t.case("epilogue-transposed-nhwc-2x16x7x8-k8-3x3-s2-p1", (2, 16, 7, 8), 8, (3, 3), "bfloat16", layout="NHWC", stride=2, padding=1,
           activation="relu", beta=1.0, **ALL)
    t.case("epilogue-groups2-nhwc-1x16x5x6-k128-3x1-s2", (1, 16, 5, 6), 128, (3, 1), "float16", layout="NHWC", stride=2, groups=2,
           beta=1.0, **ALL)
    t.case("epilogue-all-nhwc-1x8x5x5-k8-3x3-p1", (1, 8, 5, 5), 8, (3, 3), "bfloat16", layout="NHWC", padding=1, alpha=0.5, beta=2.0,
           activation="gelu", **ALL)
    t.case("epilogue-all-1x6x5x5-k4-3x3", (1, 6, 5, 5), 4, (3, 3), alpha=2.0, beta=-3.0, activation="relu", **ALL)
    t.case("residual-f32-nhwc-1x8x3x4-k16-1x1", (1, 8, 3, 4), 16, (1, 1), "bfloat16", layout="NHWC", residual=True,
           residual_dtype="float32", transposed=True)
    t.case("epilogue-groups2-1x8x3x5-k12-1x1", (1, 8, 3, 5), 12, (1, 1), groups=2, bias=True, activation="relu", transposed=True)
    t.case("bias-f32-strided-1x6x4x4-k4-3x3-p1", (1, 6, 4, 4), 4, (3, 3), "float16", padding=1, bias=True, bias_dtype="float32",
           lay={"bias": {"step": 2}}, transposed=True)
    for i, activation in enumerate(ACTIVATIONS):
        t.case(f"{activation.replace('_', '-')}-1x8x4x4-k8-1x1", (1, 8, 4, 4), 8, (1, 1), FLOATS[(i + 1) % 4],
               layout=("NCHW", "NHWC")[i % 2], activation=activation, bias=True, transposed=True)
    for dtype, out in (("float64", "float32"), ("float32", "bfloat16"), ("bfloat16", "float16")):
        t.case(f"transposed-to-{SHORT[out]}-nhwc-1x8x4x4-k16-2x2-s2", (1, 8, 4, 4), 16, (2, 2), dtype, layout="NHWC", stride=2,
               out_dtype=out, transposed=True)


def _patches(t):
    """Windows that do not overlap and cover the image: dx is the columns in another order."""
    for dtype in FLOATS:
        t.case("patches-nhwc-2x3x8x12-k8-4x4-s4", (2, 3, 8, 12), 8, (4, 4), dtype, layout="NHWC", stride=4)
        t.case("patches-2x3x4x9-k5-2x3-s2x3", (2, 3, 4, 9), 5, (2, 3), dtype, stride=(2, 3))
    t.case("patches-groups2-nhwc-3x16x6x4-k32-3x2-s3x2", (3, 16, 6, 4), 32, (3, 2), "bfloat16", layout="NHWC", stride=(3, 2), groups=2)
    t.case("patches-1d-nhwc-2x8x12-k16-r3-s3", (2, 8, 12), 16, (3,), "float16", layout="NHWC", stride=3)
    t.case("patches-rows-nhwc-2x5x4x6-k8-1x3-s1x3", (2, 5, 4, 6), 8, (1, 3), "bfloat16", layout="NHWC", stride=(1, 3))
    t.case("patches-groups2-3d-nhwc-2x6x4x4x6-k4-2x2x3-s2x2x3", (2, 6, 4, 4, 6), 4, (2, 2, 3), layout="NHWC", stride=(2, 2, 3), groups=2)
    t.case("patches-flipped-1x2x4x4-k3-2x2-s2", (1, 2, 4, 4), 3, (2, 2), "float16", stride=2, mode="convolution")
    t.case("patches-to-f32-nhwc-1x8x4x4-k16-2x2-s2", (1, 8, 4, 4), 16, (2, 2), "bfloat16", layout="NHWC", stride=2, out_dtype="float32")


def _cases():
    t = Table("conv_bwd_data")
    shared(t)
    _patches(t)
    plain_epilogues(t)
    _transposed(t)
    return [*t.found, *reductions("conv_bwd_data")]


CASES = _cases()
LARGE = large(Table("conv_bwd_data"))
BEYOND_INT32 = [Conv("2**31-nhwc-bf16", "conv_bwd_data", (1025, 8, 512, 513), 8, (3, 3), "bfloat16", layout="NHWC", padding=1)]
"""x and y have more than 2**31 elements."""
check_beyond_int32 = beyond_int32
