"""Matrix products in words: ``4096x4096x4096 bf16 tn --bias --activation gelu``, for the command line and for lists of shapes; grouped
``8x4096x14336x4096 bf16 nt``: 4096 rows in 8 groups."""
import argparse

from ..device.index import ceil_div
from ..engine.program_words import STEPS, with_program
from ..engine.scales import BLOCK
from ..host.products import default_output
from ..host.words import Words, addend_dtype, dtype_word
from ..sketch import problem

words = Words()
_LAYOUTS, _LAYOUTS_OF_B = ("nn", "nt", "tn", "tt"), ("nn", "nt")
_BIAS = {"nargs": "?", "const": "column", "choices": ("column", "row", "batch-column", "batch-row"),
         "help": "add a vector per column (default) or per row; batch: one per matrix"}
_SIDES = ("none", "tensor", "row", "block"), ("none", "tensor", "column", "block")


def _scales_word(text):
    """What the scales of 8-bit floats are by: tensor, row (and column), block, or two of them, or none: row,tensor."""
    found = {"tensor": "tensor,tensor", "row": "row,column", "block": "block,block"}.get(text, text).split(",")
    if len(found) != 2 or any(word not in known for word, known in zip(found, _SIDES)):
        raise argparse.ArgumentTypeError(f"{text!r} is not tensor, row, block, or one of {', '.join(_SIDES[0])}, a comma, and one of "
                                         f"{', '.join(_SIDES[1])}")
    return found


def _scales(by, m, n, k, lead=()):
    """The arguments of scales."""
    blocks = ceil_div(k, BLOCK)
    shapes = ({"tensor": (1,), "row": (m, 1), "block": (m, blocks)},
              {"tensor": (1,), "column": (*lead, 1, n), "block": (*lead, blocks, ceil_div(n, BLOCK))})
    return {name: (known[side], "float32") for name, known, side in zip(("scale_a", "scale_b"), shapes, by) if side != "none"}


def _sizes(op, shape, *expected):
    if len(shape) not in map(len, expected):
        raise ValueError(f"{op}: '{'x'.join(map(str, shape))}' is not {' or '.join(map('x'.join, expected))}")
    return shape


@words("matmul", small=("8x8x8 f32", "2x9x5x7 bf16 tn --bias row"))
def _matmul(op, shape, dtype, layout: _LAYOUTS = "nn", *, dtype_b: dtype_word = None, scales: _scales_word = (), bias: _BIAS = None, c=False,
            in_place=False, program: STEPS = (), **options):
    """SHAPE: MxNxK, or BxMxNxK for a batch; t in LAYOUT: the operand is stored transposed; --c: add beta * c; --in-place: to the output."""
    *batch, m, n, k = _sizes(op, shape, "MNK", "BMNK")
    out = options["out_dtype"] or default_output(dtype)
    addend, given = addend_dtype(out), _scales(scales, m, n, k)
    for name, letter in zip("ab", layout):
        options[f"transpose_{name}"] |= letter == "t"
    if bias:
        lead = batch if bias.startswith("batch-") else []
        given["bias"] = ((*lead, m, 1) if bias.endswith("row") else (*lead, 1, n) if lead or "-" in bias else (n,), addend)
    if (c or in_place) and options["beta"]:
        given.update(c=((*batch, m, n), out if in_place else addend), out="c" if in_place else None)
    a, b = ((k, m) if options["transpose_a"] else (m, k)), ((n, k) if options["transpose_b"] else (k, n))
    found = problem(op, a=((*batch, *a), dtype), b=((*batch, *b), dtype_b or dtype), **given, **options)
    return with_program(found, program, (-2,), -1)


@words("grouped_matmul", small=("2x5x4x3 f32", "2x5x4x3 bf16 nt --bias"))
def _grouped(op, shape, dtype, layout: _LAYOUTS_OF_B = "nn", *, dtype_b: dtype_word = None, scales: _scales_word = (), bias=False, **options):
    """SHAPE: GxMxNxK, groups, rows of all groups, columns, k; nt: the matrices are stored transposed; --bias: a vector for each group."""
    groups, m, n, k = _sizes(op, shape, "GMNK")
    options["transpose_b"] |= layout == "nt"
    given = _scales(scales, m, n, k, (groups,))
    if bias:
        given["bias"] = (groups, n), addend_dtype(options["out_dtype"] or default_output(dtype))
    return problem(op, a=((m, k), dtype), b=((groups, *((n, k) if options["transpose_b"] else (k, n))), dtype_b or dtype),
                   group_offsets=((groups + 1,), "int32"), **given, **options)


@words("grouped_matmul_bwd_weights", small=("2x5x4x3 f32",))
def _weights(op, shape, dtype, **options):
    """SHAPE: GxMxNxK, groups, rows of all groups, columns of dy, of a."""
    groups, m, n, k = _sizes(op, shape, "GMNK")
    return problem(op, a=((m, k), dtype), dy=((m, n), dtype), group_offsets=((groups + 1,), "int32"), **options)


FAMILY, SMALL, parse_problem = words.family, words.small, words.parse
