"""Attention to caches: as attention to the last rows, lengths and pages that lie, random problems, words, bad input."""
import contract
import labs
import numpy as np
import pytest
from cases import lay
from cases._decode import Decode
from cases._sdpa import SHORT
from labs import array, host

import dnnkern
from dnnkern import dispatch
from dnnkern.attention._parse import FAMILY, SMALL, parse_problem
from dnnkern.dispatch import NotSupported
from test_attention_bad_input import ones, refused

FWD, DECODE = dnnkern.sdpa_fwd, dnnkern.sdpa_decode


@pytest.mark.parametrize("dtype, able, error", [("float64", ["naive", "split_kv"], 1e-14),
                                                ("float16", ["naive", "split_kv", "split_kv_mma", "split_kv_wgmma"], 2e-3)])
def test_a_cache_in_pages_is_a_cache(dtype, able, error):
    """In any order of the pages, and as `sdpa_fwd` on the last rows."""
    rng, lengths = np.random.default_rng(7), (53, 21)
    q, k, v = (rng.standard_normal(shape).astype(dtype) for shape in ((2, 4, 3, 8), (2, 2, 64, 8), (2, 2, 64, 16)))
    given, of_keys = [array(x, dtype) for x in (q, k, v)], array(lengths, "int32")
    want = host(FWD(*given, seq_len_kv=of_keys, causal=True, align="bottom_right", window=(19, -1), algo="naive"))
    order = rng.permutation(8)
    table = order.reshape(2, 4)
    pages = [np.zeros((8, 2, 16, x.shape[3]), dtype) for x in (k, v)]
    for to, x in zip(pages, (k, v)):
        to[order] = x.reshape(2, 2, 4, 16, -1).transpose(0, 2, 1, 3, 4).reshape(8, 2, 16, -1)
    for name in able:
        plain = DECODE(*given, of_keys, window=(19, -1), algo=name)
        paged = DECODE(given[0], *(array(x, dtype) for x in pages), of_keys, page_table=array(table, "int32"), window=(19, -1), algo=name)
        np.testing.assert_allclose(host(plain), want, atol=error, err_msg=name)
        np.testing.assert_allclose(host(paged), want, atol=error, err_msg=name)


@pytest.mark.parametrize("algo", ["naive", "split_kv", "split_kv_mma", "split_kv_wgmma"])
def test_results_for_parts_of_a_cache_are_merged_by_lse(algo):
    """As sequences that several devices hold parts of; one part is empty."""
    rng, dtype = np.random.default_rng(9), "float16"
    q, k, v = (array(rng.standard_normal(shape), dtype) for shape in ((2, 4, 1, 16), (2, 2, 48, 16), (2, 2, 48, 16)))
    want, whole = (host(x) for x in DECODE(q, k, v, array((48, 20), "int32"), return_lse=True, algo=algo))
    parts = [DECODE(q, *(array(host(x)[:, :, low:high], dtype) for x in (k, v)), array(lengths, "int32"), return_lse=True, algo=algo)
             for low, high, lengths in ((0, 16, (16, 16)), (16, 32, (16, 4)), (32, 48, (16, 0)))]
    o, lse = (np.stack([host(x) for x in pair]) for pair in zip(*parts))
    assert lse[2, 1, 0, 0] == -np.inf and not o[2, 1].any()
    total = np.logaddexp.reduce(lse)
    np.testing.assert_allclose(total, whole, atol=1e-5)
    np.testing.assert_allclose((np.exp(lse - total)[..., None] * o).sum(0), want, atol=2e-3)


def test_packed_queries_are_those_one_by_one():
    """Chunks of prompts beside single new tokens, keys in pages."""
    rng, lengths, counts = np.random.default_rng(4), (37, 9, 16, 0), (5, 1, 0, 2)
    q, k, v = (rng.standard_normal(shape) for shape in ((8, 4, 8), (9, 8, 2, 8), (9, 8, 2, 3)))
    table = rng.permutation(20).reshape(4, 5) % 9
    cu = np.cumsum((0, *counts))
    pages, how = [array(x, "float64") for x in (k, v)], {"window": (12, -1), "return_lse": True}
    o, lse = DECODE(array(q, "float64"), *pages, array(lengths, "int32"), page_table=array(table, "int32"), layout="THD",
                    cu_seqlens_q=array(cu, "int32"), **how)
    for b, (first, last) in enumerate(zip(cu, cu[1:])):
        if first < last:
            one, its = DECODE(array(q[None, first:last], "float64"), *pages, array(lengths[b:b + 1], "int32"),
                              page_table=array(table[b:b + 1], "int32"), layout="BSHD", **how)
            np.testing.assert_allclose(host(o)[first:last], host(one)[0], atol=1e-14)
            np.testing.assert_allclose(host(lse)[:, first:last], host(its)[0], atol=1e-14)


@pytest.mark.parametrize("shape", [(2, 4, 3, 40), (3, 40), (2, 1, 1, 40)])
@pytest.mark.parametrize("dtype, error", [("float64", 1e-13), ("float16", 4e-3)])
def test_biases_are_those_of_torch(dtype, error, shape):
    torch = pytest.importorskip("torch")
    rng, lengths = np.random.default_rng(6), (40, 17)
    q, k, v, bias = (rng.standard_normal(size).astype(dtype) for size in ((2, 4, 3, 16), (2, 2, 40, 16), (2, 2, 40, 8), shape))
    last = np.array(lengths)[:, None] - 3 + np.arange(3)
    mask = np.where(np.arange(40) <= last[:, None, :, None], bias.astype("float64"), -np.inf)
    want = torch.nn.functional.scaled_dot_product_attention(
        *(torch.from_numpy(x.astype("float64")) for x in (q, k, v)), attn_mask=torch.from_numpy(mask), enable_gqa=True).numpy()
    given = [array(x, dtype) for x in (q, k, v)]
    for algo in ("naive", "split_kv", "split_kv_mma")[:3 if dtype == "float16" else 2]:
        o = host(DECODE(*given, array(lengths, "int32"), bias=array(bias, dtype), algo=algo))
        np.testing.assert_allclose(o, want, atol=error, err_msg=algo)


@pytest.mark.parametrize("least", [-3e38, -1e30, -2e9])
def test_a_row_of_the_least_biases(least):
    """Nothing is seen, in a part of the keys or in all; of `naive` it is an average."""
    rng = np.random.default_rng(7)
    q, k, v = (rng.standard_normal(size) for size in ((2, 2, 1, 16), (2, 2, 300, 16), (2, 2, 300, 16)))
    bias = np.full((2, 1, 1, 300), least)
    bias[1, 0, 0, 299] = 0.5  # all but the last key
    given = [array(x, "float16") for x in (q, k, v)]
    v = host(given[2]).astype("float64")
    for algo in ("naive", "split_kv", "split_kv_mma"):
        o = host(DECODE(*given, array((300, 300), "int32"), bias=array(bias, "float32"), algo=algo))
        assert np.abs(o[0, :, 0] - (v[0].mean(1) if algo == "naive" else 0)).max() < 2e-3, algo
        assert np.abs(o[1, :, 0] - v[1, :, 299]).max() < 2e-3, algo


@pytest.mark.parametrize("case", [
    Decode("behind", 4, 2, 2, (70, 40, 0), 64, 72, "float16", capacity=100, window=(20, -1)),
    Decode("behind", 3, 1, 1, (70, 33), 72, 264, "bfloat16", page=16, pages=12, table=6)], ids=["window", "paged"])
def test_what_no_row_sees_may_be_anything(case):
    """Behind the lengths and before the windows: 0 times NaN is NaN."""
    values = {name: np.array(x) for name, x in case.values("float").items()}
    if case.page:
        values["page_table"] = np.random.default_rng(3).permutation(12).reshape(2, 6).astype(float)
    reference, tolerance = case.reference(values, tensor_cores=True)
    for b, length in enumerate(case.lengths):
        for j in range(case.most):
            if j >= length or case.window[0] >= 0 and j < length - case.rows - case.window[0]:
                image, row = (int(values["page_table"][b, j // case.page]), j % case.page) if case.page else (b, j)
                values["k_cache"][image, :, row] = values["v_cache"][image, :, row] = np.nan
    for a in dispatch.algorithms(case.op):
        if contract.refusal(a, case.problem()) is None:
            contract.Run(case, a, values).check_values(reference, tolerance)


@pytest.mark.parametrize("case", [Decode("halves", 4, 2, 1, (90, 33), 64, 64, "float16", capacity=100),
                                  Decode("halves", 3, 1, 2, (70,), 40, 24, "bfloat16", capacity=80)], ids=["f16", "bf16"])
def test_two_halves_of_a_probability_are_as_exact_as_a_float(case):
    values = case.values("float")
    for a in dispatch.algorithms(case.op):
        if a.name in ("split_kv", "split_kv_mma"):
            contract.Run(case, a, values).check_values(*case.reference(values, tensor_cores=False))


@pytest.mark.parametrize("case", [
    Decode("latent", 5, 1, 1, (130, 0), 576, 512, "bfloat16", capacity=136, wanted=True),
    Decode("latent-rows", 5, 1, 2, (66, 1), 192, 128, "float16", capacity=70, sink="float16", order="BSHD", wanted=True),
    Decode("latent-paged", 3, 1, 2, (150, 1), 576, 512, "float16", page=64, pages=7, table=3, sink="float16", order="BSHD")],
    ids=["plain", "rows", "paged"])
def test_latent_heads(case):
    algorithm, = (a for a in dispatch.algorithms("sdpa_decode") if a.name == "split_kv_wgmma")
    contract.check(algorithm, case, **contract.ONCE)


@pytest.mark.parametrize("words, reason", [
    ("2x16x64x64 f32", "float32; expected float16 or bfloat16"), ("2x16x64x584 bf16", "584 and 584"),
    ("2x16x64x128 bf16 --value-size 520", "128 and 520"),
    ("2x16x64x64 bf16 --page 48", "pages of 48 keys; expected 16, 32 or a multiple of 64"), ("2x16x64x60 f16", "multiples of 8"),
    ("2x128x64x576 bf16 --kv-heads 1 --value-size 512 --page 64", None), ("2x8x64x64 f16 --page 32", None)])
def test_caches_that_tma_reads(words, reason):
    algorithm, = (a for a in dispatch.algorithms("sdpa_decode") if a.name == "split_kv_wgmma")
    said = algorithm.supports(parse_problem(words.split(), "sdpa_decode"))
    assert said is None if reason is None else reason in said


@pytest.mark.parametrize("layout, words", [({"q": {"misaligned": 1}}, None), ({"q": {"misaligned": 4, "gap": 2}}, 1),
                                           ({"q": {"step": 2}}, None), ({"k": {"gap": 4}}, None),
                                           ({"o": {"misaligned": 1}, "q": {"gap": 4}}, 2)])
def test_queries_are_read_by_whole_words(layout, words):
    algorithm, = (a for a in dispatch.algorithms("sdpa_decode") if a.name == "split_kv_wgmma")
    case = Decode("layouts", 2, 1, 2, (9,), 40, 24, "float16", capacity=9, layout=layout)
    said = algorithm.supports(case.problem())
    assert said is None if words else "expected rows of whole words" in said or "TMA takes rows" in said
    if words:
        assert algorithm.variants(case.problem(), contract.device())[0].config.words == words
        contract.check(algorithm, case, **contract.ONCE)


@pytest.mark.parametrize("lengths", [(99, 4), (-5, 3), (2 ** 31 - 1, -2 ** 31)])
@pytest.mark.parametrize("pages", [(0, 99, 1), (-7, 2, 1), (2 ** 31 - 1, -2 ** 31, 0)])
def test_a_cache_is_not_left(lengths, pages, simulated):
    for case in (Decode("lies", 2, 1, 1, (9, 9), 4, 4, page=3, pages=5, table=3), Decode("lies", 2, 1, 1, (9, 9), 4, 4, capacity=9)):
        values = {**case.values("float"), "seq_len_kv": np.array(lengths, float)}
        if case.page:
            values["page_table"] = np.array([pages, pages], float)
        for a in dispatch.algorithms(case.op):
            if contract.refusal(a, case.problem()) is None:
                contract.Run(case, a, values, tight=True).check_memory()


@pytest.mark.parametrize("offsets", [(0, 99, 6), (5, 2, 9), (-3, 4, 9), (0, 2 ** 31 - 1, -2 ** 31), (9, 9, 9)])
def test_packed_queries_are_not_left(offsets, simulated, monkeypatch):
    from dnnkern.device.sim import config
    monkeypatch.setattr(config, "track_global", False)  # rows that two sequences have are written twice
    case = Decode("lies", 2, 1, 7, (9, 5), 4, 4, capacity=9, counts=(3, 4), order="THD", wanted=True)
    values = {**case.values("float"), "cu_seqlens_q": np.array(offsets, float)}
    contract.Run(case, next(a for a in dispatch.algorithms(case.op) if a.name == "naive"), values, tight=True).check_memory()


def test_caches_are_checked_on_demand(monkeypatch):
    from dnnkern.host import front
    monkeypatch.setattr(front, "CHECKS", frozenset({"values"}))
    q, pages, out = ones(2, 2, 1, 4), ones(5, 1, 3, 4), labs.guarded(lay((2, 2, 1, 4), "float32"))
    table = array([[0, 1], [4, 7]], "int32")
    refused(ValueError, ["seq_len_kv[1] is 7", "0 to 6"], DECODE, q, pages, pages, array((6, 7), "int32"), page_table=table, out=out.array)
    refused(ValueError, ["page_table[1, 1] is 7", "0 to 4"], DECODE, q, pages, pages, array((6, 4), "int32"), page_table=table,
            out=out.array)
    e4m3 = ones(2, 1, 3, 4, dtype="float8_e4m3fn")
    refused(ValueError, ["scale_v is 0.0", "positive"], DECODE, q, e4m3, e4m3, array((1, 2), "int32"), scale_v=array([0.0]), out=out.array)
    packed = {"cu_seqlens_q": array((0, 3, 2), "int32"), "layout": "THD"}
    refused(ValueError, ["cu_seqlens_q[2] is 2", "3 to 3"], DECODE, ones(3, 2, 4), ones(2, 3, 1, 4), ones(2, 3, 1, 4),
            array((1, 2), "int32"), **packed)
    refused(ValueError, ["seq_len_kv[0] is -1"], DECODE, q, ones(2, 1, 3, 4), ones(2, 1, 3, 4), array((-1, 2), "int32"), out=out.array)
    out.assert_untouched("o")
    DECODE(q, pages, pages, array((6, 3), "int32"), page_table=table)


def test_bad_caches():
    q, k, lengths, out = ones(2, 4, 1, 8), ones(2, 2, 7, 8), array((3, 4), "int32"), labs.guarded(lay((2, 4, 1, 8), "float32"))
    given = {"out": out.array}
    refused(TypeError, ["k_cache: ", "NoneType"], DECODE, q, None, k, lengths, **given)
    refused(TypeError, ["seq_len_kv: ", "NoneType"], DECODE, q, k, k, None, **given)
    refused(TypeError, ["seq_len_kv is float32", "int32"], DECODE, q, k, k, ones(2), **given)
    refused(TypeError, ["k_cache is float16, q is float32", "or float8_e4m3fn"], DECODE, q, ones(2, 2, 7, 8, dtype="float16"), k,
            lengths, **given)
    refused(ValueError, ["seq_len_kv has shape (3,)", "(B,) with B=2"], DECODE, q, k, k, array((1, 2, 3), "int32"), **given)
    refused(ValueError, ["page_table has shape (2,)"], DECODE, q, k, k, lengths, page_table=lengths, **given)
    refused(ValueError, ["page_table has shape (3, 1)"], DECODE, q, k, k, lengths, page_table=array([[0], [1], [0]], "int32"), **given)
    refused(TypeError, ["page_table is int64"], DECODE, q, k, k, lengths, page_table=array([[0], [1]], "int64"), **given)
    refused(ValueError, ["batch of 2, the caches of 3", "page_table"], DECODE, q, ones(3, 2, 7, 8), ones(3, 2, 7, 8), lengths, **given)
    refused(ValueError, ["q has 4 heads, the caches have 3"], DECODE, q, ones(2, 3, 7, 8), ones(2, 3, 7, 8), lengths, **given)
    refused(ValueError, ["q has 8 elements a head, k_cache has 9"], DECODE, q, ones(2, 2, 7, 9), k, lengths, **given)
    refused(ValueError, ["k_cache has shape (2, 2, 7, 8), v_cache has (2, 2, 6, 8)"], DECODE, q, k, ones(2, 2, 6, 8), lengths, **given)
    refused(ValueError, ["v_cache has shape (2, 2, 7)"], DECODE, q, k, ones(2, 2, 7), lengths, **given)
    refused(ValueError, ["layout='SBHD'", "'BHSD', 'BSHD', 'THD'"], DECODE, q, k, k, lengths, layout="SBHD", **given)
    refused(ValueError, ["q has shape (2, 4, 1, 8)", "3 dimensions, THD"], DECODE, q, k, k, lengths, layout="THD", **given)
    offsets, t = array((0, 1, 3), "int32"), ones(3, 4, 8)
    cache = ones(2, 7, 2, 8)
    refused(ValueError, ["layout 'THD' without cu_seqlens_q"], DECODE, t, cache, cache, lengths, layout="THD")
    refused(ValueError, ["cu_seqlens_q with layout 'BHSD'"], DECODE, q, k, k, lengths, cu_seqlens_q=offsets, **given)
    packed = {"layout": "THD", "cu_seqlens_q": offsets}
    refused(ValueError, ["k_cache has shape (7, 2, 8)", "4 dimensions, BSHD"], DECODE, t, ones(7, 2, 8), cache, lengths, **packed)
    refused(ValueError, ["q has 4 heads, the caches have 7"], DECODE, t, k, k, lengths, **packed)
    refused(TypeError, ["cu_seqlens_q is int64"], DECODE, t, cache, cache, lengths, layout="THD", cu_seqlens_q=array((0, 1, 3), "int64"))
    refused(ValueError, ["cu_seqlens_q has shape (1, 3)", "(B + 1,)"], DECODE, t, cache, cache, lengths, layout="THD",
            cu_seqlens_q=array([(0, 1, 3)], "int32"))
    refused(ValueError, ["seq_len_kv has shape (2,)", "with B=1"], DECODE, t, ones(1, 7, 2, 8), ones(1, 7, 2, 8), lengths, layout="THD",
            cu_seqlens_q=array((0, 3), "int32"))
    refused(ValueError, ["cu_seqlens_q has a batch of 1, the caches of 2"], DECODE, t, cache, cache, array((3,), "int32"), layout="THD",
            cu_seqlens_q=array((0, 3), "int32"))
    refused(ValueError, ["bias with layout 'THD'"], DECODE, t, cache, cache, lengths, bias=ones(1, 7), **packed)
    refused(TypeError, ["bias is bool", "expected float32"], DECODE, q, k, k, lengths, bias=ones(1, 7, dtype="bool"), **given)
    refused(TypeError, ["bias is float16", "float32"], DECODE, q, k, k, lengths, bias=ones(1, 7, dtype="float16"), **given)
    refused(ValueError, ["bias has shape (1, 6)", "(2, 4, 1, 7)"], DECODE, q, k, k, lengths, bias=ones(1, 6), **given)
    for algo in ("split_kv", "split_kv_mma", "split_kv_wgmma"):
        refused(NotSupported, [algo, "packed queries"], DECODE, t, cache, cache, lengths, algo=algo, **packed)
    refused(ValueError, ["window=(-3, 0)"], DECODE, q, k, k, lengths, window=(-3, 0), **given)
    refused(ValueError, ["softcap=-1"], DECODE, q, k, k, lengths, softcap=-1, **given)
    refused(ValueError, ["sink has shape (3,)"], DECODE, q, k, k, lengths, sink=ones(3), **given)
    refused(ValueError, ["out (o) has shape (2, 4, 1, 8)", "(2, 4, 1, 5)"], DECODE, q, k, ones(2, 2, 7, 5), lengths, **given)
    e4m3, e5m2 = (ones(2, 2, 7, 8, dtype=name) for name in ("float8_e4m3fn", "float8_e5m2"))
    refused(TypeError, ["q is float8_e4m3fn", "bfloat16"], DECODE, ones(2, 4, 1, 8, dtype="float8_e4m3fn"), e4m3, e4m3, lengths)
    refused(TypeError, ["v_cache is float8_e5m2, k_cache is float8_e4m3fn"], DECODE, q, e4m3, e5m2, lengths, **given)
    refused(TypeError, ["v_cache is float32, k_cache is float8_e4m3fn"], DECODE, q, e4m3, k, lengths, **given)
    refused(TypeError, ["scale_k is for operands of float8_e4m3fn", "float32"], DECODE, q, k, k, lengths, scale_k=ones(1), **given)
    refused(TypeError, ["scale_v is float16", "float32"], DECODE, q, e4m3, e4m3, lengths, scale_v=ones(1, dtype="float16"), **given)
    refused(ValueError, ["scale_k has shape (2,)", "one element"], DECODE, q, e4m3, e4m3, lengths, scale_k=ones(2), **given)
    refused(TypeError, ["return_lse=1"], DECODE, q, k, k, lengths, return_lse=1, **given)
    refused(ValueError, ["out has 1 arrays", "o, lse"], DECODE, q, k, k, lengths, return_lse=True, **given)
    refused(ValueError, ["out (lse) has shape (2, 4)", "(2, 4, 1)"], DECODE, q, k, k, lengths, return_lse=True, out=(out.array, ones(2, 4)))
    refused(TypeError, ["out (lse) is float64", "float32"], DECODE, q, k, k, lengths, return_lse=True,
            out=(out.array, ones(2, 4, 1, dtype="float64")))
    labs.synchronize()
    out.assert_untouched("o")


def test_words_of_caches():
    op = "sdpa_decode"
    words = "3x8x100x16 bf16 --kv-heads 2 --page 16 --window 20 --rows 2 --value-size 8 --sink --layout bshd --lse"
    problem = parse_problem(words.split(), op)
    assert (problem.batch, problem.heads, problem.kv_heads, problem.rows) == (3, 8, 2, 2)
    assert (problem.capacity, problem.page, problem.pages) == (112, 16, 21) and problem.lse.shape == (3, 8, 2)
    assert (problem.d, problem.dv, problem.left, problem.seen) == (16, 8, 20, 22)
    assert FAMILY[op][2](dispatch.problem_record(problem)) == problem
    for words in (["4x4", "f32"], ["2x2x3x4", "f31"], ["2x2x3x4", "f32", "--kv-heads", "3"], ["2x2x3x4", "f32", "--page", "0"],
                  ["2x2x3x4", "int8"], ["2x2x3x4", "f32", "--layout", "thd", "--bias", "full"], ["2x2x3x4", "f32", "--layout", "sbhd"]):
        with pytest.raises((ValueError, TypeError)):
            parse_problem(words, op)
    packed = parse_problem("3x8x100x16 bf16 --kv-heads 2 --rows 4 --layout thd --lse".split(), op)
    assert (packed.batch, packed.rows, packed.lse.shape, packed.k_cache.shape) == (3, 12, (8, 12), (3, 100, 2, 16))
    of_bytes = parse_problem("3x8x100x16 bf16 --cache e4m3 --scales".split(), op)
    assert (of_bytes.q.dtype, of_bytes.v_cache.dtype, of_bytes.scale_v.shape) == ("bfloat16", "float8_e4m3fn", (1,))
    assert of_bytes.bytes == 3 * 8 * 100 * 32 + 2 * 2 * 3 * 8 * 16
    assert parse_problem("3x8x100x16 bf16 --page 16 --bias heads".split(), op).bias.shape == (1, 8, 1, 112)
    for text in SMALL[op]:
        assert parse_problem(text.split(), op).outputs[0].size
    assert parse_problem("3x8x100x16 bf16 --kv-heads 2".split(), op).bytes == 3 * 2 * 100 * 32 * 2 + 2 * 2 * 3 * 8 * 16


def test_random_caches(request):
    def problems(draw):
        st = pytest.importorskip("hypothesis").strategies
        kv_heads, dtype, paged = draw(st.integers(1, 2)), draw(st.sampled_from(list(SHORT))), draw(st.booleans())
        heads, rows, d, e = (draw(st.integers(1, most)) for most in (3, 3, 9, 9))
        room = {"page": draw(st.integers(1, 5)), "pages": draw(st.integers(1, 6)), "table": draw(st.integers(0, 5))} if paged else {
            "capacity": draw(st.integers(0, 20))}
        most = room["page"] * room["table"] if paged else room["capacity"]
        lengths = tuple(draw(st.integers(0, most)) for _ in range(draw(st.integers(1, 2))))
        layout = {name: contract.random_layout(draw, st, 4) for name in ("q", "k", "v", "o")}
        window, softcap = (draw(st.sampled_from([-1, 0, 4])), -1), draw(st.sampled_from([0.0, 2.0]))
        order, bias, counts = draw(st.sampled_from(["BHSD", "BSHD", "THD"])), None, ()
        if order == "THD":
            counts = tuple(draw(st.integers(0, 3)) for _ in lengths)
            rows = sum(counts) + draw(st.integers(0, 2))
            layout.update({name: contract.random_layout(draw, st, 3) for name in ("q", "o")})
        elif draw(st.booleans()):
            bias = tuple(draw(st.sampled_from([1, n])) for n in (len(lengths), heads * kv_heads, rows, most))[draw(st.integers(0, 2)):]
        cache = draw(st.sampled_from(["", "", "float8_e4m3fn", "float8_e5m2"]))
        scales = tuple(name for name in ("scale_k", "scale_v") if cache and draw(st.booleans()))
        return Decode("random", heads * kv_heads, kv_heads, rows, lengths, d, e, dtype, **room, window=window, softcap=softcap, bias=bias,
                      sink=draw(st.sampled_from(["", dtype])), order=order, counts=counts, layout=layout, trivial=True, cache=cache,
                      scales=scales, wanted=draw(st.booleans()))
    contract.random_problems(request, problems, 10)


@pytest.mark.parametrize("few_multiprocessors", [1], ids=[""], indirect=True)
@pytest.mark.parametrize("name, case", [
    ("split_kv", Decode("ranges", 3, 1, 1, (130, 17, 0), 8, 8, capacity=140, wanted=True)),
    ("split_kv_mma", Decode("ranges", 4, 1, 1, (600, 83, 0), 64, 128, "bfloat16", capacity=601, wanted=True)),
    ("split_kv_mma", Decode("ranges-rows", 5, 1, 4, (300, 3), 40, 24, "float16", capacity=333, order="BSHD")),
    ("split_kv_mma", Decode("ranges-paged", 4, 2, 1, (470, 90), 128, 64, "float16", page=48, pages=9, table=10, sink="float16",
                            wanted=True)),
    ("split_kv", Decode("ranges-biased", 3, 1, 2, (130, 17), 8, 8, capacity=140, bias=(2, 3, 2, 140))),
    ("split_kv_mma", Decode("ranges-biased", 5, 1, 2, (300, 3), 40, 24, "float16", capacity=333, bias=(5, 2, 333), bias_dtype="float32")),
    ("split_kv", Decode("ranges-bytes", 5, 1, 1, (130, 17), 16, 32, "float16", capacity=140, cache="float8_e4m3fn",
                        scales=("scale_k", "scale_v"), sink="float16", wanted=True)),
    ("split_kv_mma", Decode("ranges-wide", 9, 1, 1, (260, 30), 192, 256, "bfloat16", page=32, pages=9, table=9)),
    ("split_kv_mma", Decode("ranges-last", 2, 1, 1, (555, 250), 32, 32, "float16", capacity=560, window=(201, -1))),
    ("split_kv_mma", Decode("ranges-window", 2, 1, 3, (555, 250), 32, 32, "bfloat16", page=16, pages=40, table=35, window=(201, -1),
                            softcap=2.0)),
    ("split_kv_wgmma", Decode("ranges-pairs", 68, 1, 1, (140,), 64, 264, "bfloat16", capacity=272, wanted=True)),
    ("split_kv_wgmma", Decode("ranges-latent", 3, 1, 3, (330, 4), 64, 328, "float16", page=32, pages=14, table=11, window=(260, -1),
                              sink="float16", order="BSHD", wanted=True)),
    ("split_kv_wgmma", Decode("ranges-tall", 6, 1, 5, (300, 0), 128, 128, "bfloat16", page=128, pages=5, table=3, softcap=2.0)),
    ("split_kv_wgmma", Decode("ranges-negative", 130, 1, 1, (190,), 72, 72, "float16", capacity=300, scale=-0.1))],
    ids=lambda x: getattr(x, "id", x))
def test_every_number_of_ranges(name, case, few_multiprocessors):
    """A few keys of a range, and none; blocks in the places of others; tiles that a window cuts; more rows than a tile has."""
    algorithm, = (a for a in dispatch.algorithms("sdpa_decode") if a.name == name)
    variants = algorithm.variants(case.problem(), contract.device())
    assert len(variants) > 1
    for variant in variants:
        with contract.registered(variant) as a:
            contract.check(a, case, **contract.ONCE)
