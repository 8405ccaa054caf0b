"""Convolutions in words: ``64x64x56x56 k64 3x3 s1 p1 bf16 nhwc --bias --activation relu``, for the command line and for lists of shapes."""
import argparse
import functools
import re

from ..device.activation import MODES, Activation
from ..engine.prologues import Prologue
from ..engine.program_words import add_program_argument, with_program
from ..host.products import MATH, default_output
from ..host.scalars import LARGEST
from ..host.tensor import Tensor
from ..host.words import WordParser, addend_dtype, dtype_word, problem_from_record
from ._bias_problem import ConvBiasProblem
from ._geometry import ROLES, Shape, out_extents, positive, sizes_of
from ._problem import OUTPUT, ConvProblem

_SIZES = r"(\d+(?:x\d+)*)"
_PADS = r"(\d+(?::\d+)?(?:x\d+(?::\d+)?)*)"
_KINDS = {"shape": r"(\d+x\d+(?:x\d+){1,3})", "filter": _SIZES, "k": r"k(\d+)", "stride": f"s{_SIZES}", "padding": f"p{_PADS}",
          "dilation": f"d{_SIZES}", "groups": r"g(\d+)", "layout": r"(nchw|nhwc)"}
_HELP = ("64x64x56x56 (N, C and the image extents, in this order for every layout), k64 (filters), 3x3 (their extents), s2 or s2x1 "
         "(stride), p1, p1x2 or p0:1x2:0 (padding, before:after), d2 (dilation), g32 (groups), a dtype, nchw or nhwc")


def add_arguments(parser: argparse.ArgumentParser):
    """The words that describe a convolution in any direction."""
    parser.add_argument("terms", nargs="+", metavar="WORD", help=_HELP)
    parser.add_argument("--dtype-w", type=dtype_word, help="dtype of the filter, if it is another 8-bit float than the image's")
    parser.add_argument("--bias", action="store_true", help="for conv_fwd, and for conv_bwd_data as in conv_transpose_fwd")
    parser.add_argument("--residual", action="store_true", help="as --bias")
    parser.add_argument("--activation", choices=sorted(MODES), help="as --bias")
    parser.add_argument("--alpha", type=float, default=1.0)
    parser.add_argument("--beta", type=float, default=0.0, help="if not 0, add beta times the output's former content")
    parser.add_argument("--convolution", action="store_true", help="flip the filter")
    parser.add_argument("--math", choices=[m for m in MATH if m])
    parser.add_argument("--out-dtype", type=dtype_word)
    add_program_argument(parser)


def make(op, arguments) -> ConvProblem:
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes."""
    words = _classified(op, arguments.terms, ("shape", "k", "filter", "dtype"))
    n, c, *image = words["shape"]
    taps, (k,), (groups,), dims = words["filter"], words["k"], words.get("groups", (1,)), len(image)
    if len(taps) != dims:
        raise ValueError(f"{op}: the filter has {len(taps)} extents, the image {dims}")
    stride, dilation, padding = (_each(op, name, words.get(name, (default,)), dims)
                                 for name, default in (("stride", 1), ("dilation", 1), ("padding", (0, 0))))
    layout, dtype = words.get("layout", "NCHW"), words["dtype"]
    shapes = {"x": Shape(n, c, tuple(image)), "w": Shape(k, c // positive(op, "groups", groups), taps),
              "y": Shape(n, k, out_extents(ROLES[op], image, taps, stride, padding, dilation))}
    output, out = OUTPUT[op], arguments.out_dtype or default_output(dtype)
    dtypes = {"w": arguments.dtype_w or dtype, output: out}
    tensors = {name: Tensor.packed(sizes_of(shape, layout), dtypes.get(name, dtype)) for name, shape in shapes.items()}
    addend, channels = addend_dtype(out), k if op == "conv_fwd" else c
    problem = ConvProblem(op, **tensors, bias=Tensor.packed((channels,), addend) if arguments.bias else None,
                          residual=Tensor.packed(tensors[output].shape, addend) if arguments.residual else None, stride=stride,
                          padding=padding, dilation=dilation, groups=groups, layout=layout,
                          mode="convolution" if arguments.convolution else "cross_correlation",
                          activation=Activation.of(arguments.activation), scaled=arguments.alpha != 1, beta=arguments.beta != 0,
                          math=arguments.math)
    axes = (0, *range(2, dims + 2))  # an operand's sizes are N, K, the extents, as the image's
    if layout == "NHWC":
        return with_program(problem, arguments.program, range(dims + 1), dims + 1, (*axes, 1))
    return with_program(problem, arguments.program, axes, 1)


def add_bias_arguments(parser: argparse.ArgumentParser):
    """The words that describe the gradient of a bias."""
    parser.add_argument("terms", nargs="+", metavar="WORD", help="64x64x56x56 (N, K and the extents of dy), a dtype, nchw or nhwc")
    parser.add_argument("--out-dtype", type=dtype_word)


def make_bias(arguments) -> ConvBiasProblem:
    """The gradient of a bias that parsed words describe."""
    words = _classified("conv_bwd_bias", arguments.terms, ("shape", "dtype"))
    n, k, *extents = words["shape"]
    layout, dtype = words.get("layout", "NCHW"), words["dtype"]
    dy = Tensor.packed(sizes_of(Shape(n, k, tuple(extents)), layout), dtype)
    return ConvBiasProblem(dy, Tensor.packed((k,), arguments.out_dtype or dtype), layout)


def parse_problem(words, op="conv_fwd"):
    """The problem of `op` a list of words describes; ValueError in one line where they make no sense.

    >>> print(parse_problem("64x64x56x56 k64 3x3 p1 bf16 nhwc --bias --activation relu".split()))
    conv_fwd 64x64x56x56 k64 3x3 s1 p1 bfloat16 NHWC + bias, relu
    >>> print(parse_problem("8x64x7x7 k64 1x1 f16 nhwc --program mul@64x1x1 relu add@8x64x7x7".split()))
    conv_fwd 8x64x7x7 k64 1x1 s1 p0 float16 NHWC + program mul+relu+add
    >>> print(parse_problem("8x2048x4096 k2048 4 p3:0 g2048 f16".split(), "conv_bwd_filter"))
    conv_bwd_filter 8x2048x4096 k2048 4 s1 p3:0 g2048 float16 NCHW
    """
    add, make_it, _ = FAMILY[op]
    parser = WordParser(op, add_help=False)
    add(parser)
    return make_it(parser.parse_args(list(words)))


def _classified(op, terms, required):
    """{kind: sizes, layout or dtype} of the words."""
    found = {}
    for term in terms:
        kinds = [kind for kind, pattern in _KINDS.items() if re.fullmatch(pattern, term.lower()) and kind not in found]
        if kinds:
            kind, value = kinds[0], re.fullmatch(_KINDS[kinds[0]], term.lower())[1]
            found[kind] = value.upper() if kind == "layout" else tuple(_size(op, v) for v in value.split("x"))
            continue
        if "dtype" in found:
            raise ValueError(f"{op}: {term!r} is not a word of a convolution, or one too many; expected {_HELP}")
        try:
            found["dtype"] = dtype_word(term)
        except argparse.ArgumentTypeError:
            raise ValueError(f"{op}: {term!r} is not a word of a convolution; expected {_HELP}") from None
    missing = [kind for kind in required if kind not in found]
    if missing:
        raise ValueError(f"{op}: {' and '.join(missing)} missing in {' '.join(terms)!r}; expected {_HELP}")
    return found


def _size(op, word):
    """An int, or a pair of them written before:after."""
    sizes = tuple(map(int, word.split(":")))
    if max(sizes) > LARGEST:
        raise ValueError(f"{op}: {word!r} is a size beyond {LARGEST}")
    return sizes if len(sizes) > 1 else sizes[0]


def _each(op, name, values, dims):
    """One value a spatial dimension; of a padding the pair."""
    values = values * dims if len(values) == 1 else values
    if len(values) != dims:
        raise ValueError(f"{op}: {name} has {len(values)} entries, the image {dims} extents")
    if name == "padding":
        return tuple((v, v) if isinstance(v, int) else v for v in values)
    return tuple(positive(op, name, v) for v in values)


def _from_record(op, record):
    if not isinstance(record, dict) or record.get("op", op) != op:
        raise ValueError(f"{op}: not a record of its problems")
    return problem_from_record(ConvBiasProblem if op == "conv_bwd_bias" else _with_prologue, op, record)


def _with_prologue(prologue_a=None, **fields):
    return ConvProblem(**fields, prologue_a=prologue_a and Prologue.of_record(prologue_a))


FAMILY = {op: (add_arguments, functools.partial(make, op), functools.partial(_from_record, op)) for op in OUTPUT}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""
FAMILY["conv_bwd_bias"] = add_bias_arguments, make_bias, functools.partial(_from_record, "conv_bwd_bias")

SMALL = {op: tuple(f"{words} {dtype}" for dtype in ("f32", "bf16", "f16", "f64") for words in
                   ("1x16x5x6 k24 3x3 p1 nhwc", "2x6x5x6 k10 3x3 s2 p1 g2 nchw")) for op in OUTPUT}
"""Operation -> problems on which ``python -m dnnkern check`` tries every algorithm."""
SMALL["conv_fwd"] += ("1x16x5x6 k24 3x3 p1 nhwc i8", "1x16x5x6 k24 3x3 p1 nhwc e4m3")
SMALL["conv_bwd_bias"] = tuple(f"2x24x9x8 {layout} {dtype}" for dtype in ("f32", "bf16", "f16", "f64") for layout in ("nchw", "nhwc"))
