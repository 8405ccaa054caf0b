"""Convolutions in words: ``64x64x56x56 k64 3x3 s1 p1 bf16 nhwc --bias --activation relu``, for the command line and for lists of shapes."""
import argparse
import re

from ..engine.program_words import STEPS, with_image_program
from ..host.products import default_output
from ..host.words import Words, addend_dtype, dtype_word, image, sizes_word, terms
from ..sketch import problem

words = Words()
_KNOWN = terms(windows=True, numbers={"filters": r"k(\d+)", "groups": r"g(\d+)"})
_HELP = ("64x64x56x56 (N, C and the image extents, in this order for every layout), k64 (filters), 3x3 (their extents), s2 or s2x1 "
         "(stride), p1, p1x2 or p0:1x2:0 (padding, before:after), d2 (dilation), g32 (groups), a dtype, nchw or nhwc")


def _word(text):
    """(what, value) of a word."""
    if re.fullmatch(r"\d+(x\d+)*", text):
        return "shape" if text.count("x") > 1 else "filter", sizes_word(text)
    for kind in (_KNOWN, lambda text: ("dtype", dtype_word(text))):
        try:
            return kind(text.lower())
        except argparse.ArgumentTypeError:
            pass
    raise argparse.ArgumentTypeError(f"{text!r} is not a word of a convolution; expected {_HELP}")


def _described(op, given, *needed):
    """{what: value} of words; a second shape is that of a filter in three dimensions."""
    found = {}
    for what, value in given:
        what = "filter" if what == "shape" in found else what
        if what in found:
            raise ValueError(f"{op}: one {what} too many; expected {_HELP}")
        found[what] = value
    if missing := [what for what in needed if what not in found]:
        raise ValueError(f"{op}: {' and '.join(missing)} missing; expected {_HELP}")
    return found


_SMALL = tuple(f"{text} {dtype}" for dtype in ("f32", "bf16", "f16", "f64") for text in
               ("1x16x5x6 k24 3x3 p1 nhwc", "2x6x5x6 k10 3x3 s2 p1 g2 nchw"))


@words("conv_fwd", "conv_bwd_data", "conv_bwd_filter", small={
    "conv_fwd": (*_SMALL, "1x16x5x6 k24 3x3 p1 nhwc i8", "1x16x5x6 k24 3x3 p1 nhwc e4m3"), "conv_bwd_data": _SMALL, "conv_bwd_filter": _SMALL})
def _conv(op, *terms: _word, dtype_w: dtype_word = None, bias=False, residual=False, activation: str = None, convolution=False,
          out_dtype: dtype_word = None, program: STEPS = (), **options):
    """--dtype-w: of the filter, where it is another 8-bit float; --bias, --residual, --activation: for conv_fwd, and for conv_bwd_data as
    in conv_transpose_fwd; --convolution: flip the filter; --beta: if not 0, add beta times the output's former content."""
    given = _described(op, terms, "shape", "filter", "filters", "dtype")
    shape, taps, filters, dtype = (given.pop(what) for what in ("shape", "filter", "filters", "dtype"))
    options.update(given)
    layout, padding, c = options["layout"], options["padding"], shape[1]
    if isinstance(padding, tuple) and len(padding) == 1:
        options["padding"] = padding * (len(shape) - 2)
    if convolution:
        options["mode"] = "convolution"
    of_filter = image((filters, c // max(options["groups"], 1), *taps), layout)
    arrays = {"x": (image(shape, layout), dtype), "w": (of_filter, dtype_w or dtype)}
    forward = problem("conv_fwd", **arrays, **{**options, "alpha": 1.0, "beta": 0.0})
    result = {"conv_fwd": "y", "conv_bwd_data": "x", "conv_bwd_filter": "w"}[op]
    out = (getattr(forward, result).shape, out_dtype or default_output(dtype))
    addend = addend_dtype(out[1])
    if bias:
        options["bias"] = (filters if op == "conv_fwd" else c,), addend
    if residual:
        options["residual"] = out[0], addend
    if activation:
        options["activation"] = activation
    if out_dtype or options["beta"]:
        options["out"] = out
    arrays["dy"] = forward.y.shape, dtype
    if op == "conv_fwd":
        found = problem(op, x=arrays["x"], w=arrays["w"], **options)
    elif op == "conv_bwd_filter":
        found = problem(op, x=arrays["x"], dy=arrays["dy"], w_shape=of_filter, **options)
    elif bias or residual or activation:
        p = forward
        rest = [n - ((size - 1) * s + d * (r - 1) + 1 - sum(pads)) for n, size, s, d, r, pads in
                zip(p.image[-p.spatial_dims:], p.out[-p.spatial_dims:], p.stride, p.dilation, p.filter[-p.spatial_dims:], p.padding)]
        if options.pop("mode") == "convolution":
            raise ValueError(f"{op}: --convolution with a bias, a residual or an activation; conv_transpose_fwd flips no filter")
        found = problem("conv_transpose_fwd", x=arrays["dy"], w=arrays["w"], output_padding=tuple(rest), **options)
    else:
        found = problem(op, dy=arrays["dy"], w=arrays["w"], x_shape=arrays["x"][0], **options)
    return with_image_program(found, program)


@words("conv_bwd_bias", small=tuple(f"2x24x9x8 {layout} {dtype}" for dtype in ("f32", "bf16", "f16", "f64") for layout in ("nchw", "nhwc")))
def _bias(op, *terms: _word, out_dtype: dtype_word = None):
    given = _described(op, terms, "shape", "dtype")
    layout, shape = given.get("layout", "NCHW"), given["shape"]
    return problem(op, dy=(image(shape, layout), given["dtype"]), layout=layout, out=out_dtype and (shape[1:2], out_dtype))


FAMILY, SMALL, parse_problem = words.family, words.small, words.parse
