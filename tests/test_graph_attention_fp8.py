"""Attention of 8-bit floats in graphs: factors and largest magnitudes against float64, by each algorithm; refusals."""
import ml_dtypes
import numpy as np
import pytest
from graphs import DTYPE, T, array_of, execute, like, new_graph, run

import dnnkern.graph as cudnn
from dnnkern import dispatch
from dnnkern.device import HOST_MEMORY

B, H, G, S, N, D, E = 1, 2, 1, 66, 72, 32, 16
FACTORS = {"descale_q": 0.25, "descale_k": 0.5, "descale_v": 0.125, "descale_s": 1 / 256, "scale_s": 512.0, "scale_o": 64.0}
ALGORITHMS = ["naive", "flash_mma", "flash_wgmma_fp8"]
LARGEST = {T.FP8_E4M3: 448, T.FP8_E5M2: 57344}
ROUNDING = {T.FP8_E4M3: 2 ** -4, T.FP8_E5M2: 2 ** -3, T.BFLOAT16: 2 ** -8, T.HALF: 2 ** -11, T.FLOAT: 2 ** -24}
CAUSAL = np.arange(N) <= np.arange(S)[:, None]


def operands(io, late=1.0):
    """q, k, v; values of keys that no query attends to are so many times as large."""
    dtype, rng = DTYPE[io], np.random.default_rng(3)
    q, k, v = (rng.standard_normal(shape) * 3 for shape in ((B, H, S, D), (B, G, N, D), (B, G, N, E)))
    v /= 6
    v[:, :, S:] *= late
    return [x.astype(getattr(ml_dtypes, dtype)) for x in (q, k, v)]


def evaluated(q, k, v, factors, scale, allowed, rows=S):
    """(o, lse, amax_s, amax_o, the sums that o's error is of) in float64, without rounding."""
    q, k, v = (x.astype(float) for x in (q, k, v))
    k, v = (np.repeat(x, H // G, axis=1) for x in (k, v))
    scores = np.where(allowed, scale * factors["descale_q"] * factors["descale_k"] * q @ k.transpose(0, 1, 3, 2), -np.inf)[:, :, :rows]
    p = np.exp(scores - scores.max(-1, keepdims=True))
    lse = np.log(p.sum(-1, keepdims=True)) + scores.max(-1, keepdims=True)
    p /= p.sum(-1, keepdims=True)
    factor = factors["descale_s"] * factors["scale_s"] * factors["descale_v"]
    result = factor * p @ v
    return result * factors["scale_o"], lse, p.max(), np.abs(result).max(), factor * factors["scale_o"] * p @ np.abs(v)


def made(io, out, by_value=(), factors=FACTORS, late=1.0, **options):
    """(graph, {tensor: array}, results) of `sdpa_fp8`, and what they are of."""
    graph, arrays = new_graph(io), operands(io, late)
    pack = {like(graph, x): x for x in arrays}
    of = {}
    for name, value in factors.items():
        of[name] = graph.tensor([1, 1, 1, 1], [1, 1, 1, 1], T.FLOAT, is_pass_by_value=name in by_value, name=name)
        pack[of[name]] = np.full((1, 1, 1, 1), value, np.float32)
    lengths = {name: np.full((B, 1, 1, 1), n, np.int32) for name, n in options.pop("lengths", {}).items()}
    for name, array in lengths.items():
        options[name] = like(graph, array)
        pack[options[name]] = array
    results = graph.sdpa_fp8(*list(pack)[:3], **of, attn_scale=0.25, generate_stats=True, **options)
    results[0].set_output(True).set_data_type(out)
    for t in results[1:]:
        t.set_output(True)
    return graph, pack, results, arrays


def check(got, expected, out):
    o, stats, amax_s, amax_o = got
    wanted, lse, top_s, top_o, size = expected
    o, stats = o[:, :, :wanted.shape[2]].astype(float), stats[:, :, :wanted.shape[2]]
    limit = LARGEST.get(out, np.inf)
    error = 2 ** -4 * size + 2 ** -8 * size.max()  # probabilities of 4 bits, sums of 13
    bound = error + ROUNDING[out] * np.abs(wanted) + 2 ** -9
    assert (np.abs(o - np.clip(wanted, -limit, limit)) <= bound).all()
    assert np.abs(stats - lse).max() <= (2 ** -10 if HOST_MEMORY else 2 ** -8)  # tensor cores add products of 8 bits up with 13
    np.testing.assert_allclose(amax_s.item(), top_s, rtol=2 ** -10)
    np.testing.assert_allclose(amax_o.item(), top_o, rtol=2 ** -4)
    assert amax_o.shape == amax_s.shape == (1, 1, 1, 1)


@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("io, out", [(T.FP8_E4M3, T.FP8_E4M3), (T.FP8_E5M2, T.BFLOAT16)])
def test_values(algo, io, out):
    """Rows past the last query, and keys that no query attends to, have no part in the maxima: their values are the largest."""
    graph, pack, results, arrays = made(io, out, late=150.0, use_causal_mask=True)
    with dispatch.prefer(algo):
        got = run(graph, pack, results)
    assert results[2].get_dim() == [1, 1, 1, 1] and results[2].get_data_type() is T.FLOAT
    check(got, evaluated(*arrays, FACTORS, 0.25, CAUSAL), out)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_saturation_and_lengths(algo):
    """Rows past a length have part in neither maximum, and results past the largest number become it."""
    factors = {**FACTORS, "scale_o": 32768.0}
    graph, pack, results, arrays = made(T.FP8_E4M3, T.FP8_E4M3, factors=factors, lengths={"seq_len_q": 3, "seq_len_kv": 40},
                                        use_padding_mask=True)
    with dispatch.prefer(algo):
        got = run(graph, pack, results)
    expected = evaluated(*arrays, factors, 0.25, np.arange(N) < 40, rows=3)
    assert (np.abs(expected[0]) > 500).any()
    check(got, expected, T.FP8_E4M3)
    everything = evaluated(*arrays, factors, 0.25, np.arange(N) < 40)
    assert everything[2] > 1.01 * expected[2] and everything[3] > 1.1 * expected[3]


@pytest.mark.parametrize("by_value", [("descale_q", "scale_o"), tuple(FACTORS)])
def test_factors_by_value(by_value):
    graph, pack, results, arrays = made(T.FP8_E4M3, T.HALF, by_value)
    with dispatch.prefer("flash_wgmma_fp8"):
        graph.build([cudnn.heur_mode.A])
    for change in (1.0, 2.0):
        factors = {name: value * change for name, value in FACTORS.items()}
        got = [array_of(t) for t in results]
        execute(graph, {**pack, **{t: np.full((1, 1, 1, 1), factors[t.get_name()], np.float32) for t in pack if t.get_name() in factors},
                        **dict(zip(results, got))})
        check(got, evaluated(*arrays, factors, 0.25, True), T.HALF)


def test_what_nothing_reads_is_not_computed():
    """Without the maxima there is one problem, which has none; the names of `sdpa` are names of the same arguments."""
    graph, _, results, _ = made(T.FP8_E4M3, T.BFLOAT16, left_bound=3, right_bound=1)
    other, _, same, _ = made(T.FP8_E4M3, T.BFLOAT16, diagonal_band_left_bound=3, diagonal_band_right_bound=1)
    for t in (*results[2:], *same[2:]):
        t.set_output(False)
    problems = []
    for g in (graph, other):
        g.validate()
        g.build_operation_graph()
        g.create_execution_plans([cudnn.heur_mode.A])
        (step,) = g._engines.first().steps
        problems.append(step.problem)
    assert problems[0].amax_s is problems[0].amax_o is None and problems[0].scale_o is not None
    assert (problems[0].left, problems[0].right) == (problems[1].left, problems[1].right) == (2, 1)


def test_ports():
    """NVIDIA's names of the node and of its tensors."""
    graph, *_ = made(T.FP8_E4M3, T.FP8_E4M3)
    (node,) = graph.nodes
    assert node.operation.tag == "SDPA_FP8_FWD" and list(node.outputs) == ["O", "Stats", "Amax_S", "Amax_O"]
    assert {"Q", "K", "V", "Descale_Q", "Descale_K", "Descale_V", "Descale_S", "Scale_S", "Scale_O"} == set(node.inputs)


def changed(**given):
    """A call of the method whose arguments are right but for these."""
    graph = new_graph(T.FP8_E4M3)
    q, k, v = (graph.tensor(shape, [shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1], T.FP8_E4M3)
               for shape in ([B, H, S, D], [B, G, N, D], [B, G, N, E]))
    one = {name: graph.tensor([1, 1, 1, 1], [1, 1, 1, 1], T.FLOAT) for name in FACTORS}
    given = {name: make(graph) if callable(make) else make for name, make in given.items()}
    results = graph.sdpa_fp8(**{"q": q, "k": k, "v": v, **one, "is_inference": True, "name": "it", **given})
    results[0].set_output(True)
    graph.validate()
    graph.build_operation_graph()


@pytest.mark.parametrize("given, error, words", [
    ({"descale_k": lambda g: g.tensor([1, 2, 1, 1], [2, 1, 1, 1], T.FLOAT)}, ValueError, "Descale_K .*got dims .*expected one element"),
    ({"scale_o": None}, RuntimeError, "scale_o is None; expected a tensor"),
    ({"left_bound": 2, "diagonal_band_left_bound": 3}, RuntimeError, "left_bound and diagonal_band_left_bound.*expected one of them"),
    ({"q": lambda g: g.tensor([B, H, S, D], [H * S * D, S * D, D, 1], T.HALF)}, cudnn.cudnnGraphNotSupportedError,
     "port Q .*got type HALF; expected FP8_E4M3 or FP8_E5M2"),
    ({"k": lambda g: g.tensor([B, G, N, D], [G * N * D, N * D, D, 1], T.FP8_E5M2)}, cudnn.cudnnGraphNotSupportedError,
     "port K .*FP8_E5M2; expected .*the same of q, k and v"),
    ({"fn": lambda g: lambda graph, scores: scores}, cudnn.cudnnGraphNotSupportedError, "'it': got fn; expected None"),
    ({"generate_stats": True}, RuntimeError, "'it': got generate_stats=True and is_inference=True; expected exactly one")])
def test_refusals(given, error, words):
    with pytest.raises(error, match=words):
        changed(**given)


def test_backward_is_refused_by_name():
    graph = new_graph(T.FP8_E4M3)
    t = graph.tensor([B, H, S, D], [H * S * D, S * D, D, 1], T.FP8_E4M3)
    results = graph.sdpa_fp8_backward(*[t] * 18, name="it")
    assert len(results) == 7
    with pytest.raises(cudnn.cudnnGraphNotSupportedError, match="sdpa_fp8_backward node 'it': .*gradients of 8-bit floats"):
        graph.validate()
