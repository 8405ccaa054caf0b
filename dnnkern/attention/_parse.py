"""Attention in words, for the command line: ``4x16x4096x128 bf16 --causal``, ``8x32x2048x128 bf16 --kv-heads 8 --layout thd``; a cache
``64x32x8192x128 bf16 --kv-heads 8 --page 64``; rotary embeddings ``4x16x4096x128 bf16 --pairs 64``."""
import argparse
import functools
from dataclasses import replace

from ..host.products import default_output
from ..host.tensor import Tensor
from ..host.words import WordParser, addend_dtype, dtype_word, problem_from_record
from ..host.words import sizes_word
from ._checks import AMAX, FACTORS, SCALES
from ._calls import BACKWARD_MORE, FORWARD_MORE, make_backward, make_forward
from ._layout import LAYOUTS
from ._problem import SdpaGradientProblem, SdpaProblem
from .decode._problem import DecodeProblem, make_decode
from .dropout_mask._problem import OP as DROPOUT_MASK
from .dropout_mask._problem import DropoutMaskProblem, make_dropout_mask
from .rope._problem import ROPES, RopeProblem, make_rope

PROBLEMS = {"sdpa_fwd": SdpaProblem, "sdpa_bwd": SdpaGradientProblem, "sdpa_decode": DecodeProblem, DROPOUT_MASK: DropoutMaskProblem,
            **dict.fromkeys(ROPES, RopeProblem)}
BIASES = {"full": (1, 1, 1, 1), "heads": (0, 1, 1, 1), "pairs": (0, 0, 1, 1), "keys": (1, 0, 0, 1)}


def window_word(text):
    """A window: two integers."""
    try:
        left, right = (int(word) for word in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not LEFT,RIGHT, -1 for no bound") from None
    return left, right


def add_arguments(op, parser):
    """The words that describe an attention or its gradients."""
    parser.add_argument("shape", type=sizes_word, help="batch x heads x queries x head size: 4x16x4096x128")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("--kv-heads", type=int, help="heads of k and v; default: q's")
    parser.add_argument("--keys", type=int, help="number of keys; default: that of queries")
    parser.add_argument("--value-size", type=int, help="head size of v; default: q's")
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--bottom-right", action="store_true", help="align the last query to the last key")
    parser.add_argument("--window", type=window_word, default=(-1, -1), metavar="LEFT,RIGHT", help="--window=1024,-1")
    parser.add_argument("--bias", choices=BIASES, help="one bias per score; shared by batches; by batches and heads; per key only")
    parser.add_argument("--mask", choices=BIASES, help="a boolean mask, of the same shapes")
    parser.add_argument("--alibi", action="store_true")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--softcap", type=float, default=0.0)
    parser.add_argument("--sink", action="store_true")
    parser.add_argument("--lengths", action="store_true", help="lengths of each sequence's queries and keys")
    parser.add_argument("--scale", type=float)
    parser.add_argument("--layout", type=str.upper, choices=LAYOUTS, default="BHSD")
    parser.add_argument("--ragged", action="store_true", help="sequences begin at offsets; rows as in thd")
    parser.add_argument("--dropout-mask", choices=BIASES, help="what probabilities are multiplied by, of the shapes of a bias")
    if op == "sdpa_fwd":
        parser.add_argument("--page", type=int, help="keys per page of k and v; default: no pages")
        parser.add_argument("--block-mask", action="store_true", help="a bit per block of 128 queries and 128 keys")
        parser.add_argument("--stats", action="store_true", help="also return the largest score and the sum of exponentials of each row")
        parser.add_argument("--lse", action="store_true", help="also return the log-sum-exp")
        parser.add_argument("--out-dtype", type=dtype_word, help="output dtype for fp8; default: bf16")
        parser.add_argument("--scales", action="store_true", help="fp8 scales of q, k and v")
        parser.add_argument("--quantized", action="store_true", help="fp8 scales of probabilities and result, and their largest magnitudes")


def of_scores(shape, full, dtype):
    """The tensor that has an element for what a word of `BIASES` says, of scores of a shape; None without a word."""
    return Tensor.packed([n if all_of else 1 for n, all_of in zip(full, BIASES[shape])], dtype) if shape else None


def make(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes, sequences of one length."""
    a = arguments
    if len(a.shape) != 4:
        raise ValueError(f"{op}: {'x'.join(map(str, a.shape))}; expected batch x heads x rows x elements")
    batch, heads, rows, d = a.shape
    keys, kv_heads, e = (given if given is not None else other for given, other in ((a.keys, rows), (a.kv_heads, heads), (a.value_size, d)))

    layout = "THD" if a.ragged else a.layout

    def array(heads, rows, elements, images=batch):
        shape = {"BHSD": (images, heads, rows, elements), "BSHD": (images, rows, heads, elements), "THD": (images * rows, heads, elements)}
        return Tensor.packed(shape["BSHD" if layout == "THD" and images != batch else layout], a.dtype)
    full, addend, page = (batch, heads, rows, keys), addend_dtype(default_output(a.dtype)), getattr(a, "page", None)
    bias, mask = of_scores(a.bias, full, addend), of_scores(a.mask, full, "bool")
    lengths = Tensor.packed((batch,), "int32") if a.lengths or a.ragged or page else None
    offsets = Tensor.packed((batch + 1,), "int32") if layout == "THD" and not a.ragged else None
    sink = Tensor.packed((heads,), addend) if a.sink else None
    given, last = (array(heads, rows, d), array(kv_heads, keys, d), array(kv_heads, keys, e)), {}
    if a.ragged:
        names = ("q", "o", "do", "dq") + (() if page else ("k", "v", "dk", "dv"))
        last = {f"ragged_{name}": Tensor.packed((batch + 1,), "int64") for name in names}
    if page:
        table = Tensor.packed((batch, -(-keys // page)), "int32")
        last.update(page_table_k=table, page_table_v=table)
        given = given[0], *(array(kv_heads, page, n, table.size) for n in (d, e))
    if getattr(a, "block_mask", False):
        last["block_mask"] = Tensor.packed((batch, heads, -(-rows // 128), -(-keys // 1024)), "uint8")
    last["dropout_mask"] = of_scores(a.dropout_mask, full, addend)
    more = bias, lengths, lengths, offsets, offsets, sink, mask
    align = "bottom_right" if a.bottom_right else "top_left"
    options = (a.scale, a.causal, align, a.window, a.alibi, a.dropout, a.softcap, layout, rows if a.ragged else 0,
               keys if a.ragged or page else 0)
    if op == "sdpa_fwd":
        scales = [Tensor.packed((1,), "float32") if a.scales else None] * len(SCALES)
        found = make_forward((*given, *more, *scales, None, None, *map(last.get, FORWARD_MORE)), None, a.out_dtype, *options,
                             with_lse=a.lse, with_stats=a.stats, aliases=frozenset())
        return replace(found, **dict.fromkeys((*FACTORS, *AMAX), Tensor.packed((1,), "float32"))) if a.quantized else found
    forward = make_forward((*given, *more, *(None,) * 5, *map(last.get, FORWARD_MORE)), None, None, *options, with_lse=True,
                           aliases=frozenset())
    saved = forward.o, *given, forward.o, forward.lse
    return make_backward((*saved, *more, None, None, *map(last.get, BACKWARD_MORE)), None, *options, with_dbias=bias is not None,
                         with_dsink=a.sink, aliases=frozenset())


def add_decode_arguments(op, parser):
    """The words that describe attention to a cache."""
    parser.add_argument("shape", type=sizes_word, help="batch x heads x keys per sequence x head size: 64x32x8192x128")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("--kv-heads", type=int, help="heads of the caches; default: q's")
    parser.add_argument("--rows", type=int, default=1, help="queries per sequence")
    parser.add_argument("--value-size", type=int, help="head size of v; default: q's")
    parser.add_argument("--cache", type=dtype_word, help="dtype of the caches: q's, or e4m3 or e5m2")
    parser.add_argument("--scales", action="store_true", help="fp8 scales of keys and values")
    parser.add_argument("--page", type=int, help="keys per page; default: no pages")
    parser.add_argument("--bias", choices=BIASES, help="one bias per score; shared by batches; by batches and heads; per key only")
    parser.add_argument("--window", type=int, default=-1, help="keys before its own position that a query attends to")
    parser.add_argument("--softcap", type=float, default=0.0)
    parser.add_argument("--sink", action="store_true")
    parser.add_argument("--lse", action="store_true", help="also return the log-sum-exp")
    parser.add_argument("--scale", type=float)
    parser.add_argument("--layout", type=str.upper, choices=LAYOUTS, default="BHSD", help="thd: packed queries, caches as in bshd")


def make_decode_of(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes; the cache has just the pages of all sequences."""
    a = arguments
    if len(a.shape) != 4:
        raise ValueError(f"{op}: {'x'.join(map(str, a.shape))}; expected batch x heads x keys x elements")
    batch, heads, keys, d = a.shape
    kv_heads, e = (given if given is not None else other for given, other in ((a.kv_heads, heads), (a.value_size, d)))

    def array(images, heads, rows, elements, dtype=a.cache or a.dtype):
        return Tensor.packed((images, heads, rows, elements) if a.layout == "BHSD" else (images, rows, heads, elements), dtype)
    q, offsets = array(batch, heads, a.rows, d, a.dtype), None
    if a.layout == "THD":
        q, offsets = Tensor.packed((batch * a.rows, heads, d), a.dtype), Tensor.packed((batch + 1,), "int32")
    lengths, sink, table, images, rows = Tensor.packed((batch,), "int32"), None, None, batch, keys
    if a.page is not None:
        if a.page < 1:
            raise ValueError(f"{op}: pages of {a.page} keys; expected one at least")
        table = Tensor.packed((batch, -(-keys // a.page)), "int32")
        images, rows = table.size, a.page
    if a.sink:
        sink = Tensor.packed((heads,), a.dtype)
    bias = of_scores(a.bias, (batch, heads, a.rows, table.shape[1] * rows if table else keys), addend_dtype(a.dtype))
    scales = [Tensor.packed((1,), "float32") if a.scales else None] * 2
    given = q, array(images, kv_heads, rows, d), array(images, kv_heads, rows, e)
    return make_decode((*given, lengths, table, sink, bias, offsets, *scales), None, a.scale, (a.window, -1), a.softcap, a.layout,
                       with_lse=a.lse, aliases=frozenset())


def add_rope_arguments(op, parser):
    """The words that describe a rotary embedding or its gradient."""
    parser.add_argument("shape", type=sizes_word, help="shape of x: batch x heads x rows x head size, or fewer dimensions")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")
    parser.add_argument("--pairs", type=int, help="rotated pairs per row; default: all")
    parser.add_argument("--heads-inside", action="store_true", help="the shape is batch x rows x heads x head size")
    parser.add_argument("--interleaved", action="store_true", help="pairs are neighbouring elements")
    parser.add_argument("--angles", type=dtype_word, help="dtype of cosines and sines; default: x's")
    parser.add_argument("--in-place", action="store_true", help="write the result over the input")


def make_rope_of(op, arguments):
    """The problem that parsed words describe: packed arrays, aligned to 16 bytes; angles are of the rows."""
    a = arguments
    if len(a.shape) < 2 + a.heads_inside:
        raise ValueError(f"{op}: {'x'.join(map(str, a.shape))}; expected {'three' if a.heads_inside else 'two'} dimensions at least")
    pairs = a.pairs if a.pairs is not None else a.shape[-1] // 2
    shape = (a.shape[-3], 1, pairs) if a.heads_inside else (a.shape[-2], pairs)
    x, angles = Tensor.packed(a.shape, a.dtype), Tensor.packed(shape, a.angles or a.dtype)
    return make_rope(op, (x, angles, angles), None, a.interleaved, frozenset({"x"} if a.in_place else ()))


def add_dropout_mask_arguments(op, parser):
    """The words that describe a dropout mask."""
    parser.add_argument("shape", type=sizes_word, help="batch x heads x queries x keys: 4x16x1024x1024")
    parser.add_argument("dtype", type=dtype_word, help="dtype: float32, bf16, ...")


def make_dropout_mask_of(op, arguments):
    """The problem that parsed words describe: a packed array, in place."""
    return make_dropout_mask((Tensor.packed(arguments.shape, arguments.dtype),), None, frozenset({"x"}))


def from_record(op, record):
    """The problem of a record; ValueError where it is something else."""
    return problem_from_record(PROBLEMS[op], op, record)


_WORDS = {**dict.fromkeys(PROBLEMS, (add_arguments, make)), **dict.fromkeys(ROPES, (add_rope_arguments, make_rope_of)),
          "sdpa_decode": (add_decode_arguments, make_decode_of), DROPOUT_MASK: (add_dropout_mask_arguments, make_dropout_mask_of)}
FAMILY = {op: tuple(functools.partial(f, op) for f in (*_WORDS[op], from_record)) for op in PROBLEMS}
"""Operation -> what adds its words to a parser, what makes a problem of them, and of a record; the command line reads this."""

_SMALL = ("1x2x9x8 f32 --causal", "2x4x7x16 bf16 --kv-heads 2 --keys 12 --causal --bottom-right", "2x2x6x8 f16 --layout thd --window=3,-1",
          "1x2x8x5 f64 --bias full --softcap 2 --dropout 0.2", "2x2x5x8 f32 --layout bshd --alibi --sink --lengths",
          "2x2x9x8 bf16 --mask pairs --causal", "2x2x9x8 f16 --ragged --causal", "2x2x9x8 f32 --dropout-mask pairs")
_FORWARD = ("2x2x9x8 bf16 --page 4 --keys 14", "2x2x9x8 f32 --stats --lse", "1x1x140x8 bf16 --block-mask")
_BYTES = ("2x2x70x64 e4m3 --scales --causal --quantized", "1x2x20x32 e5m2 --kv-heads 1 --keys 40 --lse --out-dtype f32")
_ROPES = ("2x3x5x16 f32", "3x7x20 bf16 --pairs 5 --angles f32", "2x4x3x32 f16 --heads-inside --interleaved", "4x9x8 f64 --in-place")
_DECODES = ("2x4x20x16 f32 --kv-heads 2", "2x4x17x8 bf16 --kv-heads 1 --page 4 --window 9", "1x2x9x5 f64 --rows 2 --softcap 2 --sink",
            "3x2x12x8 f16 --layout bshd --page 16 --lse", "2x4x20x16 bf16 --bias heads", "3x4x12x8 f32 --rows 2 --layout thd --lse",
            "2x4x20x32 bf16 --cache e4m3 --scales --page 4")
SMALL = {**dict.fromkeys(PROBLEMS, _SMALL), "sdpa_fwd": (*_SMALL, *_FORWARD, *_BYTES), **dict.fromkeys(ROPES, _ROPES),
         "sdpa_decode": _DECODES, DROPOUT_MASK: ("2x3x5x19 f32", "1x2x9x64 bf16")}
"""Problems that ``python -m dnnkern check`` tries."""


def parse_problem(words, op):
    """The problem of `op` a list of words describes; ValueError in one line where they make no sense.

    >>> print(parse_problem("4x16x4096x128 bf16 --kv-heads 4 --causal".split(), "sdpa_fwd"))
    sdpa_fwd b4 h16:4 s4096 d128 bfloat16 BHSD causal top_left
    """
    parser = WordParser(op, add_help=False)
    FAMILY[op][0](parser)
    return FAMILY[op][1](parser.parse_args(list(words)))
