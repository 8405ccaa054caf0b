"""Attention and rotary embeddings."""
import numpy as np

from .._errors import Refused
from .._table import rule
from .._values import FLOATS, Value
from .pointwise import only


@rule("Attention", (23, 24, 25), "`sdpa_fwd`, `concat`")
def attention(node, q, k, v, mask=None, past_k=None, past_v=None, lengths=None):
    """Grouped heads, masks, causal masks and windows after what is in the cache."""
    only((q, k, v, past_k, past_v), FLOATS)
    if node.is_wanted(3):
        raise Refused("qk_matmul_output, which is never in memory here")
    flat = q.ndim == 3
    if flat:
        heads, groups = node.attribute("q_num_heads"), node.attribute("kv_num_heads")
        q = q.reshape(*q.shape[:2], heads, q.shape[2] // heads)
        k, v = (t.reshape(*t.shape[:2], groups, t.shape[2] // groups) for t in (k, v))
    layout, keys = ("BSHD", 1) if flat else ("BHSD", 2)
    presents = []
    for new, past in ((k, past_k), (v, past_v)):  # present keys and values are BHSD
        if flat and (past is not None or node.is_wanted(1)):
            new = node.call("transpose", new, (0, 2, 1, 3))
        presents.append(new if past is None else node.call("concat", [past, new], 2))
    if flat and past_k is not None:
        q, layout, keys = node.call("transpose", q, (0, 2, 1, 3)), "BHSD", 2
    if layout == "BHSD":
        k, v = presents
    options = _window(node, q.shape[keys], k.shape[keys], 0 if past_k is None else past_k.shape[2], lengths, mask is not None)
    if mask is not None:
        options["mask" if mask.dtype == "bool" else "bias"] = _padded(node, mask, k.shape[keys], q)
    softcap = float(node.attribute("softcap", 0.0))
    y = node.call("sdpa_fwd", q, k, v, scale=node.attribute("scale"), softcap=softcap, layout=layout, **options)
    if flat:
        y = node.call("transpose", y, (0, 2, 1, 3)) if layout == "BHSD" else y
        y = y.reshape(*y.shape[:2], y.shape[2] * y.shape[3])
    return y, *presents


def _window(node, rows, keys, before, lengths, masked):
    """Causal mask and window as `sdpa_fwd` has them: query i is at the key i + `before`; by lengths the last query is at the last key."""
    causal, left, right = (node.attribute(name, d) for name, d in (("is_causal", 0), ("left_window_size", -1), ("right_window_size", -1)))
    options = {"causal": bool(causal), "window": (left, right)}
    if lengths is not None:
        return {**options, "align": "bottom_right", "seq_len_kv": Value(np.asarray(lengths.host(), np.int32))}
    if before in (0, keys - rows) or not (causal or left >= 0 or right >= 0):
        return {**options, "align": "bottom_right" if before else "top_left"}
    if left < 0:
        return {"align": "top_left", "causal": False, "window": (-1, before if causal else before + right)}
    if masked:
        raise Refused(f"a mask, and a window of {rows} queries after {before} of {keys} keys")
    return {"mask": node.once(("window", rows, keys, before), (), lambda: Value(_band(rows, keys, before, left, 0 if causal else right)))}


def _band(rows, keys, before, left, right):
    """The mask of a window, where it begins neither at the first key nor ends at the last."""
    distance = np.arange(keys) - (np.arange(rows)[:, None] + before)
    return (distance >= -left) & ((distance <= right) if right >= 0 else True)


def _padded(node, mask, keys, q):
    """A mask as long as the keys, of at least two dimensions; those past its end are masked."""
    if mask.dtype != "bool" and mask.dtype != q.dtype:
        raise Refused(f"a mask of {mask.dtype}")
    missing = keys - mask.shape[-1]
    if missing > 0:
        pads = [(0, 0)] * (mask.ndim - 1) + [(0, missing)]
        mask = node.call("pad", mask.viewed("uint8"), pads).viewed("bool") if mask.dtype == "bool" else \
            node.call("pad", mask, pads, value=-np.inf)
    return mask if mask.ndim > 1 else mask.reshape(1, mask.shape[0])


@rule("RotaryEmbedding", (23,), "`rope_fwd`, `embedding_fwd`")
def rotary(node, x, cos, sin, positions=None):
    """With angles by position, or of given positions."""
    only((x, cos, sin), FLOATS)
    shape = x.shape
    if x.ndim == 3:
        heads = node.attribute("num_heads")
        x = x.reshape(*shape[:2], heads, shape[2] // heads)
    if positions is not None:
        cos, sin = (node.call("embedding_fwd", table, positions) for table in (cos, sin))
    axis = 2 if len(shape) == 3 else 1  # of the heads, to which angles broadcast
    cos, sin = (t.reshape(*t.shape[:axis], 1, *t.shape[axis:]) for t in (cos, sin))
    rotated = node.attribute("rotary_embedding_dim", 0)
    if rotated and rotated // 2 != cos.shape[-1]:
        raise Refused(f"rotary_embedding_dim {rotated} with {cos.shape[-1]} angles")
    return node.call("rope_fwd", x, cos, sin, interleaved=bool(node.attribute("interleaved", 0))).reshape(*shape)
