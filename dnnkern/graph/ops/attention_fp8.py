"""Attention of 8-bit floats with factors, and the largest magnitudes of which later factors are made."""
import math
from types import SimpleNamespace

from ...host.products import FP8
from .._enums import DTYPE, data_type, diagonal_alignment
from .._errors import InvalidValue, cudnnGraphNotSupportedError
from .._infer import row_major
from ._define import operation
from .attention import forward_node, infer_forward, lower_forward

FACTORS = {"Descale_Q": "scale_q", "Descale_K": "scale_k", "Descale_V": "scale_v", "Descale_S": "descale_s", "Scale_S": "scale_s",
           "Scale_O": "scale_o"}
"""Ports of factors: {port: the array's name in launches}."""
MAXIMA = {"Amax_S": "amax_s", "Amax_O": "amax_o"}
BYTES = tuple(name for name, dtype in DTYPE.items() if dtype in FP8)
"""Names of the types that operands may have."""


def _one_name(function, a, *pairs):
    """The arguments whose names differ from `sdpa`'s, under those: of a pair one is given at most."""
    for name, of_sdpa in pairs:
        given = getattr(a, name)
        if given is not None:
            if getattr(a, of_sdpa) is not None:
                raise InvalidValue(f"{function}: got {name} and {of_sdpa}, which are the same; expected one of them")
            setattr(a, of_sdpa, given)


@operation(outputs="O Stats Amax_S Amax_O Max Sum_exp RNG_DUMP", given="Max Sum_exp RNG_DUMP", tag="SDPA_FP8_FWD")
def sdpa_fp8(q, k, v, descale_q, descale_k, descale_v, descale_s, scale_s, scale_o, is_inference=None, attn_scale=None, bias=None,
             use_alibi_mask=False, use_padding_mask=False, seq_len_q=None, seq_len_kv=None, use_causal_mask=False,
             use_causal_mask_bottom_right=False, sliding_window=None, diagonal_alignment=diagonal_alignment.TOP_LEFT, left_bound=None,
             right_bound=None, dropout=None, rng_dump=None, paged_attention_k_table=None, paged_attention_v_table=None,
             paged_attention_max_seq_len_kv=None, compute_data_type=data_type.NOT_SET, name="", fn=None, generate_stats=None,
             score_max=None, score_sum_exp=None, sink_token=None, sliding_window_length=None, diagonal_band_left_bound=None,
             diagonal_band_right_bound=None):
    """Scaled dot-product attention of 8-bit floats: q (B, H, S, D), k and v (B, G, N, ...) of one type, FP8_E4M3 or FP8_E5M2.

    In float32, P being the probabilities, after dropout::

        P = softmax(attn_scale * descale_q * descale_k * q @ k.T, biased, masked)           amax_s = max P
        O = scale_s * descale_s * descale_v * P @ v                                         amax_o = max abs(O)
        o = scale_o * O, rounded to its type; of 8 bits it saturates

    Parameters
    ----------
    descale_q, descale_k, descale_v, descale_s, scale_s, scale_o : tensor
        One positive FLOAT each, in memory or by value.
    sliding_window, left_bound, right_bound
        `sdpa`'s `sliding_window_length`, `diagonal_band_left_bound` and `diagonal_band_right_bound`, whose names do as well.
    fn
        None: the scores of 8-bit floats have no program of the caller's.
    is_inference, generate_stats, attn_scale, bias, dropout, ...
        As `sdpa`'s. A bias and a sink are of 16 bits or more.

    Returns
    -------
    list
        [O, Stats, Amax_S, Amax_O]: O of the graph's type, or FP8_E4M3, FP8_E5M2, HALF, BFLOAT16 or FLOAT as it is set; Stats
        (B, H, S, 1), None without `generate_stats`; Amax_S and Amax_O (1, 1, 1, 1), which are computed only where they are outputs or
        something reads them. All FLOAT.

    Notes
    -----
    cuDNN rounds ``P * scale_s`` to 8 bits. Kernels on tensor cores round each row's P relative to its largest, to 4 significant bits in
    FP8_E4M3 or to 11 in float16: no `scale_s` saturates there, so the factors of P are one factor of O. Rows past a length have no part
    in the maxima, which are the same in every run.
    """
    a = SimpleNamespace(**locals(), score_mod=None)
    if fn is not None:
        raise cudnnGraphNotSupportedError(f"sdpa_fp8 node {name!r}: got fn; expected None: scores of 8-bit floats have no program")
    factors = dict(zip(FACTORS, (descale_q, descale_k, descale_v, descale_s, scale_s, scale_o)))
    for port, factor in factors.items():
        if factor is None:
            raise InvalidValue(f"sdpa_fp8: {port.lower()} is None; expected a tensor of one FLOAT")
    _one_name("sdpa_fp8", a, ("sliding_window", "sliding_window_length"), ("left_bound", "diagonal_band_left_bound"),
              ("right_bound", "diagonal_band_right_bound"))
    return forward_node("sdpa_fp8", a, factors)


@sdpa_fp8.infer
def _(node):
    for port in FACTORS:
        dim = node.dim(port)
        node.expect(math.prod(dim) == 1, port, f"dims {dim}", "one element")
    infer_forward(node)
    for port in MAXIMA:
        node.result(port, (1, 1, 1, 1), row_major, dtype=data_type.FLOAT)
    types = [node.inputs[port]._type for port in "QKV"]
    for port, of in zip("QKV", types):
        node.expect(of.name in BYTES and of is types[0], port, f"type {of.name}", f"{' or '.join(BYTES)}, the same of q, k and v",
                    cudnnGraphNotSupportedError)


@sdpa_fp8.lower
def _(part):
    factors = {name: part.converted(part.input(port), "float32").view((1,), (1,)) for port, name in FACTORS.items()}
    maxima = {name: part.output(port, always=False) for port, name in MAXIMA.items()}
    lower_forward(part, part.input("Q").dtype, part.output("O").dtype, factors,
                  {name: None if r is None else r.view((1,), (1,)) for name, r in maxima.items()})


@operation(outputs="dQ dK dV Amax_dQ Amax_dK Amax_dV Amax_dP", tag="SDPA_FP8_BWD")
def sdpa_fp8_backward(q, k, v, o, dO, stats, descale_q, descale_k, descale_v, descale_o, descale_dO, descale_s, descale_dP, scale_s,
                      scale_dQ, scale_dK, scale_dV, scale_dP, attn_scale=None, use_padding_mask=False, seq_len_q=None, seq_len_kv=None,
                      use_causal_mask=False, use_causal_mask_bottom_right=False, diagonal_alignment=diagonal_alignment.TOP_LEFT,
                      left_bound=None, right_bound=None, use_deterministic_algorithm=False, dropout=None,
                      compute_data_type=data_type.NOT_SET, name="", sink_token=None, dSink_token=None):
    """Not supported: `validate` raises cudnnGraphNotSupportedError. Gradients of attention are of 16 bits and more: `sdpa_backward`."""
    return {"Q": q, "K": k, "V": v, "O": o, "dO": dO, "Stats": stats}, {}


@sdpa_fp8_backward.infer
def _(node):
    node.refuse("dO", "gradients of 8-bit floats are not supported; expected sdpa_backward, of operands of 16 bits or more")
