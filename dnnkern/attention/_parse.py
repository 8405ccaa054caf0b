"""Attention in words, for the command line: ``4x16x4096x128 bf16 --causal``, ``8x32x2048x128 bf16 --kv-heads 8 --layout thd``; a cache
``64x32x8192x128 bf16 --kv-heads 8 --page 64``; rotary embeddings ``4x16x4096x128 bf16 --pairs 64``."""
from dataclasses import replace

from ..device.index import ceil_div
from ..host.products import default_output
from ..host.tensor import Tensor
from ..host.words import Words, addend_dtype, dtype_word, like
from ..sketch import problem
from ._checks import AMAX, FACTORS, SCALES

words = Words()
_OF = {"full": (1, 1, 1, 1), "heads": (0, 1, 1, 1), "pairs": (0, 0, 1, 1), "keys": (1, 0, 0, 1)}
_SHARED = {"choices": _OF, "help": "one per score; shared by batches; by batches and heads; per key only"}
_ONE = (1,), "float32"
_SMALL = ("1x2x9x8 f32 --causal", "2x4x7x16 bf16 --kv-heads 2 --keys 12 --causal --bottom-right", "2x2x6x8 f16 --layout thd --window=3,-1",
          "1x2x8x5 f64 --bias full --softcap 2 --dropout 0.2", "2x2x5x8 f32 --layout bshd --alibi --sink --lengths",
          "2x2x9x8 bf16 --mask pairs --causal", "2x2x9x8 f16 --ragged --causal", "2x2x9x8 f32 --dropout-mask pairs")
_FORWARD = ("2x2x9x8 bf16 --page 4 --keys 14", "2x2x9x8 f32 --stats --lse", "1x1x140x8 bf16 --block-mask",
            "2x2x70x64 e4m3 --scales --causal --quantized", "1x2x20x32 e5m2 --kv-heads 1 --keys 40 --lse --out-dtype f32")


def _of_scores(scores, dtype, **shapes):
    """Arguments that have an element for what a word of `_OF` says."""
    return {name: ([n if all_of else 1 for n, all_of in zip(scores, _OF[word])], dtype) for name, word in shapes.items() if word}


def _four(op, shape):
    if len(shape) != 4:
        raise ValueError(f"{op}: {'x'.join(map(str, shape))}; expected batch x heads x rows x elements")
    return shape


def _rows(layout, images, heads, rows, elements):
    """The shape of an array in a layout."""
    return {"BHSD": (images, heads, rows, elements), "BSHD": (images, rows, heads, elements), "THD": (images * rows, heads, elements)}[layout]


@words("sdpa_fwd", "sdpa_bwd", small={"sdpa_fwd": (*_SMALL, *_FORWARD), "sdpa_bwd": _SMALL})
def _sdpa(op, shape, dtype, *, kv_heads: int = None, keys: int = None, value_size: int = None, bottom_right=False, bias: _SHARED = None,
             mask: _SHARED = None, sink=False, lengths=False, ragged=False, dropout_mask: _SHARED = None, page: int = None, block_mask=False,
             stats=False, lse=False, scales=False, quantized=False, **options):
    """SHAPE: batch x heads x queries x head size. --kv-heads, --keys, --value-size: q's by default; --bottom-right: align the last query to
    the last key; --lengths: of each sequence; --ragged: sequences begin at offsets, rows as in thd; --page: keys per page of k and v;
    --block-mask: a bit per block of 128 queries and 128 keys; --scales: fp8 scales of q, k and v; --quantized: and of probabilities and
    result, with their largest magnitudes; --lse, --stats: further results."""
    batch, heads, rows, d = _four(op, shape)
    keys, kv_heads, e = (other if given is None else given for given, other in ((keys, rows), (kv_heads, heads), (value_size, d)))
    layout = options["layout"] = "THD" if ragged else options["layout"]
    addend, pages = addend_dtype(default_output(dtype)), page and ceil_div(keys, page)
    each, more = ((batch,), "int32"), _of_scores((batch, heads, rows, keys), addend, bias=bias, dropout_mask=dropout_mask)
    more |= _of_scores((batch, heads, rows, keys), "bool", mask=mask)
    of_keys = [_rows(layout, batch, kv_heads, keys, n) for n in (d, e)]
    if page:
        of_keys = [_rows("BSHD" if layout == "THD" else layout, batch * pages, kv_heads, page, n) for n in (d, e)]
        more.update(dict.fromkeys(("page_table_k", "page_table_v"), ((batch, pages), "int32")), max_seq_len_kv=keys)
    if lengths or ragged or page:
        more.update(seq_len_q=each, seq_len_kv=each)
    if ragged:
        more.update(dict.fromkeys(("ragged_q", "ragged_o", *(() if page else ("ragged_k", "ragged_v"))), ((batch + 1,), "int64")),
                    max_seq_len_q=rows, max_seq_len_kv=keys)
    elif layout == "THD":
        more.update(dict.fromkeys(("cu_seqlens_q", "cu_seqlens_kv"), ((batch + 1,), "int32")))
    if sink:
        more["sink"] = (heads,), addend
    if block_mask:
        more["block_mask"] = (batch, heads, ceil_div(rows, 128), ceil_div(keys, 1024)), "uint8"
    if scales:
        more.update(dict.fromkeys(SCALES, _ONE))
    if bottom_right:
        options["align"] = "bottom_right"
    q, (k, v) = _rows(layout, batch, heads, rows, d), of_keys
    given = {"q": (q, dtype), "k": (k, dtype), "v": (v, dtype), **options, **more}
    gradients = {name: given.pop(name) or name == "sink_gradient" and sink for name in ("bias_gradient", "sink_gradient") if name in given}
    given.update({f"return_{name}": True for name, there in (("lse", lse or op == "sdpa_bwd"), ("stats", stats)) if there})
    found = problem("sdpa_fwd", **given)
    if op == "sdpa_bwd":
        del given["return_lse"]
        found = problem(op, do=like(found.o), o=like(found.o), lse=like(found.lse), **given, **gradients)
    return replace(found, **dict.fromkeys((*FACTORS, *AMAX), Tensor.packed(*_ONE))) if quantized else found  # which graphs alone have


@words("sdpa_decode", small=(
    "2x4x20x16 f32 --kv-heads 2", "2x4x17x8 bf16 --kv-heads 1 --page 4 --window 9", "1x2x9x5 f64 --rows 2 --softcap 2 --sink",
    "3x2x12x8 f16 --layout bshd --page 16 --lse", "2x4x20x16 bf16 --bias heads", "3x4x12x8 f32 --rows 2 --layout thd --lse",
    "2x4x20x32 bf16 --cache e4m3 --scales --page 4"))
def _decode(op, shape, dtype, *, kv_heads: int = None, rows=1, value_size: int = None, cache: dtype_word = None, scales=False,
            page: int = None, bias: _SHARED = None, window=-1, sink=False, lse=False, **options):
    """SHAPE: batch x heads x keys per sequence x head size. --kv-heads, --value-size: q's by default; --rows: queries per sequence; --cache:
    the caches' dtype, by default q's; --page: keys per page; --window: keys before its own position that a query attends to."""
    batch, heads, keys, d = _four(op, shape)
    if page is not None and page < 1:
        raise ValueError(f"{op}: pages of {page} keys; expected one at least")
    layout, pages, of = options["layout"], page and ceil_div(keys, page), cache or dtype
    of_cache = [_rows("BHSD" if layout == "BHSD" else "BSHD", batch * pages if page else batch, heads if kv_heads is None else kv_heads,
                      page or keys, n) for n in (d, d if value_size is None else value_size)]
    more = _of_scores((batch, heads, rows, pages * page if page else keys), addend_dtype(dtype), bias=bias)
    if page:
        more["page_table"] = (batch, pages), "int32"
    if layout == "THD":
        more["cu_seqlens_q"] = (batch + 1,), "int32"
    if sink:
        more["sink"] = (heads,), dtype
    if scales:
        more.update(scale_k=_ONE, scale_v=_ONE)
    return problem(op, q=(_rows(layout, batch, heads, rows, d), dtype), k_cache=(of_cache[0], of), v_cache=(of_cache[1], of),
                   seq_len_kv=((batch,), "int32"), window=(window, -1), **{**options, **more, "return_lse": lse})


@words("rope_fwd", "rope_bwd", small=("2x3x5x16 f32", "3x7x20 bf16 --pairs 5 --angles f32", "2x4x3x32 f16 --heads-inside --interleaved",
                                      "4x9x8 f64 --in-place"))
def _rope(op, shape, dtype, *, pairs: int = None, heads_inside=False, angles: dtype_word = None, in_place=False, **options):
    """SHAPE: batch x heads x rows x head size, or fewer; with --heads-inside batch x rows x heads x head size. --pairs: rotated ones per row,
    by default all; --angles: the dtype of cosines and sines."""
    if len(shape) < 2 + heads_inside:
        raise ValueError(f"{op}: {'x'.join(map(str, shape))}; expected {'three' if heads_inside else 'two'} dimensions at least")
    pairs, x = shape[-1] // 2 if pairs is None else pairs, "x" if op == "rope_fwd" else "dy"
    turned = (shape[-3], 1, pairs) if heads_inside else (shape[-2], pairs), angles or dtype
    return problem(op, **{x: (shape, dtype)}, cos=turned, sin=turned, out=x if in_place else None, **options)


@words("sdpa_dropout_mask", small=("2x3x5x19 f32", "1x2x9x64 bf16"))
def _dropout_mask(op, shape, dtype):
    """SHAPE: batch x heads x queries x keys."""
    return problem(op, x=(shape, dtype), p=0.5, seed=0, out="x")


FAMILY, SMALL, parse_problem = words.family, words.small, words.parse
