"""`dnnkern.device.fastmath`: each function within the error its documentation states, over its range, and at the special values."""
import fractions
import math

import numpy as np
import pytest
from kit import launch

from dnnkern.device import cuda, device_function, f32, fastmath, i32

THREADS = 128
TINY = 2.0 ** -126


def _map(function, *operands):
    n = len(operands[0])
    y = np.zeros_like(operands[0])
    if len(operands) == 1:
        @cuda.jit(launch_bounds=THREADS)
        def kernel(a, y, n):
            for i in range(i32(cuda.threadIdx.x), n, THREADS):
                y[i] = function(a[i])
    elif len(operands) == 2:
        @cuda.jit(launch_bounds=THREADS)
        def kernel(a, b, y, n):
            for i in range(i32(cuda.threadIdx.x), n, THREADS):
                y[i] = function(a[i], b[i])
    else:
        @cuda.jit(launch_bounds=THREADS)
        def kernel(a, b, c, y, n):
            for i in range(i32(cuda.threadIdx.x), n, THREADS):
                y[i] = function(a[i], b[i], c[i])
    launch(kernel, 1, THREADS, *operands, y, n)
    return y


def _range(low, high, dtype="float32", n=1500, log=False):
    rng = np.random.default_rng(17)
    x = np.exp(rng.uniform(math.log(low), math.log(high), n)) if log else rng.uniform(low, high, n)
    return x.astype(dtype)


def _check(got, exact, relative, absolute=0.0):
    """|got - exact| <= relative*|exact| + absolute, and one rounding of the result."""
    rounding = np.finfo(got.dtype).eps / 2
    np.testing.assert_array_less(abs(got.astype(np.float64) - exact), abs(exact) * (relative + rounding) + absolute + 1e-300)


FAST = {  # argument, function, relative, absolute error
    "ex2": (_range(-125, 127), np.exp2, 2**-22, 0),
    "lg2": (_range(1e-37, 1e38, log=True), np.log2, 2**-22, 2**-22),
    "rcp": (_range(1e-37, 1e37, log=True), np.reciprocal, 2**-23, 0),
    "rsqrt": (_range(1e-37, 1e37, log=True), lambda x: 1 / np.sqrt(x), 2**-22.9, 0),
    "rsqrt_wide": (_range(1e-44, 1e38, log=True), lambda x: 1 / np.sqrt(x), 2**-22.9, 0),
    "sqrt_fast": (_range(1e-37, 1e37, log=True), np.sqrt, 2**-23, 0),
    "tanh_fast": (_range(-12, 12), np.tanh, 2**-11, 0),
    "sin_fast": (_range(-6.28, 6.28), np.sin, 0, 2**-20.5),
    "cos_fast": (_range(-6.28, 6.28), np.cos, 0, 2**-20.5),
    "exp_fast": (_range(-80, 80), np.exp, 2**-22 + 80 * 2**-24, 0),
    "log_fast": (_range(1e-37, 1e38, log=True), np.log, 2**-21, 2**-22),
    "sigmoid_fast": (_range(-80, 80), lambda x: 1 / (1 + np.exp(-x)), 2**-20 + 80 * 2**-24, 0),
    "expm1_negative": (np.concatenate([_range(-90, 0), _range(-0.6, 0), -_range(1e-30, 1, log=True)]), np.expm1, 2**-20, 0),
    "tanh_ratio": (np.concatenate([_range(-0.75, 0.75), _range(1e-30, 0.75, log=True)]), lambda x: np.tanh(x) / x, 2**-22.5, 0),
    "log1p_unit": (np.concatenate([_range(0, 1), _range(1e-30, 1, log=True)]), np.log1p, 2**-21, 0),
    "half_odds": (_range(0, 1), lambda e: 1 / (1 + e), 2**-16.5, 0),
    "bfloat16_odds": (_range(0, 1), lambda e: 1 / (1 + e), 2**-11.5, 0),
    "erfc_positive": (_range(0, 9), np.vectorize(math.erfc), 8e-7 + 81 * 2**-23, 0),
}


@pytest.mark.parametrize("name", FAST)
def test_fast_functions(name):
    x, function, relative, absolute = FAST[name]
    _check(_map(getattr(fastmath, name), x), function(x.astype(np.float64)), relative, absolute)


@pytest.mark.parametrize("name, error", [("normal_tail", 8.6e-7), ("short_tail", 2**-16)])
def test_normal_tail(name, error):
    pair = getattr(fastmath, name)
    x = np.concatenate([_range(0, 13), np.array([0, 14], np.float32)])
    wide = x.astype(np.float64)

    @device_function
    def tail(a):
        return pair(a)[0]

    @device_function
    def density(a):
        return pair(a)[1]
    # the last operand's rounding, seen through the exponential, and what is below the normal numbers
    tails = 0.5 * np.vectorize(math.erfc)(wide / math.sqrt(2))
    for function, exact, bound in ((tail, tails, error), (density, np.exp(-0.5 * wide * wide), 8.6e-7)):
        got = _map(function, x)
        np.testing.assert_array_less(abs(got - exact), exact * (bound + wide * wide * 2**-23) + TINY)


def test_a_product_is_saturated():
    x = np.array([-1, 2, 0.25, np.nan, np.inf, 0, -np.inf], np.float32).repeat(2)
    got = _map(fastmath.product_saturated, x, np.full_like(x, 0.75))
    np.testing.assert_array_equal(got, np.array([0, 1, 0.1875, 0, 1, 0, 0], np.float32).repeat(2))


@pytest.mark.parametrize("name, far, error", [("half_tail", 6.0, 2**-17), ("bfloat16_tail", 13.25, 2**-12)])
def test_tails_of_what_is_rounded_to_16_bits(name, far, error):
    """Of float16's, where the product with the argument is below 2**-14, the error counts beside that."""
    u = np.concatenate([_range(0, 1), np.array([0, 1], np.float32)])
    got = _map(getattr(fastmath, name), u).astype(np.float64)
    a = far * u.astype(np.float64)
    exact = far * 0.5 * np.vectorize(math.erfc)(a / math.sqrt(2))
    least = 2.0**-14 / a.clip(1e-9) * far if name == "half_tail" else 0.0
    np.testing.assert_array_less(abs(got - exact), np.maximum(exact, least) * error + TINY)


SPECIAL = [  # function, argument, result
    ("ex2", -200, 0), ("ex2", 200, np.inf), ("ex2", -np.inf, 0), ("ex2", np.inf, np.inf), ("ex2", np.nan, np.nan),
    ("lg2", 0, -np.inf), ("lg2", np.inf, np.inf), ("lg2", -1, np.nan), ("rcp", 0, np.inf), ("rcp", np.inf, 0), ("rcp", 2.0**127, 0),
    ("rcp", np.nan, np.nan), ("rsqrt", 0, np.inf), ("rsqrt", np.inf, 0), ("rsqrt", -1, np.nan), ("sqrt_fast", 0, 0),
    ("rsqrt_wide", 0, np.inf), ("rsqrt_wide", -0.0, -np.inf), ("rsqrt_wide", np.inf, 0), ("rsqrt_wide", -1, np.nan),
    ("sqrt_fast", -1, np.nan), ("tanh_fast", np.inf, 1),
    ("tanh_fast", -np.inf, -1), ("exp_fast", 1000, np.inf), ("exp_fast", -1000, 0), ("log_fast", 0, -np.inf),
    ("sigmoid_fast", -1000, 0), ("sigmoid_fast", 1000, 1), ("sigmoid_fast", np.nan, np.nan), ("erfc_positive", 0, 1),
    ("erfc_positive", 50, 0), ("expm1_negative", -np.inf, -1), ("expm1_negative", 0, 0), ("expm1_negative", np.nan, np.nan),
    ("log1p_unit", 0, 0), ("log1p_unit", np.nan, np.nan),
    ("saturate", -1, 0), ("saturate", 2, 1), ("saturate", 0.25, 0.25), ("saturate", np.nan, 0), ("fabs", -3, 3), ("fabs", -np.inf, np.inf),
    ("bfloat16_tail", 1, 0),
]


@pytest.mark.parametrize("name, argument, result", SPECIAL)
def test_special_values(name, argument, result):
    got = _map(getattr(fastmath, name), np.full(THREADS, argument, np.float32))
    np.testing.assert_allclose(got, np.full(THREADS, result, np.float32), rtol=5e-7)


ACCURATE = {  # range, reference, ulp in float32, in float64
    "exp": ((-85, 85), np.exp, 2, 1), "exp2": ((-120, 120), np.exp2, 2, 1), "log": ((1e-35, 1e35), np.log, 1, 1),
    "log1p": ((-0.99, 5), np.log1p, 1, 1), "expm1": ((-20, 20), np.expm1, 1, 1), "sqrt": ((0, 1e6), np.sqrt, 1, 1),
    "tanh": ((-9, 9), np.tanh, 2, 2), "sin": ((-100, 100), np.sin, 2, 2), "cos": ((-100, 100), np.cos, 2, 2),
    "tan": ((-1.5, 1.5), np.tan, 4, 2),
    "erf": ((-4, 4), np.vectorize(math.erf), 2, 2), "erfc": ((-4, 5), np.vectorize(math.erfc), 4, 5),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ACCURATE)
def test_accurate_functions(name, dtype):
    (low, high), function, *ulp = ACCURATE[name]
    x = _range(low, high, dtype, log=name == "log")
    if name != "log":
        x = np.concatenate([x, (_range(1e-6, 1, dtype, 300, log=True) * 0.9).astype(dtype)])
    reference = function(x.astype(np.longdouble) if name not in ("erf", "erfc") else x.astype(np.float64))
    # one ulp is at most 2 eps/2 relative; NumPy's own last bit for float64
    relative = ulp[dtype == "float64"] * np.finfo(dtype).eps + (np.finfo("float64").eps if dtype == "float64" else 0)
    _check(_map(getattr(fastmath, name), x), reference.astype(np.float64), relative)


def test_erf_error_bound_of_float32():
    x = np.linspace(-5, 5, 4001).astype(np.float32)
    exact = np.array([math.erf(float(v)) for v in x])
    assert abs(_map(fastmath.erf, x) - exact).max() < 2.5e-7


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_accurate_functions_at_the_limits(dtype):
    def at(name, values):
        return _map(getattr(fastmath, name), np.array(values, dtype))
    inf, nan = np.inf, np.nan
    for name, values, expected in [
            ("exp", [inf, -inf, 1e4, -1e4, nan], [inf, 0, inf, 0, nan]), ("log", [0, inf, -1, nan], [-inf, inf, nan, nan]),
            ("expm1", [-inf, inf, -1e4, nan], [-1, inf, -1, nan]), ("log1p", [-1, inf, nan], [-inf, inf, nan]),
            ("erf", [-inf, inf, nan, 0], [-1, 1, nan, 0]), ("erfc", [-inf, inf, nan, 0], [2, 0, nan, 1]),
            ("tanh", [-inf, inf, nan, 0], [-1, 1, nan, 0]), ("sqrt", [-1, inf, nan, 0], [nan, inf, nan, 0]),
            ("floor", [1.5, -1.5, inf, nan], [1, -2, inf, nan]), ("ceil", [1.5, -1.5, inf, nan], [2, -1, inf, nan]),
            ("rint", [0.5, 1.5, -2.5, nan], [0, 2, -2, nan])]:
        np.testing.assert_array_equal(at(name, values), np.array(expected, dtype), err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pow(dtype):
    x, y = _range(0.01, 100, dtype, log=True), _range(-4, 4, dtype)[::-1].copy()
    exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble)).astype(np.float64)
    _check(_map(fastmath.pow, x, y), exact, 5 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_atan2_and_fmod(dtype):
    x, y = _range(-50, 50, dtype), _range(-4, 4, dtype)[::-1].copy()
    exact = np.arctan2(x.astype(np.longdouble), y.astype(np.longdouble)).astype(np.float64)
    _check(_map(fastmath.atan2, x, y), exact, 3 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(_map(fastmath.fmod, x, y), np.fmod(x, y))
    limits = np.array([1, -1, np.inf, 1, 0, np.nan, 1, -0.0], dtype), np.array([0, np.inf, 1, np.inf, -1, 1, np.nan, 1], dtype)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(_map(fastmath.fmod, *limits), np.fmod(*limits))
    np.testing.assert_allclose(_map(fastmath.atan2, *limits), np.arctan2(*limits), rtol=4 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_fma_rounds_once(dtype):
    rng = np.random.default_rng(18)
    a, b = (rng.standard_normal(400).astype(dtype) for _ in range(2))
    c = (-(a * b) * (1 + rng.integers(-2, 3, 400) * np.finfo(dtype).eps)).astype(dtype)  # nearly cancels: the product's low half decides
    a[:4], b[:4], c[:4] = [1e30, 0, -0.0, 2], [1e-30, 5, 5, np.inf], [-1, -0.0, -0.0, 1]
    if dtype == "float32":  # rounded to float64 first, this would be a tie that goes the wrong way
        a[4], b[4], c[4] = 1 + 2**-12, 1 + 2**-12, 2**-60
        a[5], b[5], c[5] = 2**-75, 2**-74, 2**-100
    got = _map(fastmath.fma, a, b, c)
    for k in range(len(a)):
        if not np.isfinite(b[k]):
            assert got[k] == a[k] * b[k] + c[k]
            continue
        exact = fractions.Fraction(float(a[k])) * fractions.Fraction(float(b[k])) + fractions.Fraction(float(c[k]))
        nearest = got[k]
        error = abs(fractions.Fraction(float(nearest)) - exact)
        for other in (np.nextafter(nearest, np.array(np.inf, dtype)), np.nextafter(nearest, np.array(-np.inf, dtype))):
            assert error <= abs(fractions.Fraction(float(other)) - exact), (a[k], b[k], c[k], nearest)


def test_fma_of_a_double_tie():
    a, b, c = (np.full(THREADS, v, np.float32) for v in (1 + 2**-12, 1 + 2**-12, 2.0**-60))
    # exact: 1 + 2**-11 + 2**-24 + 2**-60, just above the tie between 1 + 2**-11 and the next float
    np.testing.assert_array_equal(_map(fastmath.fma, a, b, c), np.full(THREADS, 1 + 2**-11 + 2**-23, np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_maximum_and_minimum(dtype):
    values = np.array([np.nan, -np.inf, -1, -0.0, 0.0, 1, np.inf], dtype)
    a, b = np.repeat(values, 7), np.tile(values, 7)
    np.testing.assert_array_equal(_map(fastmath.maximum, a, b), np.maximum(a, b))
    np.testing.assert_array_equal(_map(fastmath.minimum, a, b), np.minimum(a, b))
    np.testing.assert_array_equal(_map(fastmath.fmax, a, b), np.fmax(a, b))
    np.testing.assert_array_equal(_map(fastmath.fmin, a, b), np.fmin(a, b))
    zeros = np.array([0.0, -0.0], dtype)
    assert not np.signbit(_map(fastmath.maximum, zeros, zeros[::-1].copy())).any()
    assert np.signbit(_map(fastmath.minimum, zeros, zeros[::-1].copy())).all()


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_maximum_and_minimum_of_integers(dtype):
    info = np.iinfo(dtype)
    values = np.array([info.min, info.min + 1, 1, 2, info.max], dtype)
    a, b = np.repeat(values, 5), np.tile(values, 5)
    np.testing.assert_array_equal(_map(fastmath.maximum, a, b), np.maximum(a, b))
    np.testing.assert_array_equal(_map(fastmath.minimum, a, b), np.minimum(a, b))


def test_approximations_flush_subnormals():
    x = np.array([1e-40, -1e-40], np.float32)
    np.testing.assert_array_equal(_map(fastmath.rcp, x), np.array([np.inf, -np.inf], np.float32))
    assert (_map(fastmath.ex2, np.array([-126.5, -140], np.float32)) == 0).all()
    assert f32(_map(fastmath.ex2, np.array([-126], np.float32))[0]) == f32(TINY)
