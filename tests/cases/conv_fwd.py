"""Cases of conv_fwd: ``y = activation(alpha * conv(x, w) + beta * out + residual + bias)``."""
from activations import ACTIVATIONS

from ._conv import SHORT, Conv, Table, beyond_int32
from ._conv_prologues import prologues
from ._conv_reductions import reductions
from ._conv_tables import FLOATS, large, shared

DTYPES = (*FLOATS, "int8", "float8_e4m3fn")
E4M3, E5M2 = "float8_e4m3fn", "float8_e5m2"
ALL = dict(bias=True, residual=True)


def _epilogues(t):
    for dtype in DTYPES:
        t.case("epilogue-nhwc-1x16x4x5-k16-3x3-p1", (1, 16, 4, 5), 16, (3, 3), dtype, layout="NHWC", padding=1, activation="relu", **ALL)
        t.case("bias-relu-2x4x5x4-k8-3x3-p1", (2, 4, 5, 4), 8, (3, 3), dtype, padding=1, bias=True, activation="relu")
    t.case("epilogue-all-1x4x5x5-k6-3x3", (1, 4, 5, 5), 6, (3, 3), alpha=2.0, beta=-3.0, activation="relu", **ALL)
    t.case("epilogue-all-nhwc-1x8x5x5-k8-3x3-p1", (1, 8, 5, 5), 8, (3, 3), "bfloat16", layout="NHWC", padding=1, alpha=0.5, beta=2.0,
           activation="gelu", **ALL)
    t.case("epilogue-all-groups4-nhwc-1x32x3x3-k32-1x1", (1, 32, 3, 3), 32, (1, 1), "float16", layout="NHWC", groups=4, beta=1.0, **ALL)
    t.case("epilogue-depthwise-nhwc-1x16x5x5-3x3-p1", (1, 16, 5, 5), 16, (3, 3), "float16", layout="NHWC", padding=1, groups=16,
           activation="relu", **ALL)
    t.case("epilogue-causal-depthwise-2x8x11-r4-swish", (2, 8, 11), 8, (4,), "bfloat16", padding=(3, 0), groups=8, bias=True,
           activation="swish")
    t.case("residual-1x4x5x5-k4-3x3-p1", (1, 4, 5, 5), 4, (3, 3), "float16", padding=1, residual=True)
    t.case("residual-f32-nhwc-1x16x3x4-k8-1x1", (1, 16, 3, 4), 8, (1, 1), "bfloat16", layout="NHWC", residual=True,
           residual_dtype="float32", activation="relu")
    t.case("residual-beta-0-2x8x3x4-k12-1x1", (2, 8, 3, 4), 12, (1, 1), "float16", alpha=2.0, activation="relu", **ALL)
    t.case("bias-groups2-2x8x3x4-k12-1x1", (2, 8, 3, 4), 12, (1, 1), groups=2, bias=True, activation="relu")
    t.case("residual-groups2-nhwc-2x16x3x4-k16-1x1", (2, 16, 3, 4), 16, (1, 1), "bfloat16", layout="NHWC", groups=2, residual=True)
    t.case("epilogue-groups8-nhwc-1x64x3x4-k64-3x3-s2-p1", (1, 64, 3, 4), 64, (3, 3), "float16", layout="NHWC", stride=2, padding=1,
           groups=8, activation="relu", **ALL)
    t.case("epilogue-groups4-nhwc-1x64x3x9-k64-3x3-p1", (1, 64, 3, 9), 64, (3, 3), "bfloat16", layout="NHWC", padding=1, groups=4,
           activation="relu", **ALL)
    for groups in (1, 4, 16):
        t.case(f"residual-alone-last-groups{groups}-1x16x4x8-k16-3x3-p1", (1, 16, 4, 8), 16, (3, 3), "bfloat16", padding=1, groups=groups,
               residual=True, lay={"residual": {"order": (0, 2, 3, 1)}})
        t.case(f"residual-alone-first-groups{groups}-nhwc-1x16x4x8-k16-3x3-p1", (1, 16, 4, 8), 16, (3, 3), "float16", layout="NHWC",
               padding=1, groups=groups, residual=True, lay={"residual": {"order": (0, 3, 1, 2)}})
    t.case("residual-strided-1x4x4x4-k4-3x3-p1", (1, 4, 4, 4), 4, (3, 3), padding=1, residual=True,
           lay={"residual": {"order": (0, 2, 3, 1), "gap": 2}})
    t.case("residual-gaps-nhwc-2x8x5x6-k16-3x3", (2, 8, 5, 6), 16, (3, 3), "bfloat16", layout="NHWC", residual=True, beta=1.0,
           lay={"residual": {"gap": 3}})
    t.case("epilogue-gaps-nhwc-2x8x5x6-k16-3x3", (2, 8, 5, 6), 16, (3, 3), "float16", layout="NHWC", activation="relu", beta=1.0,
           lay={"residual": {"gap": 8}, "y": {"gap": 8}}, **ALL)
    t.case("epilogue-groups2-nhwc-1x128x3x4-k48-1x1", (1, 128, 3, 4), 48, (1, 1), "bfloat16", layout="NHWC", groups=2, beta=1.0, **ALL)
    t.case("misaligned-addends-nhwc-1x16x3x3-k8-3x3-p1", (1, 16, 3, 3), 8, (3, 3), "bfloat16", layout="NHWC", padding=1,
           lay={"bias": {"misaligned": 3}, "residual": {"misaligned": 1}}, **ALL)
    t.case("bias-f32-nhwc-1x16x3x4-k8-3x3-p1", (1, 16, 3, 4), 8, (3, 3), "bfloat16", layout="NHWC", padding=1, bias=True,
           bias_dtype="float32")
    t.case("bias-strided-1x3x4x4-k6-3x3", (1, 3, 4, 4), 6, (3, 3), bias=True, lay={"bias": {"step": 3}})
    t.case("bias-3d-1x2x3x3x3-k5-2x2x2", (1, 2, 3, 3, 3), 5, (2, 2, 2), bias=True, activation="relu")
    t.case("beta-1x4x5x5-k4-3x3-p1", (1, 4, 5, 5), 4, (3, 3), padding=1, beta=0.5)
    t.case("beta-1-nhwc-1x16x4x4-k8-3x3-p1", (1, 16, 4, 4), 8, (3, 3), "bfloat16", layout="NHWC", padding=1, beta=1.0)
    t.case("beta-strided-1x4x4x4-k4-1x1", (1, 4, 4, 4), 4, (1, 1), beta=2.0, lay={"y": {"gap": 4}})
    t.case("beta-empty-channels", (1, 0, 4, 4), 4, (1, 1), beta=2.0, bias=True)
    t.case("alpha-nhwc-1x8x4x4-k8-3x3-p1", (1, 8, 4, 4), 8, (3, 3), "bfloat16", layout="NHWC", padding=1, alpha=-2.0)
    t.case("alpha-0-1x4x4x4-k4-3x3", (1, 4, 4, 4), 4, (3, 3), alpha=0.0, bias=True)
    for i, activation in enumerate(ACTIVATIONS):
        t.case(f"{activation.replace('_', '-')}-1x8x4x4-k8-1x1", (1, 8, 4, 4), 8, (1, 1), FLOATS[(i + 1) % 4],
               layout=("NCHW", "NHWC")[i % 2], activation=activation, bias=True)


def _types(t):
    for dtype, out in (("float64", "float32"), ("float32", "float16"), ("float32", "bfloat16"), ("float16", "float32"),
                       ("float16", "bfloat16"), ("bfloat16", "float32"), ("bfloat16", "float16"), ("int8", "int8"), ("int8", "float32"),
                       ("int8", "float16"), ("int8", "bfloat16"), (E4M3, "float32"), (E4M3, "float16"), (E4M3, E4M3), (E4M3, E5M2)):
        t.case(f"to-{SHORT[out]}-nhwc-1x16x3x4-k8-3x3-p1", (1, 16, 3, 4), 8, (3, 3), dtype, layout="NHWC", padding=1, out_dtype=out)
    t.case("saturates-1x8x4x4-k4-3x3", (1, 8, 4, 4), 4, (3, 3), "int8", out_dtype="int8", wide_values=True)
    t.case("dequantised-nhwc-1x32x3x3-k8-3x3-p1", (1, 32, 3, 3), 8, (3, 3), "int8", layout="NHWC", padding=1, out_dtype="float32",
           alpha=0.5, bias=True, activation="relu")
    t.case("residual-i32-1x8x4x4-k4-3x3", (1, 8, 4, 4), 4, (3, 3), "int8", residual=True, residual_dtype="int32")
    t.case("e5m2-nhwc-1x32x3x3-k8-1x1", (1, 32, 3, 3), 8, (1, 1), E5M2, layout="NHWC")
    t.case("w-e5m2-nhwc-1x16x3x4-k8-3x3-p1", (1, 16, 3, 4), 8, (3, 3), E4M3, dtype_w=E5M2, layout="NHWC", padding=1, bias=True)
    t.case("w-e4m3-1x6x4x4-k4-3x3", (1, 6, 4, 4), 4, (3, 3), E5M2, dtype_w=E4M3)
    t.case("tf32-nhwc-1x16x4x4-k8-3x3-p1", (1, 16, 4, 4), 8, (3, 3), layout="NHWC", padding=1, math="tf32")
    t.case("tf32-2x8x4x4-k8-3x3", (2, 8, 4, 4), 8, (3, 3), math="tf32")
    t.case("fast-nhwc-1x16x4x4-k8-3x3-p1", (1, 16, 4, 4), 8, (3, 3), layout="NHWC", padding=1, math="fast")
    t.case("fast-1x16x4x4-k8-3x3-p1", (1, 16, 4, 4), 8, (3, 3), "float16", padding=1, math="fast")


def _cases():
    t = Table("conv_fwd")
    shared(t, DTYPES)
    _epilogues(t)
    _types(t)
    return [*t.found, *prologues(), *reductions("conv_fwd")]


CASES = _cases()
LARGE = large(Table("conv_fwd"), DTYPES)
"""Small cases run on a GPU as well."""

BEYOND_INT32 = [Conv("2**31-nhwc-bf16", "conv_fwd", (1025, 8, 512, 513), 8, (3, 3), "bfloat16", layout="NHWC", padding=1),
                Conv("2**31-nchw-i8", "conv_fwd", (1025, 8, 512, 513), 8, (1, 1), "int8", out_dtype="int8"),
                Conv("2**31-depthwise-f16", "conv_fwd", (1025, 8, 512, 513), 8, (3, 3), "float16", padding=1, groups=8)]
"""x and y have more than 2**31 elements."""
check_beyond_int32 = beyond_int32
