"""Moves, samples and conversions in words, for the command line: ``64x256x56x56 f16 NCHW:NHWC``, ``64x64x56x56 f16 3x3 s1 p1 nhwc``."""
import argparse
import re

from ..host.words import Words, dtype_word, image, integers_word, like, shapes_word, sizes_word, terms
from ..sketch import problem
from .blocks._problem import BLOCK_SCALES, DEQUANTIZE
from .layout._blocks_problem import BLOCKS
from .layout._pad_problem import padded_shape
from .sample._grid_problem import AFFINES, SAMPLES
from .sample._resample_problem import MODES, RESAMPLES

words = Words()


def _order_word(text):
    """Axes written 0,2,3,1, or two layouts."""
    return text.split(":") if re.fullmatch("[A-Za-z]+:[A-Za-z]+", text) else integers_word(text)


@words("transpose", small=("33x17x5 f32 2,0,1", "2x24x8x16 bf16 NCHW:NHWC", "3x16x16x3 i8 NHWC:NCHW", "4x6x8x16 f64 0,2,1,3"))
def _transpose(op, shape, dtype, order: _order_word):
    """ORDER: axes (0,2,3,1) or two layouts (NCHW:NHWC)."""
    if isinstance(order, list):
        return problem("convert_layout", x=(shape, dtype), source=order[0], target=order[1])
    return problem(op, x=(shape, dtype), axes=order)


@words("cast", small=("1001 f32 bf16", "7x33 bf16 e4m3 --scale 2", "513 f64 f16", "100 i32 i8"))
def _cast(op, shape, dtype, to: dtype_word, *, scale=1.0):
    return problem(op, x=(shape, dtype), dtype=to, scale=scale)


def _slices_word(text):
    """Slices written ::2,3:,1:-1."""
    if not re.fullmatch(r"(-?\d*:-?\d*(:-?\d*)?)(,-?\d*:-?\d*(:-?\d*)?)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of slices such as :,3:,1:-1,::2")
    slices = [(*(int(v) if v not in ("", "-") else None for v in word.split(":")), None)[:3] for word in text.split(",")]
    return dict(zip(("starts", "stops", "steps"), zip(*slices)))


@words("strided_slice", small=("9x40x33 f16 1:8,::2,3:30", "5x77 f32 :,::-1", "64x48 i8 8:56,16:"))
def _slice(op, shape, dtype, slices: _slices_word):
    """SLICES: one per dimension, as in Python, separated by commas: :,3:,1:-1,::2"""
    return problem(op, x=(shape, dtype), **slices)


@words("concat", small=("3x5x16,3x9x16 f32 1", "7x33,7x1,7x40 bf16 1", "2x8x6x6,2x3x6x6 i8 1"))
def _concat(op, shapes: shapes_word, dtype, axis):
    """SHAPES: of the arrays, separated by commas."""
    return problem(op, arrays=[(shape, dtype) for shape in shapes], axis=axis)


def _pads_word(text):
    """((before, after), ...) written 0,1,2:3."""
    if not re.fullmatch(r"\d+(:\d+)?(,\d+(:\d+)?)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of borders such as 0,0,1,2:3")
    return tuple((parts * 2)[:2] for parts in (tuple(map(int, word.split(":"))) for word in text.split(",")))


@words("pad", "pad_bwd", small={"pad": ("2x3x9x8 f32 0,0,1,2:3", "5x40 bf16 1:0,4 reflect", "3x6x8 i8 0,2,0 edge"),
                                "pad_bwd": ("2x3x9x8 f32 0,0,1,2:3 reflect", "5x40 bf16 1:0,4 edge", "3x6x8 f64 0,2,0")})
def _pad(op, shape, dtype, pads: _pads_word, mode="constant"):
    """PADS: one per dimension, or two with a colon: 0,0,1,2:3."""
    if op == "pad":
        return problem(op, x=(shape, dtype), pads=pads, mode=mode)
    return problem(op, dy=(padded_shape(shape, pads, mode, op), dtype), pads=pads, mode=mode)


@words(*BLOCK_SCALES, small=("5x64 bf16 32", "3x96 f32 16 --to float4_e2m1fn_x2", "64x7 f16 32 --to e5m2 --axis 0"))
def _block_scale(op, shape, dtype, block: int, *, to="float8_e4m3fn", axis=-1):
    """BLOCK: elements of a block; --to: e4m3, e5m2 or float4_e2m1fn_x2."""
    made = problem(BLOCK_SCALES[0], x=(shape, dtype), block_size=block, axis=axis, dtype=to)
    return made if op != DEQUANTIZE else problem(op, x=like(made.y), scale=like(made.scale), block_size=block, axis=axis, dtype=dtype)


@words("move_rows", small=("9x40 f32 --source 20", "20x33 bf16 --target 21", "6x7 i8"))
def _rows(op, shape, dtype, *, source: int = None, target: int = None):
    """--source: gather so many rows; --target: scatter to so many."""
    rows = shape[0] if source is None else source
    given = {name: ((rows,), "int32") for name, n in (("source", source), ("target", target)) if n is not None}
    return problem(op, x=(shape, dtype), **given, rows=target)


@words("set_tensor", small=("1001 f32", "7x33 bf16", "9x5 i8"))
def _set(op, shape, dtype):
    return problem(op, x=(shape, dtype), value=0.0)


@words(*BLOCKS, small={"depth_to_space": ("2x16x5x8 f32 2", "1x27x4x9 bf16 3"), "space_to_depth": ("2x4x10x16 f32 2", "1x3x12x9 i8 3")})
def _blocks(op, shape, dtype, block: int):
    return problem(op, x=(shape, dtype), block=block)


_RESAMPLE = terms(**{mode: ("mode", mode) for mode in MODES}, corners=("align_corners", True), antialias=("antialias", True))


@words(*RESAMPLES, small=("2x8x5x6 f32 10x12 bilinear", "1x16x7x9 bf16 4x20 bilinear corners nhwc", "2x3x8 f64 5 nearest",
                          "1x4x9x7 f32 4x20 bicubic antialias", "2x3x8x6 bf16 5x6 area nhwc"))
def _resample(op, shape, dtype, size, *terms: _RESAMPLE):
    """SHAPE: N, C and the extents, in this order for every layout; TERMS: bilinear, corners, antialias, nhwc."""
    given = dict(terms)
    x = image(shape, given.get("layout", "NCHW"))
    forward = problem(RESAMPLES[0], x=(x, dtype), size=size, **given)
    return forward if op == forward.op else problem(op, dy=like(forward.y), x_shape=x, **given)


@words(*SAMPLES, small=("2x3x5x6 f32 4x7", "1x4x6x5 bf16 3x4 --padding border --corners", "1x2x3x4x3 f64 2x3x2 --mode nearest"))
def _sample(op, shape, dtype, size, *, mode="bilinear", padding="zeros", corners=False):
    """SIZE: extents of the grid; --padding: padding_mode; --corners: align_corners."""
    given = {"x": (shape, dtype), "grid": ((*shape[:1], *size, len(size)), dtype), "mode": mode, "padding_mode": padding,
             "align_corners": corners}
    forward = problem(SAMPLES[0], **given)
    return forward if op == SAMPLES[0] else problem(op, dy=like(forward.y), **given)


@words(*AFFINES, small=("2x3x5x6 f32", "1x4x3x2x5 bf16 --corners"))
def _affine(op, shape, dtype, *, corners=False):
    """SHAPE: of the sampled images; --corners: align_corners."""
    dims = max(len(shape) - 2, 0)
    forward = problem(AFFINES[0], theta=((*shape[:1], dims, dims + 1), dtype), size=shape, align_corners=corners)
    return forward if op == AFFINES[0] else problem(op, dgrid=like(forward.grid), align_corners=corners)


_WINDOW = terms(windows=True)


@words("im2col", "col2im", small={"im2col": ("2x8x9x8 f32 3x3 p1", "1x3x17x16 bf16 5x5 s2 p2 nhwc", "1x16x30 i8 3 d2 nhwc"),
                                  "col2im": ("2x8x9x8 f32 3x3 p1", "1x16x7x6 bf16 3x3 s2 p1 nhwc", "1x2x4x5x6 f64 2x2x2")})
def _window(op, shape, dtype, window, *terms: _WINDOW):
    """SHAPE: N, C and the extents, in this order for every layout; TERMS: s2 (stride), p1 or p0:1x2:0 (padding), d2 (dilation), nhwc."""
    given = {"window": window, **dict(terms)}
    x = image(shape, given.get("layout", "NCHW"))
    forward = problem("im2col", x=(x, dtype), **given)
    return forward if op == "im2col" else problem(op, columns=like(forward.columns), x_shape=x, **given)


FAMILY, SMALL, parse_problem = words.family, words.small, words.parse
