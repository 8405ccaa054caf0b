"""Local response normalisation: against PyTorch, words, bad input."""
import numpy as np
import pytest
from labs import array, host
from test_norm import refused

import dnnkern
from dnnkern import dispatch
from dnnkern.norm._parse import FAMILY, SMALL, parse_problem

OPS = ("lrn_fwd", "lrn_bwd")


@pytest.mark.parametrize("size", [1, 3, 4, 5])
def test_torch_agrees(size):
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(4)
    x, dy = rng.standard_normal((2, 2, 7, 3, 4))
    t = torch.from_numpy(x.copy()).requires_grad_()
    want = torch.nn.functional.local_response_norm(t, size, 0.3, 0.6, 1.5)
    want.backward(torch.from_numpy(dy))
    settings = {"size": size, "alpha": 0.3, "beta": 0.6, "k": 1.5}
    given = array(x, "float64")
    y = dnnkern.lrn_fwd(given, **settings)
    np.testing.assert_allclose(host(y), want.detach().numpy(), rtol=1e-12)
    dx = dnnkern.lrn_bwd(array(dy, "float64"), given, y, **settings)
    np.testing.assert_allclose(host(dx), t.grad.numpy(), rtol=1e-10, atol=1e-12)


def test_layouts_agree():
    x = np.random.default_rng(7).standard_normal((2, 6, 4, 5))
    first = dnnkern.lrn_fwd(array(x, "float64"), size=3)
    last = dnnkern.lrn_fwd(array(np.ascontiguousarray(x.transpose(0, 2, 3, 1)), "float64"), size=3, layout="NHWC")
    np.testing.assert_allclose(host(first).transpose(0, 2, 3, 1), host(last), rtol=1e-14)


@pytest.mark.parametrize("op", OPS)
def test_words_and_records(op):
    problem = parse_problem("4x30x5x6 bf16 nhwc 7".split(), op)
    assert problem.x.shape == (4, 5, 6, 30) and problem.size == 7
    assert FAMILY[op][2](dispatch.problem_record(problem)) == problem
    with pytest.raises(ValueError, match="not a record"):
        FAMILY[op][2]({"size": 3})
    for words in (["4x", "f32"], ["4x4", "f31"], ["4x4", "f32", "ncwh"], ["4x4", "f32", "0"], ["4x4", "int8"]):
        with pytest.raises((ValueError, TypeError)):
            parse_problem(words, op)
    for text in SMALL[op]:
        assert parse_problem(text.split(), op).x.size
    shapes = pytest.importorskip(f"bench.shapes.{op}")
    for case in shapes.cases("all", ("float32", "bfloat16")):
        assert case.problem.op == op and dispatch.get_algorithm(op, case.problem)


def test_bad_input():
    x = array(np.ones((2, 4, 3)))
    refused(TypeError, ["x: ", "NoneType"], dnnkern.lrn_fwd, None)
    refused(TypeError, ["y: ", "NoneType"], dnnkern.lrn_bwd, x, x, None)
    refused(TypeError, ["x is int32", "bfloat16"], dnnkern.lrn_fwd, array(np.ones((2, 4)), "int32"))
    refused(TypeError, ["y is float16", "float32"], dnnkern.lrn_bwd, x, x, array(np.ones((2, 4, 3)), "float16"))
    refused(ValueError, ["dy has shape (2, 4)", "(2, 4, 3)"], dnnkern.lrn_bwd, array(np.ones((2, 4))), x, x)
    refused(ValueError, ["x has shape (4,)"], dnnkern.lrn_fwd, array(np.ones(4)))
    refused(ValueError, ["size is 0"], dnnkern.lrn_fwd, x, size=0)
    refused(TypeError, ["size=2.5"], dnnkern.lrn_bwd, x, x, x, size=2.5)
    refused(ValueError, ["layout='NCWH'"], dnnkern.lrn_fwd, x, layout="NCWH")
    refused(ValueError, ["y of out has shape (4,)"], dnnkern.lrn_fwd, x, out=array(np.ones(4)))
    refused(ValueError, ["same memory as x"], dnnkern.lrn_fwd, x, out=x)
