"""Matrix products in words: ``4096x4096x4096 bf16 tn --bias --activation gelu``, for the command line and for lists of shapes; grouped
``8x4096x14336x4096 bf16 nt``: 4096 rows in 8 groups."""
from ..device.index import ceil_div
from ..engine.program_words import STEPS, with_program
from ..engine.scales import BLOCK
from ..host.products import default_output
from ..host.words import addend_dtype, check_sizes, matching, new_words, sizes_word
from ..sketch import problem

_LAYOUTS, _LAYOUTS_OF_B = ("nn", "nt", "tn", "tt"), ("nn", "nt")  # t: stored transposed
_BIAS = {"nargs": "?", "const": "column", "choices": ("column", "row", "batch-column", "batch-row"),
         "help": "add a vector per column (default) or per row; batch: one per matrix"}


def _scales_word(text):
    """What scales of 8-bit floats are by."""
    text = {"tensor": "tensor,tensor", "row": "row,column", "block": "block,block"}.get(text, text)
    return matching("(none|tensor|row|block),(none|tensor|column|block)", text, "tensor, row, block, or one of none, tensor, row, block, a "
                    "comma, and one of none, tensor, column, block").split(",")


words, FAMILY, SMALL, parse_problem = new_words(scales=_scales_word, shape={
    "type": sizes_word, "metavar": "MxNxK", "help": "BxMxNxK for a batch; in groups GxMxNxK: groups, rows of all groups, columns, k"})


def _operands(shape, dtype, dtype_b, scales, options, *, groups=()):
    """Shapes and dtypes of a, b and their scales."""
    *batch, m, n, k = shape[len(groups):]
    a, b = ((k, m) if options.get("transpose_a") else (m, k)), ((n, k) if options["transpose_b"] else (k, n))
    blocks = ceil_div(k, BLOCK)
    shapes = ({"tensor": (1,), "row": (m, 1), "block": (m, blocks)},
              {"tensor": (1,), "column": (*groups, 1, n), "block": (*groups, blocks, ceil_div(n, BLOCK))})
    return {"a": ((*batch, *a), dtype), "b": ((*groups, *batch, *b), dtype_b or dtype),
            **{name: (of[by], "float32") for name, of, by in zip(("scale_a", "scale_b"), shapes, scales or ()) if by != "none"}}


@words("matmul", small=("8x8x8 f32", "2x9x5x7 bf16 tn --bias row"))
def _matmul(op, shape, dtype, layout: _LAYOUTS = "nn", *, dtype_b=None, scales=None, bias: _BIAS = None, c=False,
            in_place=False, program: STEPS = (), **options):
    check_sizes(op, shape, "MxNxK", "BxMxNxK")
    (*batch, m, n, _), out = shape, options["out_dtype"] or default_output(dtype)
    options.update({f"transpose_{name}": letter == "t" or options[f"transpose_{name}"] for name, letter in zip("ab", layout)})
    if bias:
        lead = (*batch, 1) if bias == "batch-column" else batch if bias == "batch-row" else ()
        options["bias"] = ((*lead, m, 1) if bias.endswith("row") else (*lead, n)), addend_dtype(out)
    if (c or in_place) and options["beta"]:
        options.update(c=((*batch, m, n), out if in_place else addend_dtype(out)), out="c" if in_place else None)
    return with_program(problem(op, **_operands(shape, dtype, dtype_b, scales, options), **options), program, (-2,), -1)


@words("grouped_matmul", small=("2x5x4x3 f32", "2x5x4x3 bf16 nt --bias"))
def _grouped(op, shape, dtype, layout: _LAYOUTS_OF_B = "nn", *, dtype_b=None, scales=None, bias=False, **options):
    check_sizes(op, shape, "GxMxNxK")
    options["transpose_b"] |= layout == "nt"
    if bias:
        options["bias"] = (shape[0], shape[2]), addend_dtype(options["out_dtype"] or default_output(dtype))
    return problem(op, **_operands(shape, dtype, dtype_b, scales, options, groups=shape[:1]), group_offsets=((shape[0] + 1,), "int32"),
                   **options)


@words("grouped_matmul_bwd_weights", small=("2x5x4x3 f32",))
def _weights(op, shape, dtype, **options):
    check_sizes(op, shape, "GxMxNxK")
    groups, m, n, k = shape
    return problem(op, a=((m, k), dtype), dy=((m, n), dtype), group_offsets=((groups + 1,), "int32"), **options)
