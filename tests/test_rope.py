"""Rotary embeddings: against complex numbers, random problems, words, bad input."""
import contract
import labs
import numpy as np
import pytest
from cases import lay
from cases._cross_entropy import SHORT
from cases._rope import Backward, Forward
from labs import array, host

import dnnkern
from dnnkern import dispatch
from dnnkern.attention._parse import FAMILY, SMALL, parse_problem
from test_attention_bad_input import refused

FWD, BWD = dnnkern.rope_fwd, dnnkern.rope_bwd
OPS = ("rope_fwd", "rope_bwd")


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("algo", ["naive", "rows"])
def test_pairs_are_complex_numbers(algo, interleaved):
    rng = np.random.default_rng(1)
    x, angle = rng.standard_normal((2, 3, 5, 10)), rng.uniform(-4, 4, (5, 4))
    given = array(np.cos(angle), "float64"), array(np.sin(angle), "float64")

    def numbers(x):
        pairs = x[..., :8].reshape(2, 3, 5, 4, 2) if interleaved else x[..., :8].reshape(2, 3, 5, 2, 4).swapaxes(-1, -2)
        return pairs[..., 0] + 1j * pairs[..., 1]
    y = host(FWD(array(x, "float64"), *given, interleaved=interleaved, algo=algo))
    np.testing.assert_allclose(numbers(y), numbers(x) * np.exp(1j * angle), atol=1e-14)
    np.testing.assert_array_equal(y[..., 8:], x[..., 8:])
    back = host(BWD(array(y, "float64"), *given, interleaved=interleaved, algo=algo))
    np.testing.assert_allclose(back, x, atol=1e-14)


@pytest.mark.parametrize("kind", [Forward, Backward])
def test_random_problems(kind, request):
    def problems(draw):
        st = pytest.importorskip("hypothesis").strategies
        lead, length = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5]), max_size=3))), draw(st.integers(1, 40))
        angles = tuple(draw(st.sampled_from([1, n])) for n in lead)[draw(st.integers(0, len(lead))):]
        dtype = draw(st.sampled_from(list(SHORT)))
        layout = {name: contract.random_layout(draw, st, len(lead) + 1) for name in ("x", "y")}
        real = "float64" if dtype == "float64" else "float32"
        return kind("random", (*lead, length), (*angles, draw(st.integers(0, length // 2))), dtype, draw(st.sampled_from(["", real])),
                    draw(st.booleans()), draw(st.booleans()), layout)
    contract.random_problems(request, problems, 15)


@pytest.mark.parametrize("op", OPS)
def test_words_and_records(op):
    problem = parse_problem("2x7x3x16 bf16 --pairs 4 --heads-inside --interleaved --angles f32 --in-place".split(), op)
    assert (problem.pairs, problem.cos.shape, problem.interleaved, problem.in_place) == (4, (7, 1, 4), True, True)
    assert FAMILY[op][2](dispatch.problem_record(problem)) == problem
    with pytest.raises(ValueError, match="not a record"):
        FAMILY[op][2]({"x": 1})
    for words in (["16", "f32"], ["4x16", "f31"], ["4x16", "f32", "--pairs", "9"], ["4x16", "int8"], ["4x16", "f32", "--heads-inside"],
                  ["4x16", "f16", "--angles", "bf16"]):
        with pytest.raises((ValueError, TypeError)):
            parse_problem(words, op)
    for text in SMALL[op]:
        assert parse_problem(text.split(), op).outputs[0].size
    assert parse_problem("8x16x32 f32".split(), op).bytes == 4 * (2 * 8 * 16 * 32 + 2 * 16 * 16)


@pytest.mark.parametrize("op", OPS)
def test_the_problems_of_the_bench_have_a_fast_algorithm(op):
    shapes = pytest.importorskip(f"bench.shapes.{op}")
    for case in shapes.cases("all", ("float64", "bfloat16")):
        assert dispatch.get_algorithm(op, case.problem).name == "rows", case


@pytest.mark.parametrize("function, name", [(FWD, "x"), (BWD, "dy")])
def test_bad_input(function, name):
    x, angle, out = array(np.ones((3, 8))), array(np.ones((3, 4))), labs.guarded(lay((3, 8), "float32"))
    given = {"out": out.array}
    refused(TypeError, [f"{name}: ", "NoneType"], function, None, angle, angle, **given)
    refused(TypeError, ["sin: ", "NoneType"], function, x, angle, None, **given)
    refused(TypeError, [f"{name} is int32", "bfloat16"], function, array(np.ones((3, 8)), "int32"), angle, angle, **given)
    refused(TypeError, ["cos is float16", "float32"], function, x, array(np.ones((3, 4)), "float16"), angle, **given)
    refused(TypeError, ["interleaved=1"], function, x, angle, angle, interleaved=1, **given)
    refused(ValueError, ["cos has shape (2, 4)", "(3, R / 2)", "R up to 8"], function, x, array(np.ones((2, 4))), angle, **given)
    refused(ValueError, ["cos has shape (3, 5)", "R up to 8"], function, x, array(np.ones((3, 5))), angle, **given)
    refused(ValueError, ["cos has shape (1, 3, 4)"], function, x, array(np.ones((1, 3, 4))), angle, **given)
    refused(ValueError, ["same number of pairs"], function, x, angle, array(np.ones((3, 2))), **given)
    refused(ValueError, [f"{name} has no dimensions"], function, array(1.0), angle, angle, **given)
    refused(ValueError, ["9 dimensions"], function, array(np.ones((1,) * 9)), angle, angle, **given)
    refused(ValueError, ["out has shape (3, 8)", "(2, 8)"], function, array(np.ones((2, 8))), array(np.ones(4)), array(np.ones(4)), **given)
    refused(TypeError, ["out is float64"], function, x, angle, angle, out=array(np.ones((3, 8)), "float64"))
    labs.synchronize()
    out.assert_untouched("out")
