"""Convolutions in words: ``64x64x56x56 k64 3x3 s1 p1 bf16 nhwc --bias --activation relu``, for the command line and for lists of shapes."""
import re

from ..engine.program_words import STEPS, with_image_program
from ..host.products import default_output
from ..host.words import addend_dtype, any_of, dtype_word, image, in_each_dtype, new_words, sizes_word, taken, terms
from ..sketch import problem

words, FAMILY, SMALL, parse_problem = new_words()
_HELP = ("64x64x56x56 (N, C and the image extents, in this order for every layout), k64 (filters), 3x3 (their extents), s2 or s2x1 "
         "(stride), p1, p1x2 or p0:1x2:0 (padding, before:after), d2 (dilation), g32 (groups), a dtype, nchw or nhwc")
_OTHERS = any_of(f"not a word of a convolution; expected {_HELP}", terms(windows=True, numbers=[("k64", "k"), ("g32", "groups")]),
                 lambda text: ("dtype", dtype_word(text)))
_SMALL = in_each_dtype("1x16x5x6 k24 3x3 p1 nhwc", "2x6x5x6 k10 3x3 s2 p1 g2 nchw")


def _word(text):
    """(what, value)."""
    if re.fullmatch(r"\d+(x\d+)*", text):
        return "shape" if text.count("x") > 1 else "filter", sizes_word(text)
    return _OTHERS(text.lower())


_WORDS = {"type": _word, "help": _HELP, "metavar": "WORD"}


def _described(op, given, *needed):
    """{what: value} of words; a second shape is that of a filter in three dimensions."""
    found = {}
    for what, value in given:
        what = "filter" if what == "shape" in found else what
        if what in found:
            raise ValueError(f"{op}: {value!r} is one {what} too many; expected {_HELP}")
        found[what] = value
    if missing := [what for what in needed if what not in found]:
        raise ValueError(f"{op}: {' and '.join(missing)} missing; expected {_HELP}")
    return [found.pop(what) for what in needed], found


@words("conv_fwd", "conv_bwd_data", "conv_bwd_filter", small={
    "conv_fwd": (*_SMALL, "1x16x5x6 k24 3x3 p1 nhwc i8", "1x16x5x6 k24 3x3 p1 nhwc e4m3"),
    **dict.fromkeys(("conv_bwd_data", "conv_bwd_filter"), _SMALL)})
def _conv(op, *terms: _WORDS, dtype_w=None, bias=False, residual=False, activation: str = None, convolution=False, alpha=1.0,
          beta=0.0, out_dtype=None, program: STEPS = (), **options):
    (shape, taps, k, dtype), given = _described(op, terms, "shape", "filter", "k", "dtype")
    options.update(given, **{"mode": "convolution"} if convolution else {})
    if len(taps) != len(shape) - 2:
        raise ValueError(f"{op}: the filter has {len(taps)} extents, the image {len(shape) - 2}")
    if isinstance(padding := options["padding"], tuple) and len(padding) == 1:
        options["padding"] = padding * len(taps)
    arrays = {"x": (image(shape, options["layout"]), dtype),
              "w": (image((k, shape[1] // max(options["groups"], 1), *taps), options["layout"]), dtype_w or dtype)}
    forward = p = problem("conv_fwd", **arrays, **options)
    result = {"conv_fwd": forward.y, "conv_bwd_data": forward.x, "conv_bwd_filter": forward.w}[op].shape
    out = out_dtype or default_output(dtype)
    fused = {"bias": ((k if op == "conv_fwd" else shape[1],), addend_dtype(out)) if bias else None, "activation": activation,
             "residual": (result, addend_dtype(out)) if residual else None, "out": (result, out) if out_dtype or beta else None}
    fused, function = {name: value for name, value in fused.items() if value}, op
    arrays.update(dy=(p.y.shape, dtype), x_shape=p.x.shape, w_shape=p.w.shape)
    if op == "conv_bwd_data" and {*fused} - {"out"}:
        rest = [n - ((size - 1) * s + d * (r - 1) + 1 - sum(pads)) for n, size, s, d, r, pads in
                zip(p.image[-p.spatial_dims:], p.out[-p.spatial_dims:], p.stride, p.dilation, p.filter[-p.spatial_dims:], p.padding)]
        function = "conv_transpose_fwd"
        arrays.update(x=arrays["dy"], output_padding=tuple(rest))
        if options.pop("mode") == "convolution":
            raise ValueError(f"{op}: --convolution with a bias, a residual or an activation; conv_transpose_fwd flips no filter")
    return with_image_program(problem(function, **taken(function, arrays), alpha=alpha, beta=beta, **fused, **options), program)


@words("conv_bwd_bias", small=in_each_dtype("2x24x9x8 nchw", "2x24x9x8 nhwc"))
def _bias(op, *terms: _WORDS, out_dtype=None):
    (shape, dtype), given = _described(op, terms, "shape", "dtype")
    layout = given.get("layout", "NCHW")
    return problem(op, dy=(image(shape, layout), dtype), layout=layout, out=out_dtype and (shape[1:2], out_dtype))
