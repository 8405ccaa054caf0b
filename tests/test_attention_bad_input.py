"""Bad input of attention: errors that name the function and the argument, with nothing written."""
import dataclasses
import functools

import labs
import numpy as np
import pytest
from cases import lay
from labs import array, refused

import dnnkern
from dnnkern.attention._parse import parse_problem
from dnnkern.dispatch import NotSupported
from dnnkern.host.tensor import Tensor

FWD, BWD = dnnkern.sdpa_fwd, dnnkern.sdpa_bwd


def ones(*shape, dtype="float32"):
    return array(np.ones(shape), dtype)


@pytest.mark.parametrize("how, error, words", [
    ({"dropout": 1.0}, ValueError, ["dropout=1.0", "0 to below 1"]), ({"dropout": -0.1}, ValueError, ["dropout=-0.1"]),
    ({"dropout": float("nan")}, ValueError, ["dropout=nan"]), ({"dropout": "half"}, TypeError, ["dropout='half'"]),
    ({"window": (-2, 0)}, ValueError, ["window=(-2, 0)", "-1"]), ({"window": (1, 2, 3)}, TypeError, ["window=(1, 2, 3)", "pair"]),
    ({"window": 5}, TypeError, ["window=5"]), ({"window": (0.5, 1)}, TypeError, ["window[0]=0.5"]),
    ({"window": (2 ** 31, 0)}, ValueError, ["2147483648 on the left"]), ({"causal": 1}, TypeError, ["causal=1"]),
    ({"align": "middle"}, ValueError, ["align='middle'", "'top_left', 'bottom_right'"]), ({"alibi": 2}, TypeError, ["alibi=2"]),
    ({"layout": "SBHD"}, ValueError, ["layout='SBHD'", "'THD'"]), ({"layout": "THD"}, ValueError, ["(2, 4, 6, 8)", "3 dimensions, THD"]),
    ({"scale": float("inf")}, ValueError, ["scale=inf"]), ({"scale": "1"}, TypeError, ["scale='1'"]),
    ({"softcap": -1}, ValueError, ["softcap=-1", "positive"]), ({"seed": 1.5}, TypeError, ["seed=1.5"]),
    ({"seed": 2 ** 64}, ValueError, ["seed=18446744073709551616"]),
    ({"offset": "1"}, TypeError, ["offset='1'", "integer"]), ({"offset": -2 ** 63 - 1}, ValueError, ["offset=-9223372036854775809"])])
def test_parameters(how, error, words):
    q, k, out = ones(2, 4, 6, 8), ones(2, 2, 7, 8), labs.guarded(lay((2, 4, 6, 8), "float32"))
    refused(error, words, FWD, q, k, k, out=out.array, **how)
    refused(error, words, BWD, q, q, k, k, q, ones(2, 4, 6), **how)
    labs.synchronize()
    out.assert_untouched("o")


def test_shapes():
    q, k, out = ones(2, 4, 6, 8), ones(2, 2, 7, 8), labs.guarded(lay((2, 4, 6, 8), "float32"))
    given = {"out": out.array}
    refused(ValueError, ["q has 4 heads", "have 3", "divisor"], FWD, q, ones(2, 3, 7, 8), ones(2, 3, 7, 8), **given)
    refused(ValueError, ["q has 4 heads", "have 0"], FWD, q, ones(2, 0, 7, 8), ones(2, 0, 7, 8), **given)
    refused(ValueError, ["q has 8 elements a head, k has 9"], FWD, q, ones(2, 2, 7, 9), k, **given)
    refused(ValueError, ["q has 0 elements a head"], FWD, ones(2, 4, 6, 0), ones(2, 2, 7, 0), k, **given)
    refused(ValueError, ["batches of 2, 3 and 3"], FWD, q, ones(3, 2, 7, 8), ones(3, 2, 7, 8), **given)
    refused(ValueError, ["k has shape (2, 2, 7, 8)", "v has (2, 2, 6, 8)", "same heads and keys"], FWD, q, k, ones(2, 2, 6, 8), **given)
    refused(ValueError, ["v has shape (2, 2, 7)", "4 dimensions"], FWD, q, k, ones(2, 2, 7), **given)
    refused(ValueError, ["q has shape (4, 6, 8)"], FWD, ones(4, 6, 8), k, k, **given)
    refused(ValueError, ["out (o) has shape (2, 4, 6, 8)", "(2, 4, 6, 5)"], FWD, q, k, ones(2, 2, 7, 5), **given)
    refused(ValueError, ["out has 1 arrays", "o, lse"], FWD, q, k, k, return_lse=True, **given)
    refused(ValueError, ["out (lse) has shape (2, 6)", "(2, 4, 6)"], FWD, q, k, k, return_lse=True, out=(out.array, ones(2, 6)))
    refused(TypeError, ["return_lse=1"], FWD, q, k, k, return_lse=1, **given)
    refused(ValueError, ["same memory as q"], FWD, q, k, k, out=q)
    shared = labs.guarded(lay((2, 4, 6, 8), "float32", expand=(0,))).array
    refused(ValueError, ["share one address"], FWD, q, k, k, out=shared)
    refused(NotSupported, ["algo='fast'", "naive"], FWD, q, k, k, algo="fast", **given)
    labs.synchronize()
    out.assert_untouched("o")


def test_dtypes():
    q, k = ones(2, 4, 6, 8), ones(2, 2, 7, 8)
    refused(TypeError, ["q is int32", "bfloat16"], FWD, ones(2, 4, 6, 8, dtype="int32"), k, k)
    refused(TypeError, ["k is float16, q is float32"], FWD, q, ones(2, 2, 7, 8, dtype="float16"), k)
    refused(TypeError, ["v is float64, q is float32"], FWD, q, k, ones(2, 2, 7, 8, dtype="float64"))
    refused(TypeError, ["v: ", "NoneType"], FWD, q, k, None)
    refused(TypeError, ["out (o) is float16"], FWD, q, k, k, out=ones(2, 4, 6, 8, dtype="float16"))
    refused(TypeError, ["bias is float16", "float32"], FWD, q, k, k, bias=ones(6, 7, dtype="float16"))
    refused(TypeError, ["sink is int32", "float32"], FWD, q, k, k, sink=ones(4, dtype="int32"))
    refused(TypeError, ["seq_len_kv is int64", "int32"], FWD, q, k, k, seq_len_kv=ones(2, dtype="int64"))


def test_bytes():
    """What 8-bit floats may have beside them, and other operands may not."""
    e4m3, e5m2 = "float8_e4m3fn", "float8_e5m2"
    q, k, q8, k8 = ones(2, 4, 6, 8), ones(2, 2, 7, 8), ones(2, 4, 6, 8, dtype=e4m3), ones(2, 2, 7, 8, dtype=e4m3)
    refused(TypeError, ["k is float8_e5m2, q is float8_e4m3fn"], FWD, q8, ones(2, 2, 7, 8, dtype=e5m2), k8)
    refused(TypeError, ["q is float8_e4m3fn", "bfloat16"], BWD, q8, q8, k8, k8, q8, ones(2, 4, 6))
    refused(TypeError, ["scale_k is for operands of float8_e4m3fn", "float32"], FWD, q, k, k, scale_k=ones(1))
    refused(TypeError, ["scale_q is float16", "float32"], FWD, q8, k8, k8, scale_q=ones(1, dtype="float16"))
    refused(TypeError, ["scale_v: got float"], FWD, q8, k8, k8, scale_v=2.0)
    refused(ValueError, ["scale_v has shape (2,)", "one element"], FWD, q8, k8, k8, scale_v=ones(2))
    refused(TypeError, ["out (o) is float64", "bfloat16 or float32"], FWD, q8, k8, k8, out_dtype="float64")
    refused(TypeError, ["out (o) is bfloat16", "asks for float16"], FWD, q8, k8, k8, out=ones(2, 4, 6, 8, dtype="bfloat16"),
            out_dtype="float16")
    refused(TypeError, ["out (o) is float16", "expected float32"], FWD, q, k, k, out_dtype="float16")
    refused(TypeError, ["bias is float8_e4m3fn", "bfloat16 or float32 or float16"], FWD, q8, k8, k8, bias=ones(6, 7, dtype=e4m3))
    refused(TypeError, ["sink is float64"], FWD, q8, k8, k8, sink=ones(4, dtype="float64"))
    assert FWD(q8, k8, k8).dtype == ones(1, dtype="bfloat16").dtype


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_are_checked_on_demand(value, monkeypatch):
    from dnnkern.host import front
    monkeypatch.setattr(front, "CHECKS", frozenset({"values"}))
    q, scale = ones(1, 1, 6, 8, dtype="float8_e4m3fn"), array(np.array([value]))
    refused(ValueError, [f"scale_k is {value}", "positive"], FWD, q, q, q, scale_k=scale)


def test_other_operands():
    q, k, t = ones(2, 4, 6, 8), ones(2, 2, 7, 8), ones(6, 2, 8)
    refused(ValueError, ["bias has shape (7,)", "two to four"], FWD, q, k, k, bias=ones(7))
    refused(ValueError, ["bias has shape (2, 2, 6, 7)", "(2, 4, 6, 7)"], FWD, q, k, k, bias=ones(2, 2, 6, 7))
    for call in (functools.partial(FWD, q, k, k), functools.partial(BWD, q, q, k, k, q, ones(2, 4, 6))):
        refused(TypeError, ["bias is bool", "expected float32", "mask="], call, bias=ones(6, 7, dtype="bool"))
        refused(TypeError, ["mask is float32", "expected bool", "bias"], call, mask=ones(6, 7))
        refused(TypeError, ["mask is uint8", "expected bool"], call, mask=ones(6, 7, dtype="uint8"))
        refused(ValueError, ["mask has shape (7,)", "two to four"], call, mask=ones(7, dtype="bool"))
        refused(ValueError, ["mask has shape (2, 2, 6, 7)", "(2, 4, 6, 7)"], call, mask=ones(2, 2, 6, 7, dtype="bool"))
        refused(TypeError, ["mask: ", "tuple"], call, mask=(True, False))
    refused(ValueError, ["sink has shape (2,)", "(4,)"], FWD, q, k, k, sink=ones(2))
    refused(ValueError, ["seq_len_q has shape (3,)", "(2,)"], FWD, q, k, k, seq_len_q=ones(3, dtype="int32"))
    refused(ValueError, ["seq_len_q has shape (2, 1)"], FWD, q, k, k, seq_len_q=ones(2, 1, dtype="int32"))
    offsets = array((0, 6), "int32")
    refused(ValueError, ["cu_seqlens_q with layout 'BHSD'"], FWD, q, k, k, cu_seqlens_q=offsets)
    refused(ValueError, ["layout 'THD' without cu_seqlens_q"], FWD, t, t, t, layout="THD")
    refused(ValueError, ["layout 'THD' without cu_seqlens_kv"], FWD, t, t, t, layout="THD", cu_seqlens_q=offsets)
    packed = {"layout": "THD", "cu_seqlens_q": offsets, "cu_seqlens_kv": offsets}
    refused(ValueError, ["seq_len_q with layout 'THD'"], FWD, t, t, t, seq_len_q=array((6,), "int32"), **packed)
    refused(ValueError, ["bias with layout 'THD'"], FWD, t, t, t, bias=ones(6, 6), **packed)
    refused(ValueError, ["mask with layout 'THD'"], FWD, t, t, t, mask=ones(6, 6, dtype="bool"), **packed)
    refused(ValueError, ["cu_seqlens_kv has shape (3,)", "(2,)"], FWD, t, t, t, **{**packed, "cu_seqlens_kv": array((0, 3, 6), "int32")})
    refused(ValueError, ["cu_seqlens_q has shape (0,)"], FWD, t, t, t, **{**packed, "cu_seqlens_q": array(np.zeros(0), "int32")})


def test_operands_of_the_gradient():
    q, k, lse = ones(2, 4, 6, 8), ones(2, 2, 7, 8), ones(2, 4, 6)
    refused(TypeError, ["lse: ", "NoneType"], BWD, q, q, k, k, q, None)
    refused(ValueError, ["do has shape (2, 4, 6, 7)", "(2, 4, 6, 8)"], BWD, ones(2, 4, 6, 7), q, k, k, q, lse)
    refused(TypeError, ["do is float64", "float32"], BWD, ones(2, 4, 6, 8, dtype="float64"), q, k, k, q, lse)
    refused(ValueError, ["o has shape (2, 4, 5, 8)"], BWD, q, q, k, k, ones(2, 4, 5, 8), lse)
    refused(ValueError, ["lse has shape (2, 6, 4)", "(2, 4, 6)"], BWD, q, q, k, k, q, ones(2, 6, 4))
    refused(TypeError, ["lse is float64", "float32"], BWD, q, q, k, k, q, ones(2, 4, 6, dtype="float64"))
    refused(TypeError, ["sink_gradient=1"], BWD, q, q, k, k, q, lse, sink=ones(4), sink_gradient=1)
    refused(ValueError, ["sink_gradient=True without a sink"], BWD, q, q, k, k, q, lse, sink_gradient=True)
    refused(ValueError, ["out has 3 arrays", "dq, dk, dv, dsink"], BWD, q, q, k, k, q, lse, sink=ones(4), sink_gradient=True,
            out=(ones(2, 4, 6, 8), ones(2, 2, 7, 8), ones(2, 2, 7, 8)))
    refused(ValueError, ["out (dsink) has shape (2,)", "(4,)"], BWD, q, q, k, k, q, lse, sink=ones(4), sink_gradient=True,
            out=(ones(2, 4, 6, 8), ones(2, 2, 7, 8), ones(2, 2, 7, 8), ones(2)))
    refused(TypeError, ["bias_gradient=None"], BWD, q, q, k, k, q, lse, bias_gradient=None)
    refused(ValueError, ["out has 3 arrays", "dq, dk, dv, dbias"], BWD, q, q, k, k, q, lse, bias=ones(6, 7),
            out=(ones(2, 4, 6, 8), ones(2, 2, 7, 8), ones(2, 2, 7, 8)))
    refused(ValueError, ["out (dv) has shape (2, 2, 6, 8)"], BWD, q, q, k, k, q, lse,
            out=(ones(2, 4, 6, 8), ones(2, 2, 7, 8), ones(2, 2, 6, 8)))


def test_what_seeds_in_memory_must_be():
    q, out = ones(1, 1, 4, 8), labs.guarded(lay((1, 1, 4, 8), "float32"))
    for name, wrong, error, text in (("seed", array([1], "int32"), TypeError, "int32"), ("offset", array([1.0]), TypeError, "float32"),
                                     ("seed", array([1, 2], "int64"), ValueError, "(2,)"),
                                     ("offset", array([], "int64"), ValueError, "(0,)")):
        for p in (0.0, 0.5):
            refused(error, [f"{name} ", text, "one int64"], FWD, q, q, q, dropout=p, out=out.array, **{name: wrong})
            refused(error, [f"{name} ", text, "one int64"], BWD, q, q, q, q, q, ones(1, 1, 4), dropout=p, **{name: wrong})
    labs.synchronize()
    out.assert_untouched("o")


@pytest.mark.parametrize("name, values, words", [
    ("seq_len_q", (3, 7), ["seq_len_q[1] is 7", "0 to 6"]), ("seq_len_kv", (-1, 2), ["seq_len_kv[0] is -1", "0 to 7"]),
    ("cu_seqlens_q", (0, 4, 7), ["cu_seqlens_q[2] is 7", "4 to 6"]), ("cu_seqlens_kv", (0, 5, 3), ["cu_seqlens_kv[2] is 3", "5 to 7"]),
    ("cu_seqlens_q", (1, 4, 6), ["cu_seqlens_q[0] is 1", "expected 0"])])
def test_lengths_are_checked_on_demand(name, values, words, monkeypatch):
    from dnnkern.host import front
    monkeypatch.setattr(front, "CHECKS", frozenset({"values"}))
    packed, given = name.startswith("cu"), {name: array(values, "int32")}
    if packed:
        given = {"cu_seqlens_q": array((0, 3, 6), "int32"), "cu_seqlens_kv": array((0, 3, 7), "int32"), "layout": "THD", **given}
    q, k = (array(np.ones((n, 2, 4) if packed else (2, 2, n, 4))) for n in (6, 7))
    out = labs.guarded(lay((6, 2, 4) if packed else (2, 2, 6, 4), "float32"))
    refused(ValueError, words, FWD, q, k, k, out=out.array, **given)
    out.assert_untouched("o")
    o = array(np.ones((6, 2, 4) if packed else (2, 2, 6, 4)))
    refused(ValueError, words, BWD, o, q, k, k, o, array(np.ones((2, 6) if packed else (2, 2, 6))), **given)


@pytest.mark.parametrize("words, name, t, error, message", [
    ("1x2x9x16 bf16", "scale_o", ((1,), "float32"), TypeError, "scale_o is for operands of float8_e4m3fn or .*, they are bfloat16"),
    ("1x2x9x16 e4m3", "amax_o", ((2,), "float32"), ValueError, r"amax_o has shape \(2,\); expected one element"),
    ("1x2x9x16 e5m2", "descale_s", ((1,), "float16"), TypeError, "descale_s is float16; expected float32"),
    ("1x2x0x16 e4m3", "amax_s", ((1,), "float32"), ValueError, r"amax_s of a result of shape \(1, 2, 0, 16\); expected one with elements")])
def test_factors_and_maxima_of_problems(words, name, t, error, message):
    """Those that graphs give."""
    problem = parse_problem(words.split(), "sdpa_fwd")
    with pytest.raises(error, match=f"sdpa_fwd: {message}"):
        dataclasses.replace(problem, **{name: Tensor.packed(*t)})
