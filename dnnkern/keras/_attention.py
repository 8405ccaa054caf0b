"""Attention: Keras copies queries, keys and values, and repeats the heads of grouped keys."""
import torch
import torch.nn.functional as F

from ._replace import replaces
from ._tensors import not_floating, value as tensor


def _unsupported(query, key, value, bias=None, mask=None, scale=None, is_causal=False, flash_attention=None, attn_logits_soft_cap=None):
    if why := not_floating(query) or not_floating(key) or not_floating(value):
        return why
    if not query.dim() == key.dim() == value.dim() == 4:
        return f"queries of {query.dim()} dimensions"
    if query.dtype is not key.dtype or query.dtype is not value.dtype:
        return f"queries are {query.dtype}, keys {key.dtype}, values {value.dtype}"
    if query.shape[2] % key.shape[2] or bias is not None and mask is not None:
        return "a bias and a mask" if bias is not None else f"{query.shape[2]} heads of queries, {key.shape[2]} of keys"
    if flash_attention or attn_logits_soft_cap is not None:
        return "flash_attention=True" if flash_attention else "attn_logits_soft_cap"
    return None


@replaces("dot_product_attention", _unsupported, module="keras.src.backend.torch.nn")
def attention(query, key, value, bias=None, mask=None, scale=None, is_causal=False, flash_attention=None, attn_logits_soft_cap=None):
    """``scaled_dot_product_attention`` of views with heads second."""
    added = _added(query, key, bias, mask, is_causal)
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=added, is_causal=is_causal and mask is None, scale=scale,
                                       enable_gqa=q.shape[1] != k.shape[1])
    return y.transpose(1, 2)


def _added(query, key, bias, mask, is_causal):
    """What is added to the scores. Keras masks by a large number: a query without a key has the mean of all values."""
    if mask is None:
        return tensor(bias, query.dtype)
    mask = tensor(mask, "bool")
    if is_causal:
        mask = mask & torch.ones(query.shape[1], key.shape[1], dtype=torch.bool, device=mask.device).tril()
    least = -0.7 * (65500.0 if query.dtype is torch.float16 else 3.38953e38)
    return torch.where(mask, 0.0, torch.tensor(least, dtype=query.dtype, device=mask.device))
