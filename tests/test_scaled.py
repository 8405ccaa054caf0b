"""Arrays that are scaled and added in place: against PyTorch, what is read and compiled, bad input."""
import numpy as np
import pytest
from labs import array
from test_act import ALGORITHMS, Out, host, refused

import dnnkern


def test_scaled_arrays_are_pytorchs():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(8)
    a, c = rng.standard_normal((4, 1)), rng.standard_normal((3, 4, 9))
    got = host(dnnkern.add_tensor(array(a, "float64"), array(c, "float64"), alpha=0.3, beta=-1.7))
    want = torch.from_numpy(c).mul(-1.7).add(torch.from_numpy(a), alpha=0.3)
    assert np.allclose(got, want.numpy(), rtol=1e-15, atol=1e-15)
    assert np.array_equal(host(dnnkern.scale_tensor(array(c, "float64"), 0.3)), torch.from_numpy(c).mul(0.3).numpy())


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_numbers_work_in_place_and_compile_nothing_anew(algo):
    from dnnkern.act import ADD_TENSOR, SCALE_TENSOR
    x = array(np.arange(24.0).reshape(4, 6))
    bias = array(np.ones(()) if algo == "vector" else np.ones((4, 1)))
    assert dnnkern.scale_tensor(x, 2, algo=algo) is x and dnnkern.add_tensor(bias, x, algo=algo) is x
    plans = len(SCALE_TENSOR.plans), len(ADD_TENSOR.plans)
    dnnkern.scale_tensor(x, -0.5, algo=algo)
    dnnkern.add_tensor(bias, x, alpha=np.float32(3), beta=2, algo=algo)
    assert plans == (len(SCALE_TENSOR.plans), len(ADD_TENSOR.plans))
    assert np.array_equal(host(x), -(2 * np.arange(24.0).reshape(4, 6) + 1) + 3)


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_what_is_overwritten_is_not_read(algo):
    c = array(np.full((3, 40), np.nan))
    assert (host(dnnkern.add_tensor(array(np.ones((3, 40))), c, alpha=4, beta=0, algo=algo)) == 4).all()
    assert np.isnan(host(dnnkern.add_tensor(array(np.ones((3, 40))), array(np.full((3, 40), np.nan)), algo=algo))).all()


def test_they_belong_to_the_transforms_too():
    import dnnkern.transform
    assert dnnkern.transform.scale_tensor is dnnkern.scale_tensor and dnnkern.transform.add_tensor is dnnkern.add_tensor
    with pytest.raises(AttributeError, match="sub_tensor"):
        dnnkern.transform.sub_tensor


def test_bad_scaled_arrays():
    x = array(np.ones((2, 3)))
    refused(TypeError, ["x: got NoneType"], "scale_tensor", None, 2.0)
    refused(ValueError, ["out has shape (3, 2)", "(2, 3)"], "scale_tensor", x, 2.0, out=Out((3, 2)))
    refused(TypeError, ["out is float16", "float32"], "scale_tensor", x, 2.0, out=Out((2, 3), "float16"))
    refused(TypeError, ["c: got NoneType"], "add_tensor", x, None, out=Out((2, 3)))
    refused(TypeError, ["a is float16", "c is float32"], "add_tensor", array(np.ones(3), "float16"), x)
    refused(ValueError, ["a has shape (2,)", "(2, 3)"], "add_tensor", array(np.ones(2)), x)
    refused(ValueError, ["a has shape (4, 2, 3)"], "add_tensor", array(np.ones((4, 2, 3))), x)
    refused(ValueError, ["same memory as a"], "add_tensor", x, x)
    both = array(np.zeros((4, 8)))
    refused(ValueError, ["overlaps a"], "add_tensor", both[:, 1:5], both[:, :4])
