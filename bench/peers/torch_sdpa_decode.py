"""PyTorch's attention of one row to full caches, by the first of its backends that can; it has no pages."""
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ._torch_moves import NAME, make_peer  # noqa: F401

BACKENDS = [SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]


def make(case, operands, clock):
    """The case in PyTorch; None where it lacks an option."""
    p = case.problem
    return None if p.page_table is not None or p.left >= 0 or p.softcap or p.sink is not None or p.rows > 1 else make_peer(
        plain_call_on, "o", case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return plain_call_on(case.problem, arrays)


def plain_call_on(p, t):
    """The call of a problem; the result in the layout of the operands."""
    q, k, v = (t[n] if p.layout == "BHSD" else t[n].transpose(1, 2) for n in ("q", "k_cache", "v_cache"))

    def call():
        with sdpa_kernel(BACKENDS):
            o = F.scaled_dot_product_attention(q, k, v, scale=p.scale, enable_gqa=p.group > 1)
        return o if p.layout == "BHSD" else o.transpose(1, 2)
    return call
