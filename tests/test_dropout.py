"""Dropout: what is drawn, statistics, in place, words, bad input."""
import contract
import labs
import numpy as np
import pytest
from cases import lay, numpy_dtype
from cases._dropout import Backward, Forward, keep_bits
from labs import array, host, refused

import dnnkern
from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.dispatch import NotSupported
from dnnkern.dropout._parse import FAMILY, SMALL, parse_problem

OPS = ("dropout_fwd", "dropout_bwd")
ALGORITHMS = ("naive", "vector")


def words(number):
    """An array of one int64."""
    return array([number], "int64")


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_bits_do_not_depend_on_dtype_shape_or_algorithm(dtype):
    want = np.packbits(keep_bits(600, 0.3, 11, 4), bitorder="little")
    for shape in ((600,), (20, 30), (5, 8, 15)):
        for algo in ALGORITHMS:
            _, mask = dnnkern.dropout_fwd(array(np.ones(shape), dtype), 0.3, 11, offset=4, algo=algo)
            np.testing.assert_array_equal(host(mask), want, err_msg=f"{shape} {algo}")


def test_calls_of_other_offsets_and_seeds_draw_independently():
    n = 4096
    masks = [np.unpackbits(host(dnnkern.dropout_fwd(array(np.ones(n)), 0.5, seed, offset=offset)[1]).astype(np.uint8))
             for seed, offset in ((0, 0), (0, 1), (1, 0), (1, 1))]
    for k, a in enumerate(masks):
        assert abs(a.mean() - 0.5) < 4 * 0.5 / n ** 0.5
        for b in masks[:k]:
            assert abs((a ^ b).mean() - 0.5) < 4 * 0.5 / n ** 0.5


@pytest.mark.parametrize("p", [0.0, 2.0 ** -17, 1e-6, 0.1, 0.9, 1 - 1e-9])
def test_the_share_that_is_dropped(p):
    n = 8192
    y, mask = (host(a) for a in dnnkern.dropout_fwd(array(np.ones(n)), p, 3))
    kept = np.unpackbits(mask.astype(np.uint8), bitorder="little").astype(bool)
    assert abs(kept.mean() - (1 - p)) <= 4 * (p * (1 - p) / n) ** 0.5 + 2.0 ** -16
    np.testing.assert_allclose(y[kept], 1 / (1 - p), rtol=1e-6)
    assert not y[~kept].any()


def test_what_is_dropped_is_zero_even_if_it_was_not_finite():
    x = np.resize([np.nan, np.inf, -np.inf], 300)
    for algo in ALGORITHMS:
        y, mask = dnnkern.dropout_fwd(array(x), 0.5, 2, algo=algo)
        kept = np.unpackbits(host(mask).astype(np.uint8), bitorder="little")[:300].astype(bool)
        np.testing.assert_array_equal(host(y), np.where(kept, x, 0))
        np.testing.assert_array_equal(host(dnnkern.dropout_bwd(array(x), mask, 0.5, algo=algo)), np.where(kept, x, 0))


def test_the_gradient_is_pytorchs_for_the_same_mask():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(3)
    x, dy = rng.standard_normal((7, 33)), rng.standard_normal((7, 33))
    y, mask = dnnkern.dropout_fwd(array(x, "float64"), 0.2, 9)
    kept = np.unpackbits(host(mask).astype(np.uint8), bitorder="little")[:x.size].reshape(x.shape)
    t = torch.from_numpy(x).requires_grad_()
    want = t * torch.from_numpy(kept) / 0.8
    want.backward(torch.from_numpy(dy))
    np.testing.assert_allclose(host(y), want.detach().numpy(), rtol=1e-14)
    np.testing.assert_allclose(host(dnnkern.dropout_bwd(array(dy, "float64"), mask, 0.2)), t.grad.numpy(), rtol=1e-14)


def test_another_probability_compiles_nothing():
    from dnnkern.dropout import FORWARD
    x = array(np.ones(77))
    dnnkern.dropout_fwd(x, 0.1, 1)
    plans = len(FORWARD.plans)
    dnnkern.dropout_fwd(x, 0.7, 2, offset=3)
    assert len(FORWARD.plans) == plans


# ---- seeds and offsets in memory

@pytest.mark.parametrize("algo", ALGORITHMS)
@pytest.mark.parametrize("seed, offset", [(7, 3), (-5, 2 ** 40)])
def test_a_seed_or_an_offset_in_memory_draws_what_the_number_draws(algo, seed, offset):
    x = array(np.ones((5, 40)))
    want = [host(t) for t in dnnkern.dropout_fwd(x, 0.5, seed, offset=offset, algo=algo)]
    for seeds, offsets in ((words(seed), offset), (seed, words(offset)), (words(seed), words(offset))):
        for got, one in zip(dnnkern.dropout_fwd(x, 0.5, seeds, offset=offsets, algo=algo), want):
            np.testing.assert_array_equal(host(got), one)


def test_other_numbers_in_memory_draw_anew_without_a_plan():
    from dnnkern.dropout import FORWARD
    x, seed = array(np.ones(200)), words(1)
    masks = [host(dnnkern.dropout_fwd(x, 0.5, seed)[1])]
    plans = len(FORWARD.plans), len(FORWARD.calls)
    for number in (2, 1):
        seed[...] = number
        masks.append(host(dnnkern.dropout_fwd(x, 0.5, seed)[1]))
    assert (len(FORWARD.plans), len(FORWARD.calls)) == plans
    assert np.array_equal(masks[0], masks[2]) and not np.array_equal(masks[0], masks[1])


@pytest.mark.skipif(SIMULATED, reason="CUDA graphs need a GPU")
def test_a_replayed_graph_draws_anew():
    import torch
    x, seed = array(np.ones(4096)), words(1)
    dnnkern.dropout_fwd(x, 0.5, seed)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        _, mask = dnnkern.dropout_fwd(x, 0.5, seed)
        seed += 1
    for number in (1, 2, 3):
        graph.replay()
        want = np.packbits(keep_bits(4096, 0.5, number, 0), bitorder="little")
        np.testing.assert_array_equal(host(mask), want)


def test_what_seeds_in_memory_must_be():
    x = array(np.ones(20))
    for name, wrong, error, text in (("seed", array([1], "int32"), TypeError, "int32"), ("offset", array([1.0]), TypeError, "float32"),
                                     ("seed", array([1, 2], "int64"), ValueError, r"\(2,\)"),
                                     ("offset", array([], "int64"), ValueError, r"\(0,\)")):
        with pytest.raises(error, match=f"dropout_fwd: {name} .*{text}.*one int64"):
            dnnkern.dropout_fwd(x, 0.5, **{"seed": 1, name: wrong})


@pytest.mark.parametrize("kind", [Forward, Backward])
def test_random_problems(kind, request):
    def problems(draw):
        from hypothesis import strategies as st
        rank = draw(st.integers(1, 3))
        shape = tuple(draw(st.sampled_from([1, 2, 3, 8])) for _ in range(rank - 1)) + (draw(st.integers(0, 70)),)
        layout = {name: contract.random_layout(draw, st, rank) for name in ("x", "y")}
        dtype, p = draw(st.sampled_from(["float64", "float32", "float16", "bfloat16"])), draw(st.sampled_from([0.0, 0.25, 0.6]))
        return kind("random", shape, dtype, p, draw(st.integers(0, 99)), draw(st.integers(0, 2 ** 40)), draw(st.booleans()), layout)
    contract.random_problems(request, problems, 30)


# ---- words and records

@pytest.mark.parametrize("op", OPS)
def test_words_and_records(op):
    problem = parse_problem("4x30 bf16 --in-place".split(), op)
    assert (problem.source.shape, problem.in_place, problem.mask.shape) == ((4, 30), True, (15,))
    assert FAMILY[op][2](dispatch.problem_record(problem)) == problem
    assert problem.bytes == 2 * 240 + 15
    with pytest.raises(ValueError, match="not a record"):
        FAMILY[op][2]({"in_place": True})
    for words in (["4x", "f32"], ["4x4", "f31"], ["4x4", "int8"]):
        with pytest.raises((ValueError, TypeError)):
            parse_problem(words, op)
    for text in SMALL[op]:
        assert parse_problem(text.split(), op).outputs[0].size


@pytest.mark.parametrize("op", OPS)
def test_the_problems_of_the_bench_have_an_algorithm(op):
    shapes = pytest.importorskip(f"bench.shapes.{op}")
    for case in shapes.cases("all", ("float64", "bfloat16")):
        assert dispatch.get_algorithm(op, case.problem).name == "vector", case


# ---- bad input

@pytest.mark.parametrize("p, error", [(-0.1, ValueError), (1, ValueError), (1.5, ValueError), (float("nan"), ValueError),
                                      ("half", TypeError), (None, TypeError)])
def test_probabilities(p, error):
    x, y, mask = array(np.ones((3, 8))), labs.guarded(lay((3, 8), "float32")), labs.guarded(lay((3,), "uint8"))
    refused(error, [f"p={p}" if error is ValueError else "expected a real number"], dnnkern.dropout_fwd, x, p, 1, out=(y.array, mask.array))
    refused(error, ["p="], dnnkern.dropout_bwd, x, array(np.ones(3), "uint8"), p, out=y.array)
    labs.synchronize()
    y.assert_untouched("y")
    mask.assert_untouched("mask")


def test_seeds():
    x = array(np.ones((3, 8)))
    refused(TypeError, ["seed=1.5", "integer"], dnnkern.dropout_fwd, x, 0.5, 1.5)
    refused(ValueError, ["seed=18446744073709551616", "64 bits"], dnnkern.dropout_fwd, x, 0.5, 2 ** 64)
    refused(ValueError, ["offset=-9223372036854775809"], dnnkern.dropout_fwd, x, 0.5, 0, offset=-2 ** 63 - 1)


def test_operands():
    x, bits = array(np.ones((3, 8))), array(np.ones(3), "uint8")
    refused(TypeError, ["x: ", "NoneType"], dnnkern.dropout_fwd, None, 0.5, 1)
    refused(TypeError, ["mask: ", "NoneType"], dnnkern.dropout_bwd, x, None, 0.5)
    refused(TypeError, ["x is int32", "bfloat16"], dnnkern.dropout_fwd, array(np.ones((3, 8)), "int32"), 0.5, 1)
    refused(ValueError, ["9 dimensions"], dnnkern.dropout_fwd, array(np.ones((1,) * 9)), 0.5, 1)
    refused(TypeError, ["mask is int32", "uint8"], dnnkern.dropout_bwd, x, array(np.ones(3), "int32"), 0.5)
    refused(ValueError, ["mask has shape (4,)", "(3,)", "24 elements"], dnnkern.dropout_bwd, x, array(np.ones(4), "uint8"), 0.5)
    refused(ValueError, ["mask has strides (2,)", "packed"], dnnkern.dropout_bwd, x, array(np.ones(3), "uint8", step=2), 0.5)
    refused(TypeError, ["out is float16", "float32"], dnnkern.dropout_bwd, x, bits, 0.5, out=array(np.ones((3, 8)), "float16"))
    refused(ValueError, ["out has shape (8, 3)"], dnnkern.dropout_bwd, x, bits, 0.5, out=array(np.ones((8, 3))))
    shared = labs.guarded(lay((3, 8), "float32", expand=(0,))).array
    refused(ValueError, ["share one address"], dnnkern.dropout_bwd, x, bits, 0.5, out=shared)
    refused(ValueError, ["out has 1 arrays", "y, mask"], dnnkern.dropout_fwd, x, 0.5, 1, out=x)
    refused(NotSupported, ["algo='fast'"], dnnkern.dropout_fwd, x, 0.5, 1, algo="fast")
    if SIMULATED:
        whole = array(np.ones((4, 8)))
        refused(ValueError, ["partly overlaps dy"], dnnkern.dropout_bwd, whole[:3], bits, 0.5, out=whole[1:])
        raw = np.zeros(128, np.uint8)
        y = raw[:96].view(numpy_dtype("float32")).reshape(3, 8)
        refused(ValueError, ["another output"], dnnkern.dropout_fwd, x, 0.5, 1, out=(y, raw[90:93]))


# ---- beyond 32 bits

@pytest.mark.parametrize("kind", [Forward, Backward])
def test_offsets_of_64_bits(kind, simulated, monkeypatch):
    """The kernels for large arrays, on small ones."""
    from dnnkern.dropout import _problem
    monkeypatch.setattr(_problem._Dropout, "is_wide", True)
    vector = next(a for a in dispatch.algorithms(kind.op) if a.name == "vector")
    for case in (kind("wide-137", (137,)), kind("wide-5x32", (5, 32), "bfloat16", layout={"x": {"gap": 3}})):
        assert case.problem().is_wide
        with contract.registered(vector) as mine:
            contract.check_exact(mine, case)
