"""Problems of this family in words, for the command line: ``64x256x56x56 f16 NCHW:NHWC``, ``64x64x56x56 f16 3x3 s1 p1 nhwc``."""
import argparse
import functools
import re

from ..host.tensor import Tensor
from ..host.words import WordParser, dtype_word, problem_from_record, sizes_word, term_word
from ._cast_problem import CastProblem, make_cast_problem
from ._problem import TransposeProblem, make_layout_problem, make_problem
from .blocks._problem import BLOCK_SCALES, DEQUANTIZE, FOUR_BITS, BlockScaleProblem, make_dequantize, make_quantize
from .layout._blocks_problem import BLOCKS, BlocksProblem, make_blocks_problem
from .layout._borders import MODES
from .layout._concat_problem import ConcatProblem, make_concat_problem
from .layout._pad_problem import (PadGradientProblem, PadProblem, SetProblem, make_gradient_problem, make_pad_problem,
                                  make_set_problem, padded_shape)
from .layout._slice_problem import SliceProblem, make_slice_problem
from .rows._rows_problem import RowsProblem, make_rows
from .sample._grid_problem import (AFFINES, PADDINGS, SAMPLE_MODES, SAMPLES, AffineGridProblem, GridSampleGradientProblem,
                                   GridSampleProblem, make_affine, make_affine_gradient, make_sample, make_sample_gradient)
from .sample._resample_problem import MODES as RESAMPLE_MODES
from .sample._resample_problem import RESAMPLES, ResampleProblem, make_resample
from .window._problem import WindowProblem, columns_shape, make_col2im_problem, make_im2col_problem


def _order_word(text):
    """Axes written 0,2,3,1, or a pair of layouts written NCHW:NHWC."""
    if re.fullmatch(r"\d+(,\d+)*", text):
        return tuple(int(n) for n in text.split(","))
    if re.fullmatch(r"[A-Za-z]+:[A-Za-z]+", text):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} is neither axes such as 0,2,3,1 nor layouts such as NCHW:NHWC")


def add_transpose_arguments(parser):
    """The words that describe a transposition."""
    parser.add_argument("shape", type=sizes_word, help="shape of x: 64x256x56x56")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, int8, ...")
    parser.add_argument("order", type=_order_word, help="axes (0,2,3,1) or two layouts (NCHW:NHWC)")


def make_transpose(arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    x = Tensor.packed(arguments.shape, arguments.dtype)
    if isinstance(arguments.order, str):
        return make_layout_problem((x,), None, *arguments.order.split(":"), aliases=frozenset())
    return make_problem((x,), None, arguments.order, aliases=frozenset())


def transpose_from_record(record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(lambda axes, **fields: TransposeProblem(axes=tuple(axes), **fields), "transpose", record)


def add_window_arguments(parser):
    """The words that describe a window on images."""
    parser.add_argument("shape", type=sizes_word, help="N, C and the image extents, in this order for every layout: 64x64x56x56")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, int8, ...")
    parser.add_argument("window", type=sizes_word, help="window extents: 3x3")
    parser.add_argument("terms", nargs="*", type=term_word, help="s2 (stride), p1 or p0:1x2:0 (padding), d2 (dilation), nhwc")


def make_window(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    given = {"stride": 1, "padding": 0, "dilation": 1, "layout": "NCHW", **dict(arguments.terms)}
    n, c, *image = (*arguments.shape, 1, 1)[:max(len(arguments.shape), 2)]
    shape = (n, c, *image) if given["layout"] == "NCHW" else (n, *image, c)
    parameters = arguments.window, given["stride"], given["padding"], given["dilation"], given["layout"]
    problem = make_im2col_problem((Tensor.packed(shape, arguments.dtype),), None, *parameters, aliases=frozenset())
    if op == "im2col":
        return problem
    matrix = columns_shape(op, shape, problem.window, problem.stride, problem.padding, problem.dilation, problem.layout)
    return make_col2im_problem((Tensor.packed(matrix, arguments.dtype),), None, shape, *parameters, aliases=frozenset())


def window_from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    def make(window, stride, padding, dilation, **fields):
        return WindowProblem(window=tuple(window), stride=tuple(stride), padding=tuple(map(tuple, padding)), dilation=tuple(dilation),
                             **fields)
    return problem_from_record(make, op, record)


def _slices_word(text):
    """(starts, stops, steps) written ::2,3:,1:-1."""
    if not re.fullmatch(r"(-?\d*:-?\d*(:-?\d*)?)(,-?\d*:-?\d*(:-?\d*)?)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of slices such as :,3:,1:-1,::2")
    slices = [(*(int(v) if v not in ("", "-") else None for v in word.split(":")), None)[:3] for word in text.split(",")]
    return tuple(zip(*slices))


def add_slice_arguments(parser):
    """The words that describe a slice."""
    parser.add_argument("shape", type=sizes_word, help="shape of x: 64x256x56x56")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, int8, ...")
    parser.add_argument("slices", type=_slices_word, help="one per dimension, as in Python, separated by commas: :,3:,1:-1,::2")


def make_slice(arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    return make_slice_problem((Tensor.packed(arguments.shape, arguments.dtype),), None, *arguments.slices, aliases=frozenset())


def slice_from_record(record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(lambda starts, steps, **fields: SliceProblem(starts=tuple(starts), steps=tuple(steps), **fields),
                               "strided_slice", record)


def _shapes_word(text):
    """Shapes written 64x128x28x28,64x256x28x28."""
    return tuple(map(sizes_word, text.split(",")))


def add_concat_arguments(parser):
    """The words that describe a concatenation."""
    parser.add_argument("shapes", type=_shapes_word, help="shapes of the arrays, separated by commas: 64x128x28x28,64x256x28x28")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, int8, ...")
    parser.add_argument("axis", type=int)


def make_concat(arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    arrays = tuple(Tensor.packed(shape, arguments.dtype) for shape in arguments.shapes)
    return make_concat_problem(arrays, None, len(arrays), arguments.axis, aliases=frozenset())


def concat_from_record(record):
    """The problem of a record; ValueError where it is something else."""
    def make(arrays, **fields):
        return ConcatProblem(tuple(Tensor(tuple(t["shape"]), tuple(t["strides"]), t["dtype"], t["alignment"]) for t in arrays), **fields)
    return problem_from_record(make, "concat", record)


def _pads_word(text):
    """((before, after), ...) written 0,1,2:3."""
    if not re.fullmatch(r"\d+(:\d+)?(,\d+(:\d+)?)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of borders such as 0,0,1,2:3")
    return tuple((parts * 2)[:2] for parts in (tuple(map(int, word.split(":"))) for word in text.split(",")))


def add_pad_arguments(parser):
    """The words that describe borders."""
    parser.add_argument("shape", type=sizes_word, help="shape of x: 64x256x56x56")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, int8, ...")
    parser.add_argument("pads", type=_pads_word, help="one per dimension, or two with a colon: 0,0,1,2:3")
    parser.add_argument("mode", nargs="?", choices=MODES, default="constant")


def make_pad(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    a, make = arguments, make_pad_problem if op == "pad" else make_gradient_problem
    shape = a.shape if op == "pad" else padded_shape(a.shape, a.pads, a.mode, op)
    return make((Tensor.packed(shape, a.dtype),), None, a.pads, a.mode, aliases=frozenset())


def pad_from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    kind = PadProblem if op == "pad" else PadGradientProblem
    return problem_from_record(lambda pads, **fields: kind(pads=tuple(map(tuple, pads)), **fields), op, record)


def add_array_arguments(parser):
    """The words that describe an array."""
    parser.add_argument("shape", type=sizes_word, help="shape of x: 64x256x56x56")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, int8, ...")


def make_set(arguments):
    """The problem that parsed words describe: a packed array, aligned to 16 bytes, in place."""
    return make_set_problem((Tensor.packed(arguments.shape, arguments.dtype),), None, aliases=frozenset({"x"}))


def set_from_record(record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(SetProblem, "set_tensor", record)


def add_blocks_arguments(parser):
    """The words that describe blocks of pixels."""
    add_array_arguments(parser)
    parser.add_argument("block", type=int, help="side of a block: 2")


def make_blocks(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    return make_blocks_problem(op, (Tensor.packed(arguments.shape, arguments.dtype),), None, arguments.block, aliases=frozenset())


def blocks_from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(BlocksProblem, op, record)


_RESAMPLE_TERMS = {**{mode: ("mode", mode) for mode in RESAMPLE_MODES}, "corners": ("corners", True), "antialias": ("antialias", True),
                   "nchw": ("layout", "NCHW"), "nhwc": ("layout", "NHWC")}


def _resample_term(text):
    """(parameter, value) of a word such as bilinear, corners or nhwc."""
    if text.lower() not in _RESAMPLE_TERMS:
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join(_RESAMPLE_TERMS)}")
    return _RESAMPLE_TERMS[text.lower()]


def add_resample_arguments(parser):
    """The words that describe an image of another size."""
    parser.add_argument("shape", type=sizes_word, help="N, C and the image extents, in this order for every layout: 64x64x56x56")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float64, float32, float16 or bfloat16")
    parser.add_argument("size", type=sizes_word, help="extents of the resampled image: 112x112")
    parser.add_argument("terms", nargs="*", type=_resample_term, help="nearest, nearest-exact, bilinear, bicubic, area, corners, "
                        "antialias, nchw, nhwc")


def make_resample_words(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    given = {"mode": "nearest", "corners": False, "layout": "NCHW", "antialias": False, **dict(arguments.terms)}
    n, c, *image = (*arguments.shape, 1, 1)[:max(len(arguments.shape), 2)]
    shape = (n, c, *image) if given["layout"] == "NCHW" else (n, *image, c)
    more = given["mode"], given["corners"], given["layout"], given["antialias"], frozenset()
    problem = make_resample("resample_fwd", (Tensor.packed(shape, arguments.dtype),), None, arguments.size, *more)
    return problem if op == "resample_fwd" else make_resample(op, (problem.y,), None, shape, *more)


def resample_from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(ResampleProblem, op, record)


def add_sample_arguments(parser):
    """The words that describe images sampled at a grid."""
    parser.add_argument("shape", type=sizes_word, help="shape of the images: 32x64x112x112")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float64, float32, float16 or bfloat16")
    parser.add_argument("size", type=sizes_word, help="extents of the grid: 112x112")
    parser.add_argument("--mode", choices=SAMPLE_MODES, default="bilinear")
    parser.add_argument("--padding", choices=PADDINGS, default="zeros")
    parser.add_argument("--corners", action="store_true", help="align_corners")


def make_sample_words(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    a = arguments
    x = Tensor.packed(a.shape, a.dtype)
    grid, more = Tensor.packed((*a.shape[:1], *a.size, len(a.size)), a.dtype), (a.mode, a.padding, a.corners, frozenset())
    problem = make_sample((x, grid), None, *more)
    return problem if op == SAMPLES[0] else make_sample_gradient((problem.y, x, grid), None, *more)


def sample_from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(GridSampleProblem if op == SAMPLES[0] else GridSampleGradientProblem, op, record)


def add_affine_arguments(parser):
    """The words that describe an affine grid."""
    parser.add_argument("shape", type=sizes_word, help="shape of the sampled images: 32x3x224x224")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float64, float32, float16 or bfloat16")
    parser.add_argument("--corners", action="store_true", help="align_corners")


def make_affine_words(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    a, dims = arguments, len(arguments.shape) - 2
    problem = make_affine((Tensor.packed((*a.shape[:1], max(dims, 0), max(dims, 0) + 1), a.dtype),), None, a.shape, a.corners, frozenset())
    return problem if op == AFFINES[0] else make_affine_gradient((problem.grid,), None, a.corners, frozenset())


def affine_from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(AffineGridProblem, op, record)


def add_cast_arguments(parser):
    """The words that describe a conversion."""
    parser.add_argument("shape", type=sizes_word, help="shape of x: 64x256x56x56")
    parser.add_argument("dtype", type=dtype_word, help="dtype of x")
    parser.add_argument("to", type=dtype_word, help="dtype of y")
    parser.add_argument("--scale", type=float, default=1.0)


def make_cast(arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    return make_cast_problem((Tensor.packed(arguments.shape, arguments.dtype),), None, arguments.to, arguments.scale != 1,
                             aliases=frozenset())


def cast_from_record(record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(CastProblem, "cast", record)


def add_rows_arguments(parser):
    """The words that describe rows that are moved."""
    parser.add_argument("shape", type=sizes_word, help="rows and their elements: 8192x4096")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("--source", type=int, metavar="ROWS", help="gather so many rows")
    parser.add_argument("--target", type=int, metavar="ROWS", help="scatter to so many rows")


def make_rows_words(arguments):
    """The problem that parsed words describe: packed arrays."""
    x, source, target = Tensor.packed(arguments.shape, arguments.dtype), arguments.source, arguments.target
    rows = [None if n is None else Tensor.packed((arguments.shape[0] if source is None else source,), "int32") for n in (source, target)]
    return make_rows((x, *rows), None, target, frozenset())


def rows_from_record(record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(RowsProblem, "move_rows", record)


def add_block_scale_arguments(parser):
    """The words that describe blocks with scales."""
    parser.add_argument("shape", type=sizes_word, help="shape of the floats: 4096x8192")
    parser.add_argument("dtype", type=dtype_word, help="dtype of the floats: float32, bf16, ...")
    parser.add_argument("block", type=int, help="elements of a block: 32")
    parser.add_argument("--to", default="float8_e4m3fn", help=f"what they are quantized to: e4m3, e5m2 or {FOUR_BITS}")
    parser.add_argument("--axis", type=int, default=-1, help="the dimension along which blocks lie")


def make_block_scale_words(op, arguments):
    """The problem that parsed words describe: packed arrays."""
    a = arguments
    made = make_quantize((Tensor.packed(a.shape, a.dtype),), None, a.block, a.axis, a.to, None, frozenset())
    return make_dequantize((made.y, made.scale), None, a.block, a.axis, a.dtype, frozenset()) if op == DEQUANTIZE else made


def block_scale_from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(BlockScaleProblem, op, record)


FAMILY = {"transpose": (add_transpose_arguments, make_transpose, transpose_from_record),
          "cast": (add_cast_arguments, make_cast, cast_from_record),
          "strided_slice": (add_slice_arguments, make_slice, slice_from_record),
          "concat": (add_concat_arguments, make_concat, concat_from_record),
          **{op: (add_block_scale_arguments, functools.partial(make_block_scale_words, op), functools.partial(block_scale_from_record, op))
             for op in BLOCK_SCALES},
          "move_rows": (add_rows_arguments, make_rows_words, rows_from_record),
          **{op: (add_pad_arguments, functools.partial(make_pad, op), functools.partial(pad_from_record, op)) for op in ("pad", "pad_bwd")},
          "set_tensor": (add_array_arguments, make_set, set_from_record),
          **{op: (add_blocks_arguments, functools.partial(make_blocks, op), functools.partial(blocks_from_record, op)) for op in BLOCKS},
          **{op: (add_resample_arguments, functools.partial(make_resample_words, op), functools.partial(resample_from_record, op))
             for op in RESAMPLES},
          **{op: (add_sample_arguments, functools.partial(make_sample_words, op), functools.partial(sample_from_record, op))
             for op in SAMPLES},
          **{op: (add_affine_arguments, functools.partial(make_affine_words, op), functools.partial(affine_from_record, op))
             for op in AFFINES},
          **{op: (add_window_arguments, functools.partial(make_window, op), functools.partial(window_from_record, op))
             for op in ("im2col", "col2im")}}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""

SMALL = {"transpose": ("33x17x5 f32 2,0,1", "2x24x8x16 bf16 NCHW:NHWC", "3x16x16x3 i8 NHWC:NCHW", "4x6x8x16 f64 0,2,1,3"),
         "cast": ("1001 f32 bf16", "7x33 bf16 e4m3 --scale 2", "513 f64 f16", "100 i32 i8"),
         "strided_slice": ("9x40x33 f16 1:8,::2,3:30", "5x77 f32 :,::-1", "64x48 i8 8:56,16:"),
         "concat": ("3x5x16,3x9x16 f32 1", "7x33,7x1,7x40 bf16 1", "2x8x6x6,2x3x6x6 i8 1"),
         "pad": ("2x3x9x8 f32 0,0,1,2:3", "5x40 bf16 1:0,4 reflect", "3x6x8 i8 0,2,0 edge"),
         "pad_bwd": ("2x3x9x8 f32 0,0,1,2:3 reflect", "5x40 bf16 1:0,4 edge", "3x6x8 f64 0,2,0"),
         **dict.fromkeys(BLOCK_SCALES, ("5x64 bf16 32", "3x96 f32 16 --to float4_e2m1fn_x2", "64x7 f16 32 --to e5m2 --axis 0")),
         "move_rows": ("9x40 f32 --source 20", "20x33 bf16 --target 21", "6x7 i8"),
         "set_tensor": ("1001 f32", "7x33 bf16", "9x5 i8"),
         "depth_to_space": ("2x16x5x8 f32 2", "1x27x4x9 bf16 3"), "space_to_depth": ("2x4x10x16 f32 2", "1x3x12x9 i8 3"),
         **dict.fromkeys(RESAMPLES, ("2x8x5x6 f32 10x12 bilinear", "1x16x7x9 bf16 4x20 bilinear corners nhwc", "2x3x8 f64 5 nearest",
                                     "1x4x9x7 f32 4x20 bicubic antialias", "2x3x8x6 bf16 5x6 area nhwc")),
         **dict.fromkeys(SAMPLES, ("2x3x5x6 f32 4x7", "1x4x6x5 bf16 3x4 --padding border --corners", "1x2x3x4x3 f64 2x3x2 --mode nearest")),
         **dict.fromkeys(AFFINES, ("2x3x5x6 f32", "1x4x3x2x5 bf16 --corners")),
         "im2col": ("2x8x9x8 f32 3x3 p1", "1x3x17x16 bf16 5x5 s2 p2 nhwc", "1x16x30 i8 3 d2 nhwc"),
         "col2im": ("2x8x9x8 f32 3x3 p1", "1x16x7x6 bf16 3x3 s2 p1 nhwc", "1x2x4x5x6 f64 2x2x2")}
"""Problems that ``python -m dnnkern check`` tries."""


def parse_problem(words, op):
    """The problem of `op` a list of words describes; ValueError in one line where they make no sense.

    >>> print(parse_problem("64x3x224x224 bf16 NCHW:NHWC".split(), "transpose"))
    transpose 64x3x224x224 bfloat16 0,2,3,1
    >>> print(parse_problem("8x64x56x56 f16 3x3 s2 p1 nhwc".split(), "im2col"))
    im2col 8x56x56x64 float16 NHWC window 3x3 stride 2 padding 1
    """
    add, make_it, _ = FAMILY[op]
    parser = WordParser(op, add_help=False)
    add(parser)
    return make_it(parser.parse_args(list(words)))
