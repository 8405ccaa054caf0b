"""Geometries that every direction of a convolution has to get right."""
from ._programs import PROGRAMS

FLOATS = ("float64", "float32", "float16", "bfloat16")
LAST = {"order": (0, 2, 3, 1)}  # channels last in memory, named channels first


def by_dtype(t, dtypes):
    """A ladder of sizes and layouts in each dtype; channels that tensor cores like among them."""
    for dtype in dtypes:
        t.case("2x5x7x6-k7-3x3-p1", (2, 5, 7, 6), 7, (3, 3), dtype, padding=1)
        t.case("nhwc-1x16x5x6-k8-3x3-p1", (1, 16, 5, 6), 8, (3, 3), dtype, layout="NHWC", padding=1)
        t.case("nhwc-2x8x7x7-k16-3x3-s2-p1", (2, 8, 7, 7), 16, (3, 3), dtype, layout="NHWC", stride=2, padding=1)
        t.case("nhwc-2x32x3x4-k16-1x1", (2, 32, 3, 4), 16, (1, 1), dtype, layout="NHWC")
        t.case("nhwc-1x64x2x4-k16-1x1", (1, 64, 2, 4), 16, (1, 1), dtype, layout="NHWC")
        t.case("nhwc-1x64x5-k8-r3-p1", (1, 64, 5), 8, (3,), dtype, layout="NHWC", padding=1)
        t.case("2x16x4x4-k24-1x1", (2, 16, 4, 4), 24, (1, 1), dtype)
        t.case("misaligned-nhwc-1x16x4x4-k8-3x3-p1", (1, 16, 4, 4), 8, (3, 3), dtype, layout="NHWC", padding=1,
               lay={name: {"misaligned": 1} for name in "xwy"})
        t.case("groups2-nhwc-1x16x4x5-k16-3x3-p1", (1, 16, 4, 5), 16, (3, 3), dtype, layout="NHWC", padding=1, groups=2)
        t.case("depthwise-nhwc-2x24x5x5-3x3-p1", (2, 24, 5, 5), 24, (3, 3), dtype, layout="NHWC", padding=1, groups=24)


def dimensions(t):
    """One and three spatial dimensions."""
    t.case("1d-2x6x19-k5-r4", (2, 6, 19), 5, (4,))
    t.case("1d-nhwc-2x8x17-k8-r3-s2-p1", (2, 8, 17), 8, (3,), "bfloat16", layout="NHWC", stride=2, padding=1)
    t.case("1d-causal-depthwise-2x16x13-r4", (2, 16, 13), 16, (4,), "bfloat16", padding=((3, 0),), groups=16)
    t.case("1d-causal-depthwise-nhwc-2x16x13-r4", (2, 16, 13), 16, (4,), "float16", layout="NHWC", padding=(3, 0), groups=16)
    t.case("1d-dilation3-1x4x16-k4-r3", (1, 4, 16), 4, (3,), "float64", dilation=3, padding=2)
    t.case("3d-1x3x4x5x4-k4-2x3x2-p1", (1, 3, 4, 5, 4), 4, (2, 3, 2), padding=1)
    t.case("3d-nhwc-1x8x3x4x3-k4-3x3x3-p1", (1, 8, 3, 4, 3), 4, (3, 3, 3), "bfloat16", layout="NHWC", padding=1)
    t.case("3d-groups2-2x4x3x3x4-k4-s2x1x2", (2, 4, 3, 3, 4), 4, (2, 1, 2), "float16", stride=(2, 1, 2), groups=2, dilation=(1, 2, 1))
    t.case("3d-nhwc-1x16x2x3x3-k16-1x1x1", (1, 16, 2, 3, 3), 16, (1, 1, 1), layout="NHWC")


def groups(t):
    """Groups down to one channel, and multipliers of depthwise ones."""
    t.case("groups2-2x6x5x4-k4-3x3-p1", (2, 6, 5, 4), 4, (3, 3), padding=1, groups=2)
    t.case("groups4-nhwc-1x32x3x3-k32-3x3-p1", (1, 32, 3, 3), 32, (3, 3), "bfloat16", layout="NHWC", padding=1, groups=4)
    t.case("groups8-1x32x4x4-k16-3x3-p1", (1, 32, 4, 4), 16, (3, 3), "float16", padding=1, groups=8)
    t.case("groups3-uneven-1x9x4x4-k6-2x2", (1, 9, 4, 4), 6, (2, 2), groups=3)
    t.case("groups10-nhwc-1x40x6x5-k40-3x3-p1", (1, 40, 6, 5), 40, (3, 3), "float16", layout="NHWC", padding=1, groups=10)
    t.case("groups8-nhwc-1x16x7x6-k16-3x3-s2-p1", (1, 16, 7, 6), 16, (3, 3), "bfloat16", layout="NHWC", stride=2, padding=1, groups=8)
    t.case("groups4-nhwc-1x16x9x5-k16-3x3-d2-p2", (1, 16, 9, 5), 16, (3, 3), "float16", layout="NHWC", dilation=2, padding=2, groups=4)
    t.case("groups2-nhwc-1x32x5x5-k32-5x4-p2", (1, 32, 5, 5), 32, (5, 4), "bfloat16", layout="NHWC", padding=2, groups=2)
    t.case("groups2-nhwc-1x64x3x4-k64-3x3-p1", (1, 64, 3, 4), 64, (3, 3), "float16", layout="NHWC", padding=1, groups=2)
    t.case("groups16-nhwc-1x64x3x5-k64-3x3-s2-p1", (1, 64, 3, 5), 64, (3, 3), "bfloat16", layout="NHWC", stride=2, padding=1, groups=16)
    t.case("groups16-nhwc-2x128x3x4-k128-2x3-p1", (2, 128, 3, 4), 128, (2, 3), "float16", layout="NHWC", padding=1, groups=16)
    t.case("groups32-last-1x64x3x4-k64-3x2", (1, 64, 3, 4), 64, (3, 2), "bfloat16", groups=32, mode="convolution",
           lay={"x": {"order": (0, 2, 3, 1)}, "w": {"order": (0, 2, 3, 1)}, "y": {"order": (0, 2, 3, 1)}})
    t.case("groups4-3d-nhwc-1x16x3x4x3-k16-2x3x3-p1", (1, 16, 3, 4, 3), 16, (2, 3, 3), "bfloat16", layout="NHWC", padding=1, groups=4)
    t.case("groups8-1d-nhwc-2x32x19-k32-r3-p1", (2, 32, 19), 32, (3,), "float16", layout="NHWC", padding=1, groups=8)
    t.case("depthwise-2x12x6x5-3x3-p1", (2, 12, 6, 5), 12, (3, 3), padding=1, groups=12)
    t.case("depthwise-s2-1x12x7x7-3x3-p1", (1, 12, 7, 7), 12, (3, 3), "float16", stride=2, padding=1, groups=12)
    t.case("depthwise-nhwc-s2-1x32x7x6-3x3-p1", (1, 32, 7, 6), 32, (3, 3), "bfloat16", layout="NHWC", stride=2, padding=1, groups=32)
    t.case("depthwise-multiplier2-1x6x5x5-k12-3x3", (1, 6, 5, 5), 12, (3, 3), groups=6)
    t.case("depthwise-multiplier3-nhwc-1x8x4x4-k24-3x3-p1", (1, 8, 4, 4), 24, (3, 3), layout="NHWC", padding=1, groups=8)
    t.case("depthwise-5x5-1x8x7x7-p2", (1, 8, 7, 7), 8, (5, 5), padding=2, groups=8)
    t.case("depthwise-nhwc-5x5-dilation2-1x8x9x7-p4", (1, 8, 9, 7), 8, (5, 5), "bfloat16", layout="NHWC", padding=4, dilation=2, groups=8)
    t.case("depthwise-7x7-1x4x8x8-p3", (1, 4, 8, 8), 4, (7, 7), "float16", padding=3, groups=4)
    t.case("depthwise-one-channel-2x1x6x6-3x3", (2, 1, 6, 6), 1, (3, 3))
    t.case("depthwise-3d-1x6x3x4x4-3x3x3-p1", (1, 6, 3, 4, 4), 6, (3, 3, 3), padding=1, groups=6)
    t.case("depthwise-3d-nhwc-1x8x3x4x3-3x3x2-s2x1x1-p1", (1, 8, 3, 4, 3), 8, (3, 3, 2), "float16", layout="NHWC", stride=(2, 1, 1),
           padding=1, groups=8)
    t.case("depthwise-nhwc-1x296x2x4-1x3-p0x1", (1, 296, 2, 4), 296, (1, 3), "float16", layout="NHWC", padding=(0, 1), groups=296)
    t.case("depthwise-nhwc-7x7-1x16x9x8-p3", (1, 16, 9, 8), 16, (7, 7), "bfloat16", layout="NHWC", padding=3, groups=16)
    t.case("depthwise-wide-1x2x6x32-3x3-p1", (1, 2, 6, 32), 2, (3, 3), "float16", padding=1, groups=2)
    t.case("depthwise-wide-1x2x6x16-5x5-p2", (1, 2, 6, 16), 2, (5, 5), padding=2, groups=2)
    t.case("depthwise-wide-s2-1x2x7x32-3x3-p1", (1, 2, 7, 32), 2, (3, 3), "bfloat16", stride=2, padding=1, groups=2)
    t.case("depthwise-dilation6-1x2x14x16-3x3-p6", (1, 2, 14, 16), 2, (3, 3), "float16", padding=6, dilation=6, groups=2)
    t.case("1d-causal-depthwise-1x3x48-r4", (1, 3, 48), 3, (4,), "float16", padding=(3, 0), groups=3)


def windows(t):
    """Strides, paddings, dilations, filters of every size."""
    t.case("5x5-1x4x7x7-k4-p2", (1, 4, 7, 7), 4, (5, 5), padding=2)
    t.case("5x5-nhwc-2x5x9x6-k7-p2", (2, 5, 9, 6), 7, (5, 5), "bfloat16", layout="NHWC", padding=2)
    t.case("5x5-nhwc-1x8x6x5-k9", (1, 8, 6, 5), 9, (5, 5), layout="NHWC")
    for dtype in ("float32", "float16"):
        t.case("5x5-1x3x3x4-k4-p2", (1, 3, 3, 4), 4, (5, 5), dtype, padding=2)
    t.case("5x5-nhwc-1x4x4x3-k3-p2", (1, 4, 4, 3), 3, (5, 5), "bfloat16", layout="NHWC", padding=2)
    t.case("flipped-5x5-nhwc-1x3x3x6-k4-p1x2", (1, 3, 3, 6), 4, (5, 5), layout="NHWC", padding=(1, 2), mode="convolution")
    t.case("flipped-5x5-1x6x8x9-k5-p2x1", (1, 6, 8, 9), 5, (5, 5), "float16", padding=(2, 1), mode="convolution")
    t.case("5x5-nhwc-1x8x6x6-k8-s2-p2", (1, 8, 6, 6), 8, (5, 5), "bfloat16", layout="NHWC", stride=2, padding=2)
    t.case("first-layer-7x7-1x3x11x9-k8-s2-p3", (1, 3, 11, 9), 8, (7, 7), stride=2, padding=3)
    t.case("first-layer-nhwc-7x7-1x3x9x10-k8-s2-p3", (1, 3, 9, 10), 8, (7, 7), "bfloat16", layout="NHWC", stride=2, padding=3)
    t.case("1x1-s2-nhwc-2x16x5x5-k8", (2, 16, 5, 5), 8, (1, 1), "bfloat16", layout="NHWC", stride=2)
    t.case("1x1-p1-1x8x4x3-k8", (1, 8, 4, 3), 8, (1, 1), padding=1)
    t.case("3x1-1x4x7x6-k6", (1, 4, 7, 6), 6, (3, 1))
    t.case("1x7-nhwc-1x8x3x9-k8-p0x3", (1, 8, 3, 9), 8, (1, 7), "float16", layout="NHWC", padding=(0, 3))
    t.case("2x2-even-1x5x6x7-k3-p1", (1, 5, 6, 7), 3, (2, 2), padding=1)
    t.case("4x4-s2-p1-1x8x6x6-k4", (1, 8, 6, 6), 4, (4, 4), stride=2, padding=1)
    t.case("stride-over-kernel-1x4x9x8-k5-2x2-s3", (1, 4, 9, 8), 5, (2, 2), stride=3)
    t.case("stride-uneven-1x4x9x8-k5-3x3-s3x1", (1, 4, 9, 8), 5, (3, 3), "float16", stride=(3, 1), padding=(1, 0))
    t.case("stride-leaves-rest-1x4x8x9-k5-3x3-s4", (1, 4, 8, 9), 5, (3, 3), stride=4, padding=1)
    t.case("dilation2-1x4x9x9-k4-3x3-p2", (1, 4, 9, 9), 4, (3, 3), dilation=2, padding=2)
    t.case("dilation2-nhwc-1x16x6x5-k8-3x3-p2", (1, 16, 6, 5), 8, (3, 3), "bfloat16", layout="NHWC", dilation=2, padding=2)
    t.case("dilation-uneven-s2-1x4x9x11-k4-2x3", (1, 4, 9, 11), 4, (2, 3), dilation=(3, 2), stride=2)
    t.case("padding-pairs-1x4x5x6-k4-3x3", (1, 4, 5, 6), 4, (3, 3), padding=((1, 0), (0, 2)))
    t.case("padding-pairs-nhwc-1x8x5x5-k8-3x3-s2", (1, 8, 5, 5), 8, (3, 3), "bfloat16", layout="NHWC", stride=2, padding=((0, 1), (2, 0)))
    t.case("padding-over-kernel-1x4x3x3-k4-3x3-p4", (1, 4, 3, 3), 4, (3, 3), padding=4)
    t.case("padding-makes-it-fit-1x6x2x1-k4-3x3-p1", (1, 6, 2, 1), 4, (3, 3), "bfloat16", padding=1)
    t.case("filter-is-image-2x6x4x5-k7-4x5", (2, 6, 4, 5), 7, (4, 5))
    t.case("flipped-1x4x6x5-k4-3x2-p1", (1, 4, 6, 5), 4, (3, 2), padding=1, mode="convolution")
    t.case("flipped-nhwc-1x8x5x5-k8-3x3-s2-p1", (1, 8, 5, 5), 8, (3, 3), "bfloat16", layout="NHWC", stride=2, padding=1, mode="convolution")
    t.case("flipped-1d-depthwise-1x6x12-r4", (1, 6, 12), 6, (4,), padding=((3, 1),), groups=6, mode="convolution")
    t.case("flipped-3d-1x2x4x4x3-k3-2x3x2", (1, 2, 4, 4, 3), 3, (2, 3, 2), "float64", padding=(1, 0, 1), mode="convolution")


def pointwise(t):
    """Filters of one tap: pixels that merge into one dimension and pixels that do not, groups as a batch."""
    t.case("1x1-s2-2x8x6x5-k8", (2, 8, 6, 5), 8, (1, 1), "float16", stride=2)
    t.case("1x1-s2-nhwc-2x8x6x4-k16", (2, 8, 6, 4), 16, (1, 1), "bfloat16", layout="NHWC", stride=2)
    t.case("1x1-s2-2x8x4x8-k8", (2, 8, 4, 8), 8, (1, 1), "bfloat16", stride=2)  # positions and pixels in fours
    t.case("1x1-s2-nhwc-2x8x4x8-k16", (2, 8, 4, 8), 16, (1, 1), "float16", layout="NHWC", stride=2)
    t.case("1x1x1-s2x1x2-nhwc-1x8x4x3x5-k8", (1, 8, 4, 3, 5), 8, (1, 1, 1), layout="NHWC", stride=(2, 1, 2))
    t.case("1x1-groups2-2x8x3x4-k12", (2, 8, 3, 4), 12, (1, 1), groups=2)
    t.case("1x1-groups3-nhwc-2x24x3x4-k24", (2, 24, 3, 4), 24, (1, 1), "bfloat16", layout="NHWC", groups=3)
    t.case("1x1-last-2x8x4x3-k16", (2, 8, 4, 3), 16, (1, 1), "float16", lay={name: LAST for name in "xy"})
    t.case("1x1-one-pixel-5x8x1x1-k6", (5, 8, 1, 1), 6, (1, 1))


def tensor_cores(t):
    """Channels and pixels that fill a tile or a step of 128 bytes and a bit, groups of whole steps, all classes of pixels of strides."""
    t.case("tile-nhwc-1x72x3x3-k24-3x3-p1", (1, 72, 3, 3), 24, (3, 3), "bfloat16", layout="NHWC", padding=1)
    t.case("tile-nhwc-1x24x4x3-k72-3x3-p1", (1, 24, 4, 3), 72, (3, 3), "float16", layout="NHWC", padding=1)
    t.case("tile-nhwc-1x8x12x13-k8-2x2", (1, 8, 12, 13), 8, (2, 2), "bfloat16", layout="NHWC")
    t.case("tile-nhwc-3x8x7x7-k136-1x1", (3, 8, 7, 7), 136, (1, 1), "bfloat16", layout="NHWC")
    t.case("tile-3x16x7x9-k16-2x1", (3, 16, 7, 9), 16, (2, 1), "float16")
    t.case("tile-groups2-nhwc-1x128x3x3-k48-2x2", (1, 128, 3, 3), 48, (2, 2), "bfloat16", layout="NHWC", groups=2)
    t.case("tile-groups2-nhwc-1x16x4x4-k128-2x2-s2", (1, 16, 4, 4), 128, (2, 2), "float16", layout="NHWC", stride=2, groups=2)
    t.case("tile-groups2-nhwc-1x64x3x3-k64-2x2", (1, 64, 3, 3), 64, (2, 2), layout="NHWC", groups=2, math="tf32")
    t.case("tile-nhwc-2x8x9x10-k8-3x3-s2-d3-p3", (2, 8, 9, 10), 8, (3, 3), "bfloat16", layout="NHWC", stride=2, dilation=3, padding=3)
    t.case("tile-nhwc-1x8x10x9-k16-2x3-s2x4-d2-p1", (1, 8, 10, 9), 16, (2, 3), "float16", layout="NHWC", stride=(2, 4), dilation=2,
           padding=1)
    t.case("tile-flipped-nhwc-1x8x8x7-k8-3x2-s3-d2-p1", (1, 8, 8, 7), 8, (3, 2), "bfloat16", layout="NHWC", stride=3, dilation=2,
           padding=1, mode="convolution")
    t.case("tile-tf32-nhwc-1x8x6x6-k36-3x3-s2-p1", (1, 8, 6, 6), 36, (3, 3), layout="NHWC", stride=2, padding=1, math="tf32")
    t.case("tile-3d-nhwc-1x8x4x5x4-k8-2x3x2-s2-p1", (1, 8, 4, 5, 4), 8, (2, 3, 2), "bfloat16", layout="NHWC", stride=2, padding=1)
    t.case("tile-1d-nhwc-1x8x40-k8-r3-d12-p12", (1, 8, 40), 8, (3,), "float16", layout="NHWC", dilation=12, padding=12)
    t.case("tile-beta-nhwc-1x8x6x7-k8-3x3-s2-p1", (1, 8, 6, 7), 8, (3, 3), "bfloat16", layout="NHWC", stride=2, padding=1, beta=2.0)
    t.case("tile-beta-gaps-nhwc-2x16x5x5-k24-3x3", (2, 16, 5, 5), 24, (3, 3), "bfloat16", layout="NHWC", beta=-1.0,
           lay={name: {"gap": 8} for name in "xy"})


def few_channels(t):
    """One to four channels: windows that begin at even and odd elements, rows that end inside a tile, rows longer than one."""
    t.case("few-nhwc-2x3x9x24-k40-3x3-p1", (2, 3, 9, 24), 40, (3, 3), "bfloat16", layout="NHWC", padding=1)
    t.case("few-nhwc-2x3x11x20-k33-7x7-s2-p3", (2, 3, 11, 20), 33, (7, 7), "float16", layout="NHWC", stride=2, padding=3)
    t.case("few-nhwc-1x3x12x24-k64-7x7-s2-p3", (1, 3, 12, 24), 64, (7, 7), "bfloat16", layout="NHWC", stride=2, padding=3)
    t.case("few-1x1x10x30-k8-3x3-p1", (1, 1, 10, 30), 8, (3, 3), "bfloat16", padding=1)
    t.case("few-1x4x9x12-k65-3x3-d2x1-p1", (1, 4, 9, 12), 65, (3, 3), "float16", padding=1, dilation=(2, 1))
    t.case("few-1d-2x2x150-k8-r5-causal", (2, 2, 150), 8, (5,), "float16", padding=(4, 0))
    t.case("few-1d-nhwc-1x2x500-k16-r3-p1", (1, 2, 500), 16, (3,), "bfloat16", layout="NHWC", padding=1)
    t.case("few-flipped-nhwc-1x3x12x16-k16-4x4-s4", (1, 3, 12, 16), 16, (4, 4), "bfloat16", layout="NHWC", stride=4, mode="convolution")
    t.case("few-nhwc-1x3x9x17-k8-3x3-s2x3-d2x3", (1, 3, 9, 17), 8, (3, 3), "float16", layout="NHWC", stride=(2, 3), dilation=(2, 3),
           padding=((2, 0), (3, 1)))


def edges(t):
    """Channels and pixels round the sizes of warps and tiles; nothing to sum, nothing to write."""
    for c, k in ((1, 1), (1, 33), (31, 2), (33, 5), (3, 65), (65, 3), (13, 17)):
        t.case(f"edge-1x{c}x3x3-k{k}-2x2", (1, c, 3, 3), k, (2, 2))
    t.case("edge-nhwc-1x33x2x3-k31-1x1", (1, 33, 2, 3), 31, (1, 1), "bfloat16", layout="NHWC")
    t.case("edge-nhwc-1x8x1x129-k4-1x3", (1, 8, 1, 129), 4, (1, 3), "float16", layout="NHWC")
    t.case("edge-1x3x17x14-k2-3x3-p1", (1, 3, 17, 14), 2, (3, 3), padding=1)
    t.case("edge-nhwc-2x4x9x6-k5-3x3-p1", (2, 4, 9, 6), 5, (3, 3), layout="NHWC", padding=1)
    t.case("edge-nhwc-1x9x3x4-k70-3x3-p1", (1, 9, 3, 4), 70, (3, 3), layout="NHWC", padding=1)
    t.case("edge-31x2x3x3-k3-3x3", (31, 2, 3, 3), 3, (3, 3))
    t.case("edge-1x2x31x3-k3-3x3-p1", (1, 2, 31, 3), 3, (3, 3), padding=1)
    t.case("empty-batch", (0, 4, 5, 5), 3, (3, 3))
    t.case("empty-batch-nhwc", (0, 8, 5, 5), 8, (3, 3), "bfloat16", layout="NHWC")
    t.case("empty-channels", (2, 0, 5, 5), 3, (3, 3))
    t.case("empty-filters", (2, 4, 5, 5), 0, (3, 3))
    t.case("empty-image-padded", (2, 4, 0, 5), 3, (2, 2), padding=1)


def strided(t):
    """Arrays that are not packed in the order of their layout."""
    t.case("strided-last-2x8x5x5-k8-3x3-p1", (2, 8, 5, 5), 8, (3, 3), "bfloat16", padding=1, lay={name: LAST for name in "xwy"})
    t.case("strided-x-last-1x4x5x6-k4-3x3", (1, 4, 5, 6), 4, (3, 3), lay={"x": LAST})
    for name in "xy":  # one with channels last, the other with channels first
        t.case(f"strided-{name}-alone-last-1x16x4x8-k16-3x3-p1", (1, 16, 4, 8), 16, (3, 3), "float16", padding=1, lay={name: LAST})
        t.case(f"strided-{name}-alone-last-1x16x4x8-k16-1x1", (1, 16, 4, 8), 16, (1, 1), "bfloat16", lay={name: LAST})
        t.case(f"strided-{name}-alone-last-groups4-1x16x4x8-k16-3x3-p1", (1, 16, 4, 8), 16, (3, 3), "bfloat16", padding=1, groups=4,
               lay={name: LAST})
        t.case(f"strided-{name}-alone-last-depthwise-1x16x4x8-3x3-p1", (1, 16, 4, 8), 16, (3, 3), "float16", padding=1, groups=16,
               lay={name: LAST})
    t.case("strided-nhwc-first-1x8x4x5-k8-3x3-p1", (1, 8, 4, 5), 8, (3, 3), "float16", layout="NHWC", padding=1,
           lay={name: {"order": (0, 3, 1, 2)} for name in "xwy"})
    t.case("strided-gaps-1x4x5x6-k4-3x3-p1", (1, 4, 5, 6), 4, (3, 3), padding=1, lay={"x": {"gap": 3}, "w": {"gap": 1}, "y": {"gap": 2}})
    t.case("strided-nhwc-gaps-1x16x4x4-k8-3x3-p1", (1, 16, 4, 4), 8, (3, 3), "bfloat16", layout="NHWC", padding=1,
           lay={"x": {"gap": 8}, "y": {"gap": 8}})
    t.case("strided-steps-1x4x5x6-k4-2x2", (1, 4, 5, 6), 4, (2, 2), "float16", lay={name: {"step": 2} for name in "xwy"})
    t.case("strided-batch-slowest-last-3x4x4x4-k4-3x3", (3, 4, 4, 4), 4, (3, 3), lay={name: {"order": (1, 2, 3, 0)} for name in "xy"})
    t.case("negative-strides-1x4x5x5-k4-3x3-p1", (1, 4, 5, 5), 4, (3, 3), padding=1,
           lay={"x": {"flip": (2, 3)}, "w": {"flip": (0,)}, "y": {"flip": (1,)}})
    t.case("misaligned-x-1x4x5x5-k4-3x3", (1, 4, 5, 5), 4, (3, 3), lay={"x": {"misaligned": 3}})
    t.case("misaligned-w-nhwc-1x16x3x3-k8-1x1", (1, 16, 3, 3), 8, (1, 1), "float16", layout="NHWC", lay={"w": {"misaligned": 5}})
    t.case("misaligned-y-1x4x5x5-k4-3x3", (1, 4, 5, 5), 4, (3, 3), "bfloat16", lay={"y": {"misaligned": 1}})


def shared(t, dtypes=FLOATS):
    """All of these."""
    by_dtype(t, dtypes)
    for part in (dimensions, groups, windows, pointwise, tensor_cores, few_channels, edges, strided, programs):
        part(t)


def programs(t):
    """Pointwise functions in the kernel of the convolution."""
    for program in PROGRAMS:
        t.case(f"program-{program}-nhwc-2x16x5x6-k24-3x3-p1", (2, 16, 5, 6), 24, (3, 3), "bfloat16", layout="NHWC", padding=1,
               program=program)
        t.case(f"program-{program}-2x6x5x4-k8-3x3-s2-p1", (2, 6, 5, 4), 8, (3, 3), stride=2, padding=1, program=program)
        t.case(f"program-{program}-nhwc-1x32x4x4-k16-1x1", (1, 32, 4, 4), 16, (1, 1), "float16", layout="NHWC", program=program)
    if t.op != "conv_bwd_filter":
        t.case("program-chain-groups2-nhwc-1x128x2x3-k128-3x2-p1", (1, 128, 2, 3), 128, (3, 2), "float16", layout="NHWC", padding=1,
               groups=2, program="chain")
        t.case("program-chain-odd-nhwc-2x16x5x4-k10-3x3-p1", (2, 16, 5, 4), 10, (3, 3), "bfloat16", layout="NHWC", padding=1,
               program="chain")
    if t.op == "conv_fwd":
        t.case("program-chain-float8-nhwc-2x16x5x4-k24-3x3-p1", (2, 16, 5, 4), 24, (3, 3), "float8_e4m3fn", layout="NHWC", padding=1,
               out_dtype="float8_e4m3fn", program="chain")
    t.case("program-chain-3d-1x3x4x5x4-k4-2x3x2-p1", (1, 3, 4, 5, 4), 4, (2, 3, 2), "float64", padding=1, program="chain")
    t.case("program-two-inputs-1d-2x6x19-k5-r4", (2, 6, 19), 5, (4,), program="two-inputs", beta=1.0)
    t.case("program-two-inputs-groups2-1x8x3x5-k12-1x1", (1, 8, 3, 5), 12, (1, 1), groups=2, program="two-inputs")


def plain_epilogues(t):
    """alpha, beta, other output types and reduced precision, of the backward functions."""
    t.case("epilogue-alpha-beta-1x4x5x5-k6-3x3", (1, 4, 5, 5), 6, (3, 3), alpha=2.0, beta=-3.0)
    t.case("beta-1-nhwc-1x16x4x4-k8-3x3-p1", (1, 16, 4, 4), 8, (3, 3), "bfloat16", layout="NHWC", padding=1, beta=1.0)
    t.case("beta-1-f64-1x4x4x4-k4-2x2", (1, 4, 4, 4), 4, (2, 2), "float64", beta=1.0)
    t.case("beta-strided-1x4x4x4-k4-2x2", (1, 4, 4, 4), 4, (2, 2), beta=2.0, lay={t.output: {"gap": 4}})
    t.case("5x5-beta-nhwc-2x5x7x8-k6-p2", (2, 5, 7, 8), 6, (5, 5), "bfloat16", layout="NHWC", padding=2, alpha=2.0, beta=-1.0,
           out_dtype="float32")
    t.case("beta-groups2-nhwc-1x16x3x3-k16-1x1", (1, 16, 3, 3), 16, (1, 1), "float16", layout="NHWC", groups=2, beta=2.0)
    t.case("beta-depthwise-nhwc-1x16x4x4-3x3-p1", (1, 16, 4, 4), 16, (3, 3), "bfloat16", layout="NHWC", padding=1, groups=16, beta=1.0)
    t.case("beta-empty-filters", (2, 4, 5, 5), 0, (3, 3), beta=2.0)
    t.case("alpha-nhwc-1x8x4x4-k8-3x3-p1", (1, 8, 4, 4), 8, (3, 3), "bfloat16", layout="NHWC", padding=1, alpha=-2.0)
    t.case("alpha-0-1x4x4x4-k4-3x3-beta", (1, 4, 4, 4), 4, (3, 3), alpha=0.0, beta=2.0)
    for dtype, out in (("float64", "float32"), ("float32", "float16"), ("bfloat16", "float32"), ("float16", "float32")):
        t.case(f"to-{out}-nhwc-1x16x3x4-k8-3x3-p1", (1, 16, 3, 4), 8, (3, 3), dtype, layout="NHWC", padding=1, out_dtype=out)
    t.case("tf32-nhwc-1x16x4x4-k8-3x3-p1", (1, 16, 4, 4), 8, (3, 3), layout="NHWC", padding=1, math="tf32")
    t.case("tf32-2x8x4x4-k8-3x3", (2, 8, 4, 4), 8, (3, 3), math="tf32")
    t.case("fast-nhwc-1x16x4x4-k8-3x3-p1", (1, 16, 4, 4), 8, (3, 3), layout="NHWC", padding=1, math="fast")
    t.case("fast-1x16x4x4-k8-3x3-p1", (1, 16, 4, 4), 8, (3, 3), "float16", padding=1, math="fast")


def large(t, dtypes=FLOATS):
    """For a GPU: several tiles in every direction, tails, many waves."""
    for dtype in dtypes:
        last = "NHWC"
        t.case("large-nhwc-4x64x29x31-k72-3x3-p1", (4, 64, 29, 31), 72, (3, 3), dtype, layout=last, padding=1)
        t.case("large-nhwc-8x128x14x14-k256-3x3-p1", (8, 128, 14, 14), 256, (3, 3), dtype, layout=last, padding=1)
        t.case("large-nhwc-4x64x28x28-k128-3x3-s2-p1", (4, 64, 28, 28), 128, (3, 3), dtype, layout=last, stride=2, padding=1)
        t.case("large-nhwc-4x256x13x17-k128-1x1", (4, 256, 13, 17), 128, (1, 1), dtype, layout=last)
        t.case("large-nhwc-4x128x14x14-k64-1x1-s2", (4, 128, 14, 14), 64, (1, 1), dtype, layout=last, stride=2)
        t.case("large-nhwc-2x64x33x20-k64-3x3-d2-p2", (2, 64, 33, 20), 64, (3, 3), dtype, layout=last, dilation=2, padding=2)
        t.case("large-nhwc-4x3x65x63-k64-7x7-s2-p3", (4, 3, 65, 63), 64, (7, 7), dtype, layout=last, stride=2, padding=3)
        t.case("large-3x37x31x33-k53-3x3-p1", (3, 37, 31, 33), 53, (3, 3), dtype, padding=1)
        t.case("large-3x37x19x21-k53-5x5-p2", (3, 37, 19, 21), 53, (5, 5), dtype, padding=2)
        t.case("large-8x64x14x14-k128-1x1", (8, 64, 14, 14), 128, (1, 1), dtype)
        t.case("large-groups32-nhwc-4x128x28x28-k128-3x3-p1", (4, 128, 28, 28), 128, (3, 3), dtype, layout=last, padding=1, groups=32)
        t.case("large-depthwise-nhwc-4x144x29x27-3x3-p1", (4, 144, 29, 27), 144, (3, 3), dtype, layout=last, padding=1, groups=144)
        t.case("large-depthwise-4x144x29x27-3x3-s2-p1", (4, 144, 29, 27), 144, (3, 3), dtype, stride=2, padding=1, groups=144)
        t.case("large-3d-nhwc-2x32x9x14x15-k64-3x3x3-p1", (2, 32, 9, 14, 15), 64, (3, 3, 3), dtype, layout=last, padding=1)
        t.case("large-1d-nhwc-4x64x1001-k96-r3-p1", (4, 64, 1001), 96, (3,), dtype, layout=last, padding=1)
        t.case("large-1d-causal-depthwise-2x256x1025-r4", (2, 256, 1025), 256, (4,), dtype, padding=(3, 0), groups=256)
        t.case("large-transposed-nhwc-4x64x56x56-k128-4x4-s2-p1", (4, 64, 56, 56), 128, (4, 4), dtype, layout=last, stride=2, padding=1)
        t.case("large-batch-64x64x7x7-k64-3x3-p1-nhwc", (64, 64, 7, 7), 64, (3, 3), dtype, layout=last, padding=1)
    if "float16" in dtypes:  # rows of zeros, which TMA brings at once, while many blocks keep shared memory busy
        t.case("large-depthwise-nhwc-64x240x28x28-5x5-p2", (64, 240, 28, 28), 240, (5, 5), "float16", layout=last, padding=2, groups=240)
        t.case("large-depthwise-nhwc-64x768x7x7-7x7-p3", (64, 768, 7, 7), 768, (7, 7), "float16", layout=last, padding=3, groups=768)
    return t.found
