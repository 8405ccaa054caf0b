"""Attention: against PyTorch, what is defined where nothing is seen, lengths that lie, random problems, words."""
import dataclasses

import contract
import numpy as np
import pytest
from cases._sdpa import NAMES, SCALES, SHORT, Forward, slopes
from cases._sdpa_gradient import Backward
from labs import array, host

import dnnkern
from dnnkern import dispatch
from dnnkern.attention._parse import FAMILY, SMALL, parse_problem

FWD, BWD = dnnkern.sdpa_fwd, dnnkern.sdpa_bwd
OPS = ("sdpa_fwd", "sdpa_bwd")


def algorithms(case):
    """Names of those that can solve a case."""
    return [a.name for a in dispatch.algorithms(case.op) if contract.refusal(a, case.problem()) is None]


# ---- against PyTorch

def masked(rows, keys, how):
    """Which keys each row sees."""
    own = np.arange(rows)[:, None] + (keys - rows if how.get("align") == "bottom_right" else 0)
    distance, (left, right) = np.arange(keys) - own, how.get("window", (-1, -1))
    right = 0 if how.get("causal") else right
    return ~((distance > right) & (right >= 0) | (distance < -left) & (left >= 0))


@pytest.mark.parametrize("how", [{}, {"causal": True}, {"causal": True, "align": "bottom_right"}, {"window": (2, 1)}, {"scale": 0.3},
                                 {"bias": (2, 4, 7, 9)}, {"bias": (7, 9), "causal": True, "align": "bottom_right"}, {"bias": (2, 1, 1, 9)},
                                 {"alibi": True, "align": "bottom_right"}, {"mask": (2, 4, 7, 9)}, {"mask": (2, 1, 1, 9)},
                                 {"mask": (7, 9), "bias": (4, 7, 9), "causal": True}],
                         ids=str)
@pytest.mark.parametrize("order", ["BHSD", "BSHD"])
def test_results_and_gradients_are_those_of_torch(order, how):
    torch = pytest.importorskip("torch")
    rng, (b, h, g, s, n, d, e) = np.random.default_rng(5), (2, 4, 2, 7, 9, 5, 3)
    how = dict(how)
    q, k, v = (torch.from_numpy(rng.standard_normal(size)).requires_grad_() for size in ((b, h, s, d), (b, g, n, d), (b, g, n, e)))
    mask = torch.zeros(b, h, s, n, dtype=torch.float64)
    bias = None
    if "bias" in how:
        bias = torch.from_numpy(rng.standard_normal(how.pop("bias"))).requires_grad_()
        mask = mask + bias
    if how.get("alibi"):
        distance = np.abs(np.arange(n) - np.arange(s)[:, None] - (n - s))
        mask = mask - torch.from_numpy(slopes(h)[:, None, None] * distance)
    permitted = True
    if "mask" in how:
        permitted = rng.random(how["mask"]) < 0.6
        permitted[..., 0] = True
        how["mask"] = array(permitted, "bool")
    mask = mask.masked_fill(torch.from_numpy(~(masked(s, n, how) & permitted)), -np.inf)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=how.get("scale"), enable_gqa=True)
    do = rng.standard_normal(want.shape)
    want.backward(torch.from_numpy(do))

    def ours(x):
        x = x.detach().numpy() if hasattr(x, "detach") else x
        return array(x if order == "BHSD" else x.transpose(0, 2, 1, 3), "float64")

    def theirs(x):
        x = host(x)
        return x if order == "BHSD" else x.transpose(0, 2, 1, 3)
    if bias is not None:
        how["bias"] = array(bias.detach().numpy(), "float64")
    given = ours(q), ours(k), ours(v)
    o, lse = FWD(*given, layout=order, return_lse=True, **how)
    np.testing.assert_allclose(theirs(o), want.detach().numpy(), atol=1e-13)
    share = h // g
    scores = (q @ k.repeat_interleave(share, 1).transpose(2, 3) * (how.get("scale") or d ** -0.5) + mask).logsumexp(-1)
    np.testing.assert_allclose(host(lse), scores.detach().numpy(), atol=1e-13)
    gradients = BWD(ours(do), *given, o, lse, layout=order, **how)
    for got, x in zip(gradients, (q, k, v)):
        np.testing.assert_allclose(theirs(got), x.grad.numpy(), atol=1e-12)
    if bias is not None:
        np.testing.assert_allclose(host(gradients[3]), bias.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize("with_bias", [False, True])
def test_the_gradient_of_a_sink_is_that_of_torch(with_bias):
    """A sink is a column of scores whose values are zero."""
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    given = q, k, v, sink, bias = [torch.from_numpy(rng.standard_normal(size)).requires_grad_() for size in (
        (2, 4, 7, 5), (2, 4, 9, 5), (2, 4, 9, 3), (4,), (4, 7, 9))]
    scores = q @ k.transpose(2, 3) * 5 ** -0.5 + (bias if with_bias else 0)
    column = sink[:, None, None].expand(2, 4, 7, 1)
    want = torch.softmax(torch.cat([scores, column], -1), -1)[..., :9] @ v
    do = rng.standard_normal(want.shape)
    want.backward(torch.from_numpy(do))
    arrays = [array(x.detach().numpy(), "float64") for x in given]
    how = {"sink": arrays[3], **({"bias": arrays[4]} if with_bias else {})}
    o, lse = FWD(*arrays[:3], return_lse=True, **how)
    np.testing.assert_allclose(host(o), want.detach().numpy(), atol=1e-13)
    gradients = BWD(array(do, "float64"), *arrays[:3], o, lse, sink_gradient=True, **how)
    for got, x in zip(gradients, (q, k, v, *((bias,) if with_bias else ()), sink), strict=True):
        np.testing.assert_allclose(host(got), x.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize("window", [(10, -1), (0, 20), (17, 5), (-1, 9)])
@pytest.mark.parametrize("kind", [Forward, Backward])
def test_windows_that_cut_tiles(kind, window):
    """Tiles of which every row sees every key, tiles that all see in part, and tiles that none sees, in every algorithm."""
    case = kind("tiles", 1, 1, 1, 37, 45, 3, 2, window=window, align="bottom_right" if window[0] else "top_left")
    values = case.values("float")
    reference, bound = case.reference(values)
    for algorithm in dispatch.algorithms(case.op):
        if contract.refusal(algorithm, case.problem()) is None:
            run = contract.Run(case, algorithm, values, tight=True)
            run.check_memory()
            run.check_values(reference, bound)


def test_packed_sequences_are_those_one_by_one():
    """Dropout's bits too: they depend on the number of the sequence, not on where it lies."""
    rng, rows, keys = np.random.default_rng(6), (5, 1, 0, 6), (7, 3, 2, 6)
    q, k, v = (rng.standard_normal((sum(of), heads, 4)) for of, heads in ((rows, 4), (keys, 2), (keys, 2)))
    cu_q, cu_k = (np.concatenate([[0], np.cumsum(of)]) for of in (rows, keys))
    how = {"causal": True, "align": "bottom_right", "dropout": 0.3, "seed": 9}
    packed = host(FWD(*(array(x, "float64") for x in (q, k, v)), cu_seqlens_q=array(cu_q, "int32"), cu_seqlens_kv=array(cu_k, "int32"),
                      layout="THD", **how))
    padded = [np.zeros((4, 8, *x.shape[1:])) for x in (q, k, v)]
    for b in range(4):
        for to, x, cu in zip(padded, (q, k, v), (cu_q, cu_k, cu_k)):
            to[b, :cu[b + 1] - cu[b]] = x[cu[b]:cu[b + 1]]
    whole = host(FWD(*(array(x, "float64") for x in padded), seq_len_q=array(rows, "int32"), seq_len_kv=array(keys, "int32"), layout="BSHD",
                     **how))
    for b in range(4):
        np.testing.assert_array_equal(whole[b, :rows[b]], packed[cu_q[b]:cu_q[b + 1]])
        assert not whole[b, rows[b]:].any()


def test_the_share_that_is_dropped():
    """With all scores alike o counts what is kept."""
    q, v = array(np.zeros((2, 2, 40, 1))), array(np.ones((2, 2, 50, 1)))
    o = host(FWD(q, array(np.zeros((2, 2, 50, 1))), v, dropout=0.25, seed=3))
    kept = o * 50 * 0.75
    np.testing.assert_allclose(kept, kept.round(), atol=1e-4)
    assert abs(kept.sum() / (160 * 50) - 0.75) < 4 * (0.25 * 0.75 / 8000) ** 0.5
    assert np.unique(kept.round()).size > 5
    other = host(FWD(q, array(np.zeros((2, 2, 50, 1))), v, dropout=0.25, seed=4))
    assert not np.array_equal(o, other)


# ---- where nothing is seen, and what is not finite

HIDDEN = (("rows-without-keys", {"causal": True, "align": "bottom_right"}), ("no-length", {"seq_len_kv": (0, 4)}),
          ("rows-beyond", {"seq_len_q": (0, 9)}), ("sink", {"causal": True, "align": "bottom_right", "sink": (0.5, -1)}),
          ("masked", {"mask": ((False,) * 4,) * 5 + ((True, False, True, True),) * 4, "sink": (0.5, -1)}))


@pytest.mark.parametrize("dtype", SHORT)
@pytest.mark.parametrize("name, how", HIDDEN, ids=[name for name, _ in HIDDEN])
def test_rows_that_see_nothing(name, how, dtype):
    """What they do not see may be NaN: results and gradients are zeros."""
    rng, real = np.random.default_rng(2), "float64" if dtype == "float64" else "float32"
    q, k, v = (rng.standard_normal((2, 2, n, 3)) for n in (9, 4, 4))
    seen = np.ones((2, 9), bool)
    dtypes = {"sink": real, "mask": "bool"}
    of = {"mask": (9, 4)} if name == "masked" else {}
    of.update((to, how[key]) for key, to in (("seq_len_q", "of_rows"), ("seq_len_kv", "of_keys")) if key in how)
    how = {key: array(value, dtypes.get(key, "int32")) if isinstance(value, tuple) else value for key, value in how.items()}
    if "causal" in how or "mask" in how:
        seen[:, :5] = False
    else:
        seen[0] = False
    if name == "no-length":
        k[0] = v[0] = np.nan
    if name == "rows-beyond":
        q[0] = np.nan
    given = [array(x, dtype) for x in (q, k, v)]
    case = Forward("hidden", 2, 2, 2, 9, 4, 3, 3, dtype, **of)
    for algo in algorithms(case):
        o, lse = FWD(*given, return_lse=True, algo=algo, **how)
        for b in range(2):
            assert not host(o)[b][:, ~seen[b]].any() and (host(lse)[b][:, ~seen[b]] == -np.inf).all(), algo
            assert np.isfinite(host(lse)[b][:, seen[b]]).all() and np.isfinite(host(o)).all(), algo
    do = rng.standard_normal((2, 2, 9, 3))
    for algo in algorithms(Backward("hidden", 2, 2, 2, 9, 4, 3, 3, dtype, **of)):
        for gradient in BWD(array(do, dtype), *given, o, lse, algo=algo, **how):
            assert np.isfinite(host(gradient)).all(), algo
        dq = host(BWD(array(do, dtype), *given, o, lse, algo=algo, **how)[0])
        assert all(not dq[b][:, ~seen[b]].any() for b in range(2)), algo


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_a_bias_of_minus_infinity_hides(dtype):
    """Single pairs as a mask does; a row of which nothing is left is zero."""
    rng = np.random.default_rng(4)
    q, k, v, bias = (rng.standard_normal(size) for size in ((1, 1, 6, 4), (1, 1, 20, 4), (1, 1, 20, 3), (6, 20)))
    bias[0], bias[1:, 0], bias[2, :19], bias[3, 7:] = -np.inf, -np.inf, -np.inf, -np.inf
    given, added = [array(x, dtype) for x in (q, k, v)], array(bias, dtype)
    values = {"q": host(given[0]), "k": host(given[1]), "v": host(given[2]), "bias": host(added)}
    case = Forward("minus-infinity", 1, 1, 1, 6, 20, 4, 3, dtype, bias=(6, 20))
    for algo in algorithms(case):
        reference, bound = case.reference(values, "mma" in algo or algo == "unfused")
        o, lse = FWD(*given, bias=added, return_lse=True, algo=algo)
        contract.assert_within(host(o), reference["o"], bound["o"], algo)
        assert host(lse)[0, 0, 0] == -np.inf and not host(o)[0, 0, 0].any()
    do = array(np.ones((1, 1, 6, 3)), dtype)
    for algo in algorithms(Backward("minus-infinity", 1, 1, 1, 6, 20, 4, 3, dtype, bias=(6, 20))):
        gradients = [host(x) for x in BWD(do, *given, o, lse, bias=added, algo=algo)]
        assert all(np.isfinite(x).all() for x in gradients), algo
        assert not gradients[3][np.isneginf(bias)].any() and not gradients[0][0, 0, 0].any(), algo


@pytest.mark.parametrize("dtype", SHORT)
def test_a_row_of_the_least_biases(dtype):
    """Programs mask with the least number of a dtype, or with a part of it. A row of nothing else sees nothing where scores are lost
    in it; of `naive` it is an average."""
    rng, rows, keys = np.random.default_rng(5), 16, 64
    least = {"float64": -1e10, "float16": -65504.0}.get(dtype, -3.3895e38)
    q, k, v = (rng.standard_normal((1, 1, n, 16)) for n in (rows, keys, keys))
    bias = np.where(rng.random((rows, keys)) < 0.5, least, rng.standard_normal((rows, keys)))
    bias[0], bias[1], bias[2], bias[2, 0] = least, 0.7 * least, least, 0.5
    given, added = [array(x, dtype) for x in (q, k, v)], array(bias, dtype)
    q, k, v = (host(x)[0, 0].astype("float64") for x in given)
    x = q @ k.T / 4 + np.maximum(host(added), -65504)
    large = dtype in ("float32", "bfloat16")
    if large:
        x[:2] = 0  # a score is lost in numbers as large as these
    p = np.exp(x - x.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    hidden = p.copy()
    hidden[:2] = 0
    bound = 0.05 if dtype == "bfloat16" else 0.01

    def expected(algo):
        return hidden if large and algo != "naive" else p
    found, do = {}, array(rng.standard_normal((1, 1, rows, 16)), dtype)
    for algo in algorithms(Forward("least", 1, 1, 1, rows, keys, 16, 16, dtype, bias=(rows, keys))):
        o, lse = found[algo] = FWD(*given, bias=added, return_lse=True, algo=algo)
        assert np.abs(host(o)[0, 0] - expected(algo) @ v).max() < bound, algo
        assert np.isneginf(host(lse)[0, 0, :2]).all() == (expected(algo) is hidden), algo
    o, lse = next(found[algo] for algo in found if algo != "naive")
    y, seen = host(do)[0, 0] @ v.T, expected("")
    ds = seen * (y - (seen * y).sum(1, keepdims=True))
    for algo in algorithms(Backward("least", 1, 1, 1, rows, keys, 16, 16, dtype, bias=(rows, keys))):
        gradients = [host(x) for x in BWD(do, *given, o, lse, bias=added, algo=algo, allow=dispatch.Note.NONDETERMINISTIC)]
        for name, mine, other in zip("qkvb", gradients, (ds @ k / 4, ds.T @ q / 4, seen.T @ host(do)[0, 0], ds), strict=True):
            assert np.abs(mine.reshape(other.shape) - other).max() < 4 * bound, (algo, name)


@pytest.mark.parametrize("where", ["q", "k", "v"])
def test_nan_goes_where_it_is_seen(where):
    rng = np.random.default_rng(4)
    given = {name: rng.standard_normal((1, 1, 9, 4)) for name in "qkv"}
    given[where][0, 0, 5, 2] = np.nan
    arrays = [array(x) for x in given.values()]
    for algo in algorithms(Forward("nan", 1, 1, 1, 9, 9, 4, 4)):
        o = host(FWD(*arrays, causal=True, algo=algo))[0, 0]
        hit = np.isnan(o)
        if where == "v":  # tiles multiply values of keys that are not seen with zero
            assert hit[5:, 2].all() and not hit[:, [0, 1, 3]].any() and (algo != "naive" or not hit[:5].any()), algo
        else:
            assert not hit[:5].any() and hit[5].all() and hit[6:].any() == (where == "k"), algo


# ---- lengths that lie

LIES = {"too long": (99, 4), "negative": (-5, 3), "huge": (2 ** 31 - 1, -2 ** 31)}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("name", ["seq_len_q", "seq_len_kv"])
def test_a_wrong_length_reads_and_writes_nothing_outside(name, lie, simulated):
    case = Forward("lies", 2, 2, 1, 6, 7, 4, 4, of_rows=(6, 6), of_keys=(7, 7))
    back = Backward(*dataclasses.astuple(case))
    for c in (case, back):
        values = {**c.values("float"), name: np.array(LIES[lie], float)}
        for algo in algorithms(c):
            contract.Run(c, next(a for a in dispatch.algorithms(c.op) if a.name == algo), values, tight=True).check_memory()


@pytest.mark.parametrize("offsets", [(0, 99, 6), (5, 2, 9), (-3, 4, 9), (0, 2 ** 31 - 1, -2 ** 31), (9, 9, 9)])
@pytest.mark.parametrize("name", ["cu_seqlens_q", "cu_seqlens_kv"])
def test_wrong_offsets_read_and_write_nothing_outside(name, offsets, simulated, monkeypatch):
    from dnnkern.device.sim import config
    monkeypatch.setattr(config, "track_global", False)  # rows that two sequences have are written twice
    case = Forward("lies", 2, 2, 1, 9, 9, 4, 4, of_rows=(4, 5), of_keys=(4, 5), order="THD")
    back = Backward(*dataclasses.astuple(case))
    for c in (case, back):
        values = {**c.values("float"), name: np.array(offsets, float)}
        for algo in algorithms(c):
            contract.Run(c, next(a for a in dispatch.algorithms(c.op) if a.name == algo), values, tight=True).check_memory()


# ---- random problems

@pytest.mark.parametrize("kind", [Forward, Backward])
def test_random_problems(kind, request):
    def problems(draw):
        st = pytest.importorskip("hypothesis").strategies
        order, batch, kv_heads = draw(st.sampled_from(["BHSD", "BSHD", "THD"])), draw(st.integers(1, 2)), draw(st.integers(1, 2))
        heads, dtype = kv_heads * draw(st.integers(1, 2)), draw(st.sampled_from(list(NAMES if kind is Forward else SHORT)))
        scales = () if dtype in SHORT else tuple(name for name in SCALES if draw(st.booleans()))
        real = dtype if dtype in SHORT else "float32"
        rows, keys, d, e = (draw(st.integers(1, most)) for most in (9, 17, 9, 9))
        lengths = {}
        if order == "THD" or draw(st.booleans()):
            lengths = {"of_rows": tuple(draw(st.integers(0, rows // batch if order == "THD" else rows)) for _ in range(batch)),
                       "of_keys": tuple(draw(st.integers(0, keys // batch if order == "THD" else keys)) for _ in range(batch))}
        bias = mask = None
        if order != "THD" and draw(st.booleans()):
            bias = tuple(draw(st.sampled_from([1, n])) for n in (batch, heads, rows, keys))[draw(st.integers(0, 2)):]
        if order != "THD" and draw(st.booleans()):
            mask = tuple(draw(st.sampled_from([1, n])) for n in (batch, heads, rows, keys))[draw(st.integers(0, 2)):]
        sink = draw(st.sampled_from(["", real]))
        window = draw(st.sampled_from([-1, 0, 2])), draw(st.sampled_from([-1, 0, 3]))
        rank = 3 if order == "THD" else 4
        layout = {name: contract.random_layout(draw, st, rank) for name in ("q", "k", "v", "o", "do", "dq", "dk", "dv")}
        return kind("random", batch, heads, kv_heads, rows, keys, d, e, dtype, causal=draw(st.booleans()),
                    align=draw(st.sampled_from(["top_left", "bottom_right"])), window=window, bias=bias, alibi=draw(st.booleans()),
                    dropout=draw(st.sampled_from([0.0, 0.0, 0.3])), softcap=draw(st.sampled_from([0.0, 0.0, 2.0])),
                    sink=sink, of_sink=bool(sink), order=order, layout=layout, trivial=True, bias_dtype=real, scales=scales,
                    mask=mask, **lengths)
    contract.random_problems(request, problems, 6)


# ---- words and records

@pytest.mark.parametrize("op", OPS)
def test_words_and_records(op):
    words = "2x4x30x16 bf16 --kv-heads 2 --keys 40 --value-size 8 --window=5,-1 --bias heads --softcap 3 --dropout 0.25 --sink --mask keys"
    problem = parse_problem([*words.split(), "--layout", "bshd"], op)
    assert (problem.batch, problem.heads, problem.kv_heads, problem.rows, problem.keys, problem.d, problem.dv) == (2, 4, 2, 30, 40, 16, 8)
    assert (problem.left, problem.right, problem.softcap, problem.dropout, problem.bias.shape) == (5, -1, 3, 0.25, (1, 4, 30, 40))
    assert (problem.mask.shape, problem.mask.dtype) == ((2, 1, 1, 40), "bool")
    assert FAMILY[op][2](dispatch.problem_record(problem)) == problem
    with pytest.raises(ValueError, match="not a record"):
        FAMILY[op][2]({"q": 1})
    for words in (["4x4", "f32"], ["2x2x3x4", "f31"], ["2x2x3x4", "f32", "--kv-heads", "3"], ["2x2x3x4", "f32", "--window", "3"],
                  ["2x2x3x4", "int8"], ["2x2x3x4", "f32", "--dropout", "1"], ["2x2x3x4", "f32", "--layout", "thd", "--bias", "pairs"],
                  ["2x2x3x4", "f32", "--layout", "thd", "--mask", "pairs"], ["2x2x3x4", "f32", "--mask", "rows"]):
        with pytest.raises((ValueError, TypeError)):
            parse_problem(words, op)
    for text in SMALL[op]:
        assert parse_problem(text.split(), op).outputs[0].size


@pytest.mark.parametrize("op", [*OPS, "sdpa_decode"])
def test_the_problems_of_the_bench_are_problems(op):
    shapes = pytest.importorskip(f"bench.shapes.{op}")
    for case in shapes.cases("all", ("float64", "bfloat16") + ("float8_e4m3fn",) * (op == "sdpa_fwd")):
        assert dispatch.get_algorithm(op, case.problem).is_deterministic


def test_work_and_bytes():
    plain, causal = (parse_problem(f"2x4x64x16 f32 --kv-heads 2{more}".split(), "sdpa_fwd") for more in ("", " --causal"))
    assert plain.flops == 4 * 2 * 4 * 64 * 64 * 16 and plain.bytes == 4 * 2 * 64 * 16 * (4 + 2 + 2 + 4)
    assert causal.flops == plain.flops * 65 / 128
    packed = parse_problem("2x4x64x16 f32 --kv-heads 2 --causal --layout thd".split(), "sdpa_fwd")
    assert packed.flops == causal.flops
    window = parse_problem("1x1x100x16 f32 --window=9,0".split(), "sdpa_fwd")
    assert window.pairs == 100 * 10 - 45
    assert parse_problem("2x4x64x16 f32 --kv-heads 2".split(), "sdpa_bwd").flops == 2.5 * plain.flops


def test_options_that_make_no_difference_share_a_plan():
    a, b = (parse_problem(f"1x1x4x4 f32{more}".split(), "sdpa_fwd") for more in ("", " --bottom-right"))
    c, d = (parse_problem(f"1x1x4x4 f32{more}".split(), "sdpa_fwd") for more in (" --causal", " --window=-1,0"))
    assert a == b and c == d
