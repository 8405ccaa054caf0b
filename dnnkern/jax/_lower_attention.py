"""`jax.nn.dot_product_attention` as `sdpa_fwd`, above JAX's operations: its gradient is `sdpa_bwd`."""
import jax
import jax.numpy as jnp
import numpy as np
from jax._src.nn import functions

from .. import NotSupported
from ._functions import compute
from ._refused import Refused
from ._status import record
from ._xla import PLATFORM

_NAME = "_dot_product_attention_xla"
_ERRORS = Refused, NotSupported, ValueError, TypeError
_theirs = getattr(functions, _NAME)


def install(on):
    """Replace JAX's function, or put it back."""
    setattr(functions, _NAME, _attention if on else _theirs)


def _attention(query, key, value, bias, mask, is_causal, scale, q_seqlen, kv_seqlen, local_window_size, return_residual=False):
    try:
        return _ours(query, key, value, bias, mask, is_causal, scale, q_seqlen, kv_seqlen, local_window_size, return_residual)
    except _ERRORS as error:
        record("dot_product_attention").refuse(str(error))
    return _theirs(query, key, value, bias, mask, is_causal, scale, q_seqlen, kv_seqlen, local_window_size, return_residual)


def _ours(q, k, v, bias, mask, is_causal, scale, q_seqlen, kv_seqlen, window, return_residual):
    if {"gpu": "cuda"}.get(jax.default_backend(), jax.default_backend()) != PLATFORM:
        raise Refused(f"platform {jax.default_backend()}")
    if return_residual:
        raise Refused("return_residual")
    dtype = np.dtype(q.dtype).name
    if dtype not in ("float32", "float64", "float16", "bfloat16") or not q.dtype == k.dtype == v.dtype:
        raise Refused(f"dtypes {q.dtype}, {k.dtype}, {v.dtype}")
    arrays = {"q": q, "k": k, "v": v}
    if bias is not None:
        arrays["bias"] = bias.astype(q.dtype)
    if mask is not None:
        arrays["mask"] = mask
    if q_seqlen is not None:
        arrays["seq_len_q"] = jnp.asarray(q_seqlen, jnp.int32)
    if kv_seqlen is not None:
        arrays["seq_len_kv"] = jnp.asarray(kv_seqlen, jnp.int32)
    how = {"scale": float(scale), "causal": bool(is_causal), "layout": "BSHD"}
    if window is not None:
        how["window"] = tuple(int(n) for n in window)
    return compute("sdpa_fwd", arrays, "dot_product_attention", **how)
