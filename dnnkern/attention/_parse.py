"""Attention in words, for the command line: ``4x16x4096x128 bf16 --causal``, ``8x32x2048x128 bf16 --kv-heads 8 --layout thd``; a cache
``64x32x8192x128 bf16 --kv-heads 8 --page 64``; rotary embeddings ``4x16x4096x128 bf16 --pairs 64``."""
from dataclasses import replace

from ..device.index import ceil_div
from ..host.products import default_output
from ..host.tensor import Tensor
from ..host.words import addend_dtype, check_sizes, like, new_words, taken
from ..sketch import problem
from ._checks import AMAX, FACTORS, SCALES

words, FAMILY, SMALL, parse_problem = new_words()
_OF = {"full": (1, 1, 1, 1), "heads": (0, 1, 1, 1), "pairs": (0, 0, 1, 1), "keys": (1, 0, 0, 1)}
_SHARED = {"choices": _OF, "help": "one per score; shared by batches; by batches and heads; per key only"}
_ONE = (1,), "float32"
_SMALL = ("1x2x9x8 f32 --causal", "2x4x7x16 bf16 --kv-heads 2 --keys 12 --causal --bottom-right", "2x2x6x8 f16 --layout thd --window=3,-1",
          "1x2x8x5 f64 --bias full --softcap 2 --dropout 0.2", "2x2x5x8 f32 --layout bshd --alibi --sink --lengths",
          "2x2x9x8 bf16 --mask pairs --causal", "2x2x9x8 f16 --ragged --causal", "2x2x9x8 f32 --dropout-mask pairs")
_FORWARD = ("2x2x9x8 bf16 --page 4 --keys 14", "2x2x9x8 f32 --stats --lse", "1x1x140x8 bf16 --block-mask",
            "2x2x70x64 e4m3 --scales --causal --quantized", "1x2x20x32 e5m2 --kv-heads 1 --keys 40 --lse --out-dtype f32")


def _of_scores(word, scores, dtype):
    """An array that has an element for what a word of `_OF` says."""
    return word and ([n if all_of else 1 for n, all_of in zip(scores, _OF[word])], dtype)


def _array(layout, dtype, images, heads, rows, elements):
    shapes = {"BSHD": (images, rows, heads, elements), "THD": (images * rows, heads, elements)}
    return shapes.get(layout, (images, heads, rows, elements)), dtype


@words("sdpa_fwd", "sdpa_bwd", small={"sdpa_fwd": (*_SMALL, *_FORWARD), "sdpa_bwd": _SMALL})
def _sdpa(op, shape, dtype, *, kv_heads=None, keys=None, value_size=None, bottom_right=False, bias: _SHARED = None, mask: _SHARED = None,
          sink=False, lengths=False, ragged=False, dropout_mask: _SHARED = None, page=None, block_mask=False, stats=False, lse=False,
          scales=False, quantized=False, **options):
    check_sizes(op, shape, "batch x heads x rows x elements")
    batch, heads, rows, d = shape
    keys, kv_heads, e = (other if given is None else given for given, other in ((keys, rows), (kv_heads, heads), (value_size, d)))
    layout = options["layout"] = "THD" if ragged else options["layout"]
    scores, addend, pages = (batch, heads, rows, keys), addend_dtype(default_output(dtype)), page and ceil_div(keys, page)
    stored = "BSHD" if page and layout == "THD" else layout, dtype, batch * (pages or 1), kv_heads, page or keys
    offsets, begins, of_table = ((batch + 1,), "int32"), ragged and ((batch + 1,), "int64"), page and ((batch, pages), "int32")
    optional = {
        "bias": _of_scores(bias, scores, addend), "mask": _of_scores(mask, scores, "bool"), "sink": sink and ((heads,), addend),
        "dropout_mask": _of_scores(dropout_mask, scores, addend), "max_seq_len_q": ragged and rows, "return_stats": stats,
        "block_mask": block_mask and ((batch, heads, ceil_div(rows, 128), ceil_div(keys, 1024)), "uint8"),
        "max_seq_len_kv": (ragged or page) and keys, "align": bottom_right and "bottom_right", "page_table_k": of_table,
        "page_table_v": of_table, "ragged_q": begins, "ragged_o": begins, "ragged_k": not page and begins, "ragged_v": not page and begins,
        **dict.fromkeys(("seq_len_q", "seq_len_kv"), (lengths or ragged or page) and ((batch,), "int32")),
        **dict.fromkeys(("cu_seqlens_q", "cu_seqlens_kv"), layout == "THD" and not ragged and offsets),
        **dict.fromkeys(SCALES, scales and _ONE)}
    given = {"q": _array(layout, dtype, batch, heads, rows, d), "k": _array(*stored, d), "v": _array(*stored, e), **options,
             **{name: value for name, value in optional.items() if value}}
    found = problem("sdpa_fwd", **taken("sdpa_fwd", {**given, "return_lse": lse or op == "sdpa_bwd"}))
    if op == "sdpa_bwd":
        found = problem(op, do=like(found.o), o=like(found.o), lse=like(found.lse), **{**given, "sink_gradient": sink})
    return replace(found, **dict.fromkeys((*FACTORS, *AMAX), Tensor.packed(*_ONE))) if quantized else found  # which graphs alone have


@words("sdpa_decode", small=(
    "2x4x20x16 f32 --kv-heads 2", "2x4x17x8 bf16 --kv-heads 1 --page 4 --window 9", "1x2x9x5 f64 --rows 2 --softcap 2 --sink",
    "3x2x12x8 f16 --layout bshd --page 16 --lse", "2x4x20x16 bf16 --bias heads", "3x4x12x8 f32 --rows 2 --layout thd --lse",
    "2x4x20x32 bf16 --cache e4m3 --scales --page 4"))
def _decode(op, shape, dtype, *, kv_heads=None, rows=1, value_size=None, cache=None, scales=False, page=None, bias: _SHARED = None,
            window=-1, sink=False, lse=False, **options):
    check_sizes(op, shape, "batch x heads x rows x elements")
    if page is not None and page < 1:
        raise ValueError(f"{op}: pages of {page} keys; expected one at least")
    (batch, heads, keys, d), layout = shape, options["layout"]
    pages, stored = page and ceil_div(keys, page), ("BHSD" if layout == "BHSD" else "BSHD", cache or dtype)
    stored += batch * pages if page else batch, heads if kv_heads is None else kv_heads, page or keys
    options.update(dict.fromkeys(("scale_k", "scale_v"), _ONE if scales else None), return_lse=lse, window=(window, -1))
    return problem(
        op, q=_array(layout, dtype, batch, heads, rows, d), k_cache=_array(*stored, d),
        v_cache=_array(*stored, d if value_size is None else value_size), seq_len_kv=((batch,), "int32"),
        page_table=page and ((batch, pages), "int32"), cu_seqlens_q=((batch + 1,), "int32") if layout == "THD" else None,
        bias=_of_scores(bias, (batch, heads, rows, pages * page if page else keys), dtype), sink=((heads,), dtype) if sink else None,
        **options)


@words("rope_fwd", "rope_bwd", small=("2x3x5x16 f32", "3x7x20 bf16 --pairs 5 --angles f32", "2x4x3x32 f16 --heads-inside --interleaved",
                                      "4x9x8 f64 --in-place"))
def _rope(op, shape, dtype, *, pairs=None, heads_inside=False, angles=None, in_place=False, **options):
    check_sizes(op, shape[-3:], *["rows x elements"] * (not heads_inside), "heads x rows x elements")
    pairs, x = shape[-1] // 2 if pairs is None else pairs, "x" if op == "rope_fwd" else "dy"
    of_rows = (shape[-3], 1, pairs) if heads_inside else (shape[-2], pairs), angles or dtype
    return problem(op, **{x: (shape, dtype)}, cos=of_rows, sin=of_rows, out=x if in_place else None, **options)


words("sdpa_dropout_mask", small=("2x3x5x19 f32", "1x2x9x64 bf16"))(
    lambda op, shape, dtype: problem(op, x=(shape, dtype), p=0.5, seed=0, out="x"))
