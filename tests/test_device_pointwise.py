"""`dnnkern.device.pointwise`: cuDNN's modes by name, int32 beside the floats; values of floats in `test_act` and `test_device_epilogue`."""
import numpy as np
import pytest
from kit import launch

from dnnkern.device import cuda, i32
from dnnkern.device.pointwise import BINARY, COMPARISONS, INTEGER, LOGICAL, UNARY, Function, make_function

FORWARD = ("relu", "leaky_relu", "tanh", "sigmoid", "elu", "gelu", "gelu_approx_tanh", "swish", "softplus")
EDGES = np.array([0, 1, -1, 2, -2, 3, 7, -7, 46341, -46341, 2**31 - 1, -2**31, -2**31 + 1, 1 << 30], np.int64)


def _wrapped(values):
    return np.asarray(values, np.int64).astype(np.int32)


def _truncated(a, b):
    nonzero = np.where(b == 0, 1, b)
    return np.where(b == 0, 0, np.sign(a) * np.sign(nonzero) * (abs(a) // abs(nonzero)))


def _remainder(a, b):
    return np.where(b == 0, 0, a - _truncated(a, b) * b)


DEFINITIONS = {
    "identity": lambda a, b, c: a, "gen_index": lambda a, b, c: a, "ceil": lambda a, b, c: a, "floor": lambda a, b, c: a,
    "neg": lambda a, b, c: -a, "abs": lambda a, b, c: abs(a), "add": lambda a, b, c: a + b, "sub": lambda a, b, c: a - b,
    "mul": lambda a, b, c: a * b, "div": lambda a, b, c: _truncated(a, b),
    "mod": lambda a, b, c: _remainder(a, b),
    "max": lambda a, b, c: np.maximum(a, b), "min": lambda a, b, c: np.minimum(a, b),
    "add_square": lambda a, b, c: a + _wrapped(b * b).astype(np.int64), "binary_select": lambda a, b, c: np.where(c != 0, a, b),
    "cmp_eq": lambda a, b, c: a == b, "cmp_neq": lambda a, b, c: a != b, "cmp_gt": lambda a, b, c: a > b,
    "cmp_ge": lambda a, b, c: a >= b, "cmp_lt": lambda a, b, c: a < b, "cmp_le": lambda a, b, c: a <= b,
    "logical_and": lambda a, b, c: (a != 0) & (b != 0), "logical_or": lambda a, b, c: (a != 0) | (b != 0),
    "logical_not": lambda a, b, c: a == 0,
}


def _run(function, compute, a, b, c):
    f = make_function(function, compute)

    @cuda.jit(launch_bounds=128)
    def kernel(a, b, c, y, n):
        for i in range(i32(cuda.threadIdx.x), n, 128):
            y[i] = f(a[i], b[i], c[i])
    y = np.zeros_like(a)
    launch(kernel, 1, 128, a, b, c, y, len(a))
    return y


@pytest.mark.parametrize("mode", INTEGER)
def test_int32(mode):
    a, b = (v.ravel() for v in np.meshgrid(EDGES, EDGES))
    c = np.arange(len(a), dtype=np.int64) % 3
    got = _run(Function.of(mode), "int32", *(v.astype(np.int32) for v in (a, b, c)))
    np.testing.assert_array_equal(got, _wrapped(DEFINITIONS[mode](a, b, c)))


def test_every_mode_has_a_name():
    for mode in (*UNARY, *BINARY, "bias", "scale", *FORWARD):
        f = Function.of(mode)
        assert f.inputs == (3 if mode == "binary_select" else 2 if mode in (*BINARY, "bias", "scale") else 1)
        assert f.results == 1 and f.is_condition == (mode in (*COMPARISONS, *LOGICAL))
    for mode in FORWARD:
        assert Function.of(f"{mode}_backward").inputs == 2
    clipped = Function.of("relu_backward", lower_clip=0.5, upper_clip=6, negative_slope=0.1)
    assert clipped.activation["upper_clip"] == 6 and clipped.op == "activation_bwd"
    assert Function.of("swish", beta=2).activation["beta"] == Function.of("softplus", beta=2).activation["beta"] == 2
    assert Function.of("elu", alpha=0.5).activation["alpha"] == 0.5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_gradients_by_name(dtype):
    x, dy = np.linspace(-3, 7, 61, dtype=dtype), np.linspace(1, 2, 61, dtype=dtype)
    got = _run(Function.of("relu_backward", lower_clip=0.55, upper_clip=6, negative_slope=0.25), dtype, dy, x, x)
    np.testing.assert_allclose(got, dy * np.where(x <= 0.55, 0.25, np.where(x >= 6, 0, 1)), rtol=1e-6)
    s = 1 / (1 + np.exp(-1.5 * x.astype(np.float64)))
    got = _run(Function.of("swish_backward", beta=1.5), dtype, dy, x, x)
    np.testing.assert_allclose(got, dy * (s + 1.5 * x * s * (1 - s)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mode, parameters, message", [
    ("adds", {}, "mode='adds'; expected one of identity, neg"),
    ("add", {"beta": 1}, "add takes no parameters, got beta"),
    ("elu", {"beta": 1}, "no parameter beta"),
    ("add_backward", {}, "mode='add_backward'"), ("relu_backward2", {}, "mode='relu_backward2'")])
def test_names_that_are_none(mode, parameters, message):
    with pytest.raises(ValueError, match=message):
        Function.of(mode, **parameters)


def test_no_function_of_such_values():
    with pytest.raises(TypeError, match="make_function: sqrt of int32; expected one of identity"):
        make_function(Function.of("sqrt"), "int32")
    with pytest.raises(TypeError, match="make_function: the type 'float16'; expected one of float32"):
        make_function(Function.of("sqrt"), "float16")
