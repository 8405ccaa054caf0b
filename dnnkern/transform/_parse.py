"""Moves, samples and conversions in words, for the command line: ``64x256x56x56 f16 NCHW:NHWC``, ``64x64x56x56 f16 3x3 s1 p1 nhwc``."""
import re

from ..host.words import either, integers_word, like, matching, new_words, of_images, terms
from ..sketch import problem
from .blocks._problem import BLOCK_SCALES, DEQUANTIZE
from .layout._blocks_problem import BLOCKS
from .sample._grid_problem import AFFINES, SAMPLES
from .sample._resample_problem import MODES, RESAMPLES


def _order_word(text):
    """Axes written 0,2,3,1, or two layouts written NCHW:NHWC."""
    if re.fullmatch("[A-Za-z]+:[A-Za-z]+", text):
        return dict(zip(("source", "target"), text.split(":")))
    return {"axes": integers_word(matching(r"\d+(,\d+)*", text, "a list of axes such as 0,2,3,1, or two layouts such as NCHW:NHWC"))}


def _slices_word(text):
    """Slices as in Python, one per dimension, written ::2,3:,1:-1."""
    matching(r"(-?\d*:-?\d*(:-?\d*)?)(,-?\d*:-?\d*(:-?\d*)?)*", text, "a list of slices such as :,3:,1:-1,::2")
    slices = [(*(int(v) if v not in ("", "-") else None for v in word.split(":")), None)[:3] for word in text.split(",")]
    return dict(zip(("starts", "stops", "steps"), zip(*slices)))


def _pads_word(text):
    """((before, after), ...) written 0,1,2:3."""
    borders = matching(r"\d+(:\d+)?(,\d+(:\d+)?)*", text, "a list of borders such as 0,0,1,2:3").split(",")
    return tuple((parts * 2)[:2] for parts in (tuple(map(int, word.split(":"))) for word in borders))


words, FAMILY, SMALL, parse_problem = new_words(
    order=_order_word, slices=_slices_word, pads=_pads_word, windows=terms(windows=True),
    resampling=terms(corners=("align_corners", True), antialias=("antialias", True), **{mode: ("mode", mode) for mode in MODES}))
words("transpose", small=("33x17x5 f32 2,0,1", "2x24x8x16 bf16 NCHW:NHWC", "3x16x16x3 i8 NHWC:NCHW", "4x6x8x16 f64 0,2,1,3"))(
    lambda op, shape, dtype, order: problem(op if "axes" in order else "convert_layout", x=(shape, dtype), **order))
words("cast", small=("1001 f32 bf16", "7x33 bf16 e4m3 --scale 2", "513 f64 f16", "100 i32 i8"))(
    lambda op, shape, dtype, to, *, scale=1.0: problem(op, x=(shape, dtype), dtype=to, scale=scale))
words("strided_slice", small=("9x40x33 f16 1:8,::2,3:30", "5x77 f32 :,::-1", "64x48 i8 8:56,16:"))(
    lambda op, shape, dtype, slices: problem(op, x=(shape, dtype), **slices))
words("concat", small=("3x5x16,3x9x16 f32 1", "7x33,7x1,7x40 bf16 1", "2x8x6x6,2x3x6x6 i8 1"))(
    lambda op, shapes, dtype, axis: problem(op, arrays=[(shape, dtype) for shape in shapes], axis=axis))
words("pad", "pad_bwd", small={"pad": ("2x3x9x8 f32 0,0,1,2:3", "5x40 bf16 1:0,4 reflect", "3x6x8 i8 0,2,0 edge"),
                               "pad_bwd": ("2x3x9x8 f32 0,0,1,2:3 reflect", "5x40 bf16 1:0,4 edge", "3x6x8 f64 0,2,0")})(
    lambda op, shape, dtype, pads, mode="constant": either(op, "pad", x=(shape, dtype), pads=pads, mode=mode))
words("set_tensor", small=("1001 f32", "7x33 bf16", "9x5 i8"))(lambda op, shape, dtype: problem(op, x=(shape, dtype), value=0.0))
words(*BLOCKS, small={"depth_to_space": ("2x16x5x8 f32 2", "1x27x4x9 bf16 3"), "space_to_depth": ("2x4x10x16 f32 2", "1x3x12x9 i8 3")})(
    lambda op, shape, dtype, block: problem(op, x=(shape, dtype), block=block))
words(*RESAMPLES, small=("2x8x5x6 f32 10x12 bilinear", "1x16x7x9 bf16 4x20 bilinear corners nhwc", "2x3x8 f64 5 nearest",
                         "1x4x9x7 f32 4x20 bicubic antialias", "2x3x8x6 bf16 5x6 area nhwc"))(
    lambda op, shape, dtype, size, *resampling: of_images(op, RESAMPLES[0], shape, dtype, resampling, size=size))
words("im2col", "col2im", small={"im2col": ("2x8x9x8 f32 3x3 p1", "1x3x17x16 bf16 5x5 s2 p2 nhwc", "1x16x30 i8 3 d2 nhwc"),
                                 "col2im": ("2x8x9x8 f32 3x3 p1", "1x16x7x6 bf16 3x3 s2 p1 nhwc", "1x2x4x5x6 f64 2x2x2")})(
    lambda op, shape, dtype, window, *windows: of_images(op, "im2col", shape, dtype, windows, window=window))
words(*SAMPLES, small=("2x3x5x6 f32 4x7", "1x4x6x5 bf16 3x4 --padding border --corners", "1x2x3x4x3 f64 2x3x2 --mode nearest"))(
    lambda op, shape, dtype, size, **options: either(
        op, SAMPLES[0], x=(shape, dtype), grid=((*shape[:1], *size, len(size)), dtype), **options))
words(*AFFINES, small=("2x3x5x6 f32", "1x4x3x2x5 bf16 --corners"))(lambda op, shape, dtype, **options: either(
    op, AFFINES[0], theta=((*shape[:1], len(shape) - 2, len(shape) - 1), dtype), size=shape, **options))


@words(*BLOCK_SCALES, small=("5x64 bf16 32", "3x96 f32 16 --to float4_e2m1fn_x2", "64x7 f16 32 --to e5m2 --axis 0"))
def _block_scale(op, shape, dtype, block, *, to: str = "float8_e4m3fn", axis=-1):
    made = problem(BLOCK_SCALES[0], x=(shape, dtype), block_size=block, axis=axis, dtype=to)
    return made if op != DEQUANTIZE else problem(op, x=like(made.y), scale=like(made.scale), block_size=block, axis=axis, dtype=dtype)


@words("move_rows", small=("9x40 f32 --source 20", "20x33 bf16 --target 21", "6x7 i8"))
def _rows(op, shape, dtype, *, source=None, target=None):
    rows, given = (shape[0] if source is None else source,), {"source": source, "target": target}
    return problem(op, x=(shape, dtype), rows=target, **{name: (rows, "int32") for name, n in given.items() if n is not None})
