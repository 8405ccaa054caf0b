"""Cases of conv_bwd_filter: ``dw = alpha * correlation(x, dy) + beta * out``."""
from ._conv import Conv, Table, beyond_int32
from ._conv_prologues import prologues_of_filters
from ._conv_tables import FLOATS, LAST, large, plain_epilogues, shared


def _sums(t):
    """Long sums, which kernels split."""
    for dtype in FLOATS:
        t.case("long-nhwc-2x8x16x15-k8-1x1", (2, 8, 16, 15), 8, (1, 1), dtype, layout="NHWC")
        t.case("long-4x2x13x16-k3-3x3-p1", (4, 2, 13, 16), 3, (3, 3), dtype, padding=1)
    t.case("long-depthwise-nhwc-2x16x15x14-3x3-p1", (2, 16, 15, 14), 16, (3, 3), "bfloat16", layout="NHWC", padding=1, groups=16)
    t.case("long-beta-nhwc-2x8x16x15-k8-1x1", (2, 8, 16, 15), 8, (1, 1), "bfloat16", layout="NHWC", out_dtype="float32", beta=1.0)
    t.case("batch-33x4x3x3-k4-3x3", (33, 4, 3, 3), 4, (3, 3))
    t.case("empty-batch-beta", (0, 4, 5, 5), 3, (3, 3), beta=2.0)


def _tiles(t):
    """Edges of tiles along filters, taps and channels, ranges of pixels, and filters that are no matrix."""
    t.case("tiles-beta-nhwc-2x8x10x10-k72-3x1-p1x0", (2, 8, 10, 10), 72, (3, 1), "bfloat16", layout="NHWC", padding=(1, 0), beta=1.0)
    t.case("tiles-nhwc-1x24x14x15-k8-1x3-p0x1", (1, 24, 14, 15), 8, (1, 3), "float16", layout="NHWC", padding=(0, 1))
    t.case("tiles-flipped-3d-groups2-nhwc-1x32x3x4x5-k16-2x1x2", (1, 32, 3, 4, 5), 16, (2, 1, 2), "bfloat16", layout="NHWC",
           padding=(1, 0, 1), dilation=(1, 1, 2), groups=2, mode="convolution")
    t.case("strided-w-nhwc-1x24x6x7-k8-3x3-s2-p1", (1, 24, 6, 7), 8, (3, 3), "bfloat16", layout="NHWC", stride=2, padding=1,
           lay={"w": {"gap": 3}})
    t.case("strided-w-last-1x16x6x7-k8-3x3", (1, 16, 6, 7), 8, (3, 3), "float16", lay={name: LAST for name in "xy"})


def _slabs(t):
    """64 channels and taps along w that share pixels: rows of the filter in several tiles, dilation, ranges, groups."""
    t.case("slabs-nhwc-2x64x5x6-k16-3x3-p1", (2, 64, 5, 6), 16, (3, 3), "bfloat16", layout="NHWC", padding=1)
    t.case("slabs-ranges-nhwc-4x64x8x7-k8-1x3-p0x1", (4, 64, 8, 7), 8, (1, 3), "bfloat16", layout="NHWC", padding=(0, 1))
    t.case("slabs-3d-groups2-nhwc-1x128x3x4x5-k16-2x1x3-d1x1x2", (1, 128, 3, 4, 5), 16, (2, 1, 3), "float16", layout="NHWC",
           padding=(1, 0, 2), dilation=(1, 1, 2), groups=2, beta=2.0)
    t.case("slabs-strided-w-nhwc-1x64x4x5-k8-4x2", (1, 64, 4, 5), 8, (4, 2), "float16", layout="NHWC", padding=(1, 0),
           lay={"w": {"gap": 1}})


def _products(t):
    """Filters of one tap from several images with their channels first."""
    t.case("images-alpha-beta-5x6x3x4-k7-1x1", (5, 6, 3, 4), 7, (1, 1), alpha=2.0, beta=-1.0)
    t.case("images-groups2-3x8x4x4-k12-1x1", (3, 8, 4, 4), 12, (1, 1), "bfloat16", groups=2, out_dtype="float32", beta=1.0)
    t.case("images-f64-2x5x3x3-k3-1x1", (2, 5, 3, 3), 3, (1, 1), "float64")
    t.case("images-strided-w-2x4x3x3-k4-1x1", (2, 4, 3, 3), 4, (1, 1), "float16", lay={"w": {"order": (1, 0, 2, 3), "gap": 1}})


def _grouped(t):
    """Groups of few channels: rows and columns of tiles, parts of large filters, steps between pixels that are read, slices of channels."""
    t.case("groups2-tiles-nhwc-1x8x9x61-k8-3x3-p1", (1, 8, 9, 61), 8, (3, 3), "float16", layout="NHWC", padding=1, groups=2)
    t.case("groups18-nhwc-1x72x3x4-k72-2x3-p0x1", (1, 72, 3, 4), 72, (2, 3), "bfloat16", layout="NHWC", padding=(0, 1), groups=18, beta=1.0)
    t.case("groups2-3d-nhwc-2x32x3x4x4-k32-2x2x3-s2-d2-p2", (2, 32, 3, 4, 4), 32, (2, 2, 3), "float16", layout="NHWC", stride=2, dilation=2,
           padding=2, groups=2, mode="convolution")
    t.case("groups4-1d-nhwc-1x32x11-k32-r61-p30", (1, 32, 11), 32, (61,), "bfloat16", layout="NHWC", padding=30, groups=4)
    t.case("groups1-1d-nhwc-1x16x12-k16-r17-p8", (1, 16, 12), 16, (17,), "float16", layout="NHWC", padding=8)
    t.case("groups4-nhwc-1x16x2x4-k16-1x3-d1x400-p0x400", (1, 16, 2, 4), 16, (1, 3), "bfloat16", layout="NHWC", dilation=(1, 400),
           padding=(0, 400), groups=4)
    t.case("groups2-strided-w-last-1x16x6x5-k16-3x2-s1x3", (1, 16, 6, 5), 16, (3, 2), "float16", stride=(1, 3), padding=1, groups=2,
           out_dtype="float32", alpha=2.0, lay={name: LAST for name in "xy"})


def _depthwise(t):
    """Gradients of depthwise filters in another float than the image's."""
    for dtype, out in (("bfloat16", "float32"), ("float16", "float32"), ("float16", "bfloat16"), ("float32", "float16"),
                       ("float64", "float32")):
        t.case(f"depthwise-to-{out}-nhwc-1x16x6x5-3x3-p1", (1, 16, 6, 5), 16, (3, 3), dtype, layout="NHWC", padding=1, groups=16,
               out_dtype=out)
    t.case("depthwise-to-float32-1x3x6x16-5x5-p2", (1, 3, 6, 16), 3, (5, 5), "bfloat16", padding=2, groups=3, out_dtype="float32")
    t.case("depthwise-to-float32-beta-nhwc-1x8x9x8-7x7-p3", (1, 8, 9, 8), 8, (7, 7), "bfloat16", layout="NHWC", padding=3, groups=8,
           out_dtype="float32", alpha=2.0, beta=1.0)
    t.case("depthwise-to-float32-strided-w-last-2x8x5x6-3x3", (2, 8, 5, 6), 8, (3, 3), "float16", groups=8, out_dtype="float32",
           lay={name: LAST for name in "xwy"})


def _cases():
    t = Table("conv_bwd_filter")
    shared(t)
    plain_epilogues(t)
    _sums(t)
    _tiles(t)
    _slabs(t)
    _products(t)
    _grouped(t)
    _depthwise(t)
    return [*t.found, *prologues_of_filters()]


CASES = _cases()
LARGE = large(Table("conv_bwd_filter"))
BEYOND_INT32 = [Conv("2**31-nhwc-bf16", "conv_bwd_filter", (1025, 8, 512, 513), 8, (3, 3), "bfloat16", layout="NHWC", padding=1,
                     out_dtype="float32")]
"""x and y have more than 2**31 elements."""
check_beyond_int32 = beyond_int32
