"""`dnnkern.device.epilogue`: activations and gradients against their definitions in float64, and epilogues of every shape."""
import math

import ml_dtypes
import numpy as np
import pytest
from kit import launch

from dnnkern.device import cuda, i32
from dnnkern.device.convert import element
from dnnkern.device.activation import PARAMETERS, Activation, activation_function, activation_gradient
from dnnkern.device.epilogue import AllParams, EpilogueParams, EpilogueSpec, ResidualParams, ScaledParams, make_epilogue

THREADS = 128
ERF = np.vectorize(math.erf)
CDF = np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2)))


def _sigmoid(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-abs(x))), np.exp(-abs(x)) / (1 + np.exp(-abs(x))))


def _softplus(x):
    return np.maximum(x, 0) + np.log1p(np.exp(-abs(x)))


def _tanh_u(x):
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)


CASES = [  # activation, its definition
    (Activation(), lambda x: x),
    (Activation("relu"), lambda x: np.maximum(x, 0)),
    (Activation("relu", upper_clip=6), lambda x: np.clip(x, 0, 6)),
    (Activation("relu", negative_slope=0.1, upper_clip=2), lambda x: np.minimum(np.where(x > 0, x, 0.1 * x), 2)),
    (Activation("relu", lower_clip=-math.inf, upper_clip=1), lambda x: np.minimum(x, 1)),
    (Activation("relu", negative_slope=0.5, lower_clip=-1, upper_clip=3), lambda x: np.minimum(np.where(x > -1, x, -1 + 0.5 * (x + 1)), 3)),
    (Activation("relu", lower_clip=-2), lambda x: np.maximum(x, -2)),
    (Activation("leaky_relu"), lambda x: np.where(x > 0, x, 0.01 * x)),
    (Activation("leaky_relu", negative_slope=0.2), lambda x: np.where(x > 0, x, 0.2 * x)),
    (Activation("elu"), lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0)))),
    (Activation("elu", alpha=0.7), lambda x: np.where(x > 0, x, 0.7 * np.expm1(np.minimum(x, 0)))),
    (Activation("selu"), lambda x: 1.0507009873554805 * np.where(x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0)))),
    (Activation("celu", alpha=2), lambda x: np.where(x > 0, x, 2 * np.expm1(np.minimum(x, 0) / 2))),
    (Activation("sigmoid"), _sigmoid),
    (Activation("hard_sigmoid"), lambda x: np.clip(x / 6 + 0.5, 0, 1)),
    (Activation("hard_sigmoid", alpha=0.2, beta=0.4), lambda x: np.clip(0.2 * x + 0.4, 0, 1)),
    (Activation("tanh"), np.tanh),
    (Activation("softplus"), _softplus),
    (Activation("softplus", beta=3), lambda x: _softplus(3 * x) / 3),
    (Activation("softsign"), lambda x: x / (1 + abs(x))),
    (Activation("gelu"), lambda x: x * CDF(x)),
    (Activation("gelu_tanh"), lambda x: x * _sigmoid(2 * _tanh_u(x))),
    (Activation("swish"), lambda x: x * _sigmoid(x)),
    (Activation("swish", beta=1.7), lambda x: x * _sigmoid(1.7 * x)),
    (Activation("swish", beta=-0.5), lambda x: x * _sigmoid(-0.5 * x)),
    (Activation("hard_swish"), lambda x: x * np.clip(x + 3, 0, 6) / 6),
    (Activation("mish"), lambda x: x * np.tanh(_softplus(x))),
]
POINTS = np.concatenate([np.linspace(-12, 12, 480), [0.0, 1e-6, -1e-6, 20, -20, 60, -60, 85, -85, 300, -300]])


def _forward(activation, x, short=None):
    f = activation_function(activation, x.dtype.name, short)

    @cuda.jit(launch_bounds=THREADS)
    def kernel(x, y, n):
        for i in range(i32(cuda.threadIdx.x), n, THREADS):
            y[i] = f(x[i])
    y = np.zeros_like(x)
    launch(kernel, 1, THREADS, x, y, len(x))
    return y


def _backward(activation, dy, x):
    g = activation_gradient(activation, x.dtype.name)

    @cuda.jit(launch_bounds=THREADS)
    def kernel(dy, x, dx, n):
        for i in range(i32(cuda.threadIdx.x), n, THREADS):
            dx[i] = g(dy[i], x[i])
    dx = np.zeros_like(x)
    launch(kernel, 1, THREADS, dy, x, dx, len(x))
    return dx


def test_every_activation_has_a_case():
    assert {a.mode for a, _ in CASES} == set(PARAMETERS)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("activation, definition", CASES, ids=[repr(a) for a, _ in CASES])
def test_forward(activation, definition, dtype):
    x = POINTS.astype(dtype)
    y, eps = _forward(activation, x), np.finfo(dtype).eps
    exact = definition(x.astype(np.float64))
    # a few roundings; the absolute part is for tails, where exp magnifies the rounding of its argument
    np.testing.assert_allclose(y, exact, rtol=12 * eps, atol=4 * eps)


@pytest.mark.parametrize("dtype, relative, absolute", [(np.float16, 2.0**-16, 2.0**-27), (ml_dtypes.bfloat16, 2.0**-12, 2.0**-126)])
def test_gelu_of_16_bits(dtype, relative, absolute):
    """In the tail too, and of what is not finite."""
    x = np.arange(0, 2**16, 37, dtype=np.uint16).view(dtype).astype(np.float32)
    x = np.concatenate([x[np.isfinite(x)], POINTS.astype(np.float32), np.float32([np.inf, -np.inf, np.nan])])
    y = _forward(Activation("gelu"), x, np.dtype(dtype).name)
    wide = x[:-3].astype(np.float64)
    exact = wide * np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2)))(wide)
    np.testing.assert_array_less(abs(y[:-3] - exact), abs(exact) * relative + absolute + 1e-300)
    assert y[-3] == np.inf and abs(y[-2]) <= 2.0**-26 and np.isnan(y[-1])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("activation, definition", CASES, ids=[repr(a) for a, _ in CASES])
def test_gradient_is_the_derivative(activation, definition, dtype):
    kinks = [activation["lower_clip"], activation["upper_clip"]] if activation.mode == "relu" else {
        "hard_sigmoid": [-3, 3, -2], "hard_swish": [-3, 3]}.get(activation.mode, [0])
    x = POINTS[abs(POINTS) < 100]
    x = x[np.min([abs(x - k) for k in kinks], axis=0) > 1e-2].astype(dtype)
    dy = np.linspace(-2, 3, len(x)).astype(dtype)
    h = 1e-5 * np.maximum(1, abs(x.astype(np.float64)))
    slope = (8 * (definition(x + h) - definition(x - h)) - (definition(x + 2 * h) - definition(x - 2 * h))) / (12 * h)
    np.testing.assert_allclose(_backward(activation, dy, x), dy * slope, rtol=2e-5, atol=2e-6 if dtype == "float32" else 1e-9)


def test_celu_of_a_negative_alpha_grows():
    x = np.linspace(-60, 5, THREADS).astype(np.float32)
    np.testing.assert_allclose(_forward(Activation("celu", alpha=-40), x), np.where(x > 0, x, -40 * np.expm1(np.minimum(x, 0) / -40)), 2e-6)


@pytest.mark.parametrize("mode, x, expected", [
    ("relu", 0, 0), (Activation("relu", negative_slope=0.25), 0, 0.25), (Activation("relu", upper_clip=6), 6, 0),
    ("leaky_relu", 0, 0.01), ("hard_swish", -3, 0), ("hard_swish", 3, 1), ("hard_sigmoid", -3, 0), ("hard_sigmoid", 3, 0), ("elu", 0, 1),
    ("softsign", 0, 1), ("gelu", 0, 0.5), ("swish", 0, 0.5), ("mish", 0, 0.6), ("tanh", 0, 1), ("sigmoid", 0, 0.25)])
def test_gradient_at_kinks_and_at_zero(mode, x, expected):
    dx = _backward(Activation.of(mode), np.ones(THREADS, np.float32), np.full(THREADS, x, np.float32))
    np.testing.assert_allclose(dx, np.full(THREADS, expected), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("activation, definition", CASES, ids=[repr(a) for a, _ in CASES])
def test_limits(activation, definition, dtype):
    """No NaN out of the largest finite numbers and infinities: the value is that of a far point, or grows with x."""
    large = float(np.finfo(dtype).max)
    x = np.array([1e3, 1e10, large, np.inf, -1e3, -1e10, -large, -np.inf, np.nan], dtype)
    with np.errstate(all="ignore"):
        y = _forward(activation, x)
        dx = _backward(activation, np.ones_like(x), x)
    assert np.isnan(y[8]) and not np.isnan(y[:8]).any(), y
    assert not np.isnan(dx[:8]).any(), dx
    far = np.array([1e3, -1e3])
    with np.errstate(all="ignore"):
        slope = definition(far + 1) - definition(far)
        value = definition(far)
    for side, index in ((0, slice(0, 4)), (1, slice(4, 8))):
        if abs(slope[side]) < 1e-3:  # flat
            tolerance = 2e-3 if activation.mode == "softsign" else 1e-6
            np.testing.assert_allclose(y[index], np.full(4, value[side]), atol=tolerance)
            np.testing.assert_allclose(dx[index], np.zeros(4), atol=1e-5)
        else:
            assert y[index][3] == np.sign(value[side]) * np.inf
            np.testing.assert_allclose(y[index][:2], np.array([1, 1e7]) * value[side], rtol=1e-3)
            np.testing.assert_allclose(dx[index], np.full(4, slope[side]), rtol=1e-5)


def test_silu_is_a_name_of_swish():
    assert Activation("silu", beta=2) == Activation("swish", beta=2) and Activation.of("silu").mode == "swish"
    assert repr(Activation("silu")) == "Activation('swish')"


def test_activation_validates():
    assert Activation("relu", upper_clip=6) == Activation("relu", lower_clip=0.0, upper_clip=6.0)
    assert len({Activation("gelu"), Activation.of("gelu"), Activation("gelu")}) == 1 and Activation.of(None) == Activation("identity")
    assert repr(Activation("relu", upper_clip=6)) == "Activation('relu', upper_clip=6.0)" and Activation("swish")["beta"] == 1.0
    for message, error, mode, parameters in [
            ("expected one of 'identity', 'relu'", ValueError, "relu6", {}),
            ("no parameter alpha; it takes none", ValueError, "gelu", {"alpha": 1}),
            ("negative_slope is '1'", TypeError, "leaky_relu", {"negative_slope": "1"}),
            ("alpha is nan", ValueError, "elu", {"alpha": math.nan}),
            ("lower_clip 3.0 is not below", ValueError, "relu", {"lower_clip": 3, "upper_clip": 3}),
            ("beta is 0.0, expected it positive", ValueError, "softplus", {"beta": 0}),
            ("beta is inf", ValueError, "swish", {"beta": math.inf}),
            ("alpha is 0.0, expected it not zero", ValueError, "celu", {"alpha": 0})]:
        with pytest.raises(error, match=message):
            Activation(mode, **parameters)


# ---- epilogues

M, N = 12, 16
HOST = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "e4m3": ml_dtypes.float8_e4m3fn}


def _kernel(spec, result):
    epilogue = make_epilogue(spec, result)

    @cuda.jit(launch_bounds=M * N)
    def whole(acc, d, alpha, beta, bias, bias_stride, c, c_rows, c_columns, residual, r_rows, r_columns, scale_a, scale_b, s_rows, s_cols):
        m, n = i32(cuda.threadIdx.x // N), i32(cuda.threadIdx.x % N)
        e = AllParams(alpha, beta, bias, bias_stride, c, c_rows, c_columns, residual, r_rows, r_columns, scale_a, scale_b, s_rows, s_cols,
                      ())
        d[i32(m * N + n)] = epilogue(acc[i32(m * N + n)], m, n, e)

    @cuda.jit(launch_bounds=M * N)
    def pairs(acc, d, alpha, beta, bias, bias_stride, c, c_rows, c_columns, residual, r_rows, r_columns, scale_a, scale_b, s_rows, s_cols):
        m, n = i32(cuda.threadIdx.x // N), i32(cuda.threadIdx.x % N)
        e = AllParams(alpha, beta, bias, bias_stride, c, c_rows, c_columns, residual, r_rows, r_columns, scale_a, scale_b, s_rows, s_cols,
                      ())
        if n % 2 == 0:
            d[i32((m * N + n) // 2)] = epilogue(acc[i32(m * N + n)], acc[i32(m * N + n + 1)], m, n, e)
    return pairs if result == "packed" else whole


def _stored(x, dtype):
    return x.astype(HOST[dtype]).view(element(dtype).storage) if dtype in HOST else x.astype(dtype)


def _host(words, dtype):
    return words.view(HOST[dtype]) if dtype in HOST else words


def _run(spec, result="storage", alpha=1.0, beta=1.0, seed=0):
    """The epilogue's output, and the exact value before rounding."""
    rng = np.random.default_rng(seed)
    acc = rng.integers(-40, 40, (M, N)).astype(spec.accumulator)
    bias = _stored(rng.integers(-8, 8, 2 * max(M, N)), spec.bias_dtype)
    c, residual = (_stored(rng.integers(-8, 8, (N, 2 * M)), d or spec.output) for d in (spec.c, spec.residual))  # used transposed, padded
    scale_a, scale_b = 2.0 ** rng.integers(-1, 2, 3 * M), 2.0 ** rng.integers(-1, 2, 2 * N)
    d = np.zeros(M * N // 2 if result == "packed" else M * N,
                 np.uint32 if result == "packed" else spec.compute if result == "compute" else element(spec.output).storage)
    factor = np.float64 if spec.compute == "float64" else np.float32
    offset = np.int64 if spec.wide else np.int32
    launch(_kernel(spec, result), 1, M * N, acc, d, factor(alpha), factor(beta), bias, offset(2), c, offset(1), offset(2 * M),
           residual, offset(1), offset(2 * M), scale_a.astype(np.float32), scale_b.astype(np.float32), offset(3), offset(2))
    by_a, by_b = spec.scales or (None, None)
    factors = {None: 1.0, "tensor": scale_a[0], "row": scale_a[::3, None]}[by_a] * {None: 1.0, "tensor": scale_b[0],
                                                                                    "column": scale_b[None, ::2]}[by_b]
    exact = acc.astype(np.float64) * (alpha if spec.alpha else 1) * factors
    if spec.c:
        exact = exact + (beta if spec.beta else 1) * _host(c, spec.c).astype(np.float64)[:, :M].T
    if spec.residual:
        exact = exact + _host(residual, spec.residual).astype(np.float64)[:, :M].T
    if spec.bias:
        values = _host(bias, spec.bias_dtype).astype(np.float64)[::2]
        exact = exact + (values[:M, None] if spec.bias == "row" else values[None, :N])
    return (d.view(element(spec.output).storage) if result == "packed" else d).reshape(M, N), exact


RELU = Activation("relu")
SPECS = [
    EpilogueSpec(), EpilogueSpec(alpha=True), EpilogueSpec(alpha=True, beta=True, c="float32"),
    EpilogueSpec(c="bfloat16", output="bfloat16"),
    EpilogueSpec(bias="row"), EpilogueSpec(bias="column", bias_dtype="bfloat16", output="bfloat16", activation=RELU),
    EpilogueSpec(alpha=True, beta=True, c="float16", residual="float16", bias="column", bias_dtype="float16", output="float16"),
    EpilogueSpec(residual="float32", wide=True, bias="row", activation="relu"), EpilogueSpec(scales=True, output="bfloat16"),
    EpilogueSpec(scales=True, alpha=True, output="e4m3", bias="column", bias_dtype="bfloat16"),
    EpilogueSpec(scales=("row", "column"), output="float16"), EpilogueSpec(scales=("row", None), alpha=True, wide=True),
    EpilogueSpec(scales=(None, "column"), output="bfloat16"), EpilogueSpec(scales=("tensor", "column"), bias="row"),
    EpilogueSpec(accumulator="float64", output="float64", alpha=True, beta=True, c="float64", bias="row", bias_dtype="float64"),
    EpilogueSpec(accumulator="float64", output="float32"), EpilogueSpec(accumulator="int32", output="int32"),
    EpilogueSpec(accumulator="int32", output="int32", c="int32", bias="row", bias_dtype="int32"),
    EpilogueSpec(accumulator="int32", output="float32", alpha=True, c="int32"),
    EpilogueSpec(accumulator="int32", output="int8", alpha=True, bias="column", activation=RELU),
    EpilogueSpec(accumulator="int32", output="int32", alpha=True), EpilogueSpec(c="float64", output="float64"),
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: "-".join(
    f"{v}" for k, v in vars(s).items() if v and k != "activation") + "-" + s.activation.mode)
def test_epilogue_is_exact_on_small_integers(spec):
    got, exact = _run(spec, alpha=0.5, beta=-3)
    exact = np.maximum(exact, 0) if spec.activation == RELU else exact
    if np.dtype(element(spec.output).storage).kind == "i":
        exact = np.rint(exact)
    np.testing.assert_array_equal(got, _stored(exact, spec.output))
    assert len(np.unique(got)) > 10


@pytest.mark.parametrize("output", ["bfloat16", "float16"])
def test_packed_results(output):
    spec = EpilogueSpec(alpha=True, c=output, bias="column", bias_dtype=output, output=output, activation=RELU)
    got, exact = _run(spec, "packed", alpha=0.25)
    np.testing.assert_array_equal(got, _stored(np.maximum(exact, 0), output))


def test_unrounded_results_and_one_rounding():
    spec = EpilogueSpec(alpha=True, output="bfloat16", bias="row")
    value, exact = _run(spec, "compute", alpha=1.001)
    np.testing.assert_allclose(value, exact, rtol=1e-6, atol=1e-5)
    rounded, _ = _run(spec, alpha=1.001)
    np.testing.assert_array_equal(rounded, _stored(value, "bfloat16"))
    assert value.dtype == np.float32


def test_integer_accumulators_stay_exact_beyond_float32():
    spec = EpilogueSpec(accumulator="int32", output="int32", c="int32")
    acc = np.full(M * N, 2**24 + 1, np.int32)
    c, d = np.full(M * N, 2**30 + 1, np.int32), np.zeros(M * N, np.int32)
    zero, one = np.zeros(1, np.int32), np.zeros(1, np.float32)
    launch(_kernel(spec, "storage"), 1, M * N, acc, d, np.float32(1), np.float32(1), one, 0, c, N, 1, zero, 0, 0, one, one, 0, 0)
    np.testing.assert_array_equal(d, np.full(M * N, 2**24 + 2**30 + 2))
    assert spec.integer and spec.compute == "int32" and not EpilogueSpec(accumulator="int32", output="int32", alpha=True).integer


def test_arguments_are_documented_in_order():
    spec = EpilogueSpec(bias="row", bias_dtype="bfloat16", c="float16", residual="bfloat16", scales=("row", "column"), wide=True)
    names, types = zip(*spec.arguments)
    assert (*names, "extras") == AllParams._fields
    assert types == ("float32", "float32", "uint16*", "int64", "uint16*", "int64", "int64", "uint16*", "int64", "int64", "float32*",
                     "float32*", "int64", "int64")
    assert tuple(n for n, _ in EpilogueSpec(scales=True).arguments) == ScaledParams._fields[:9]
    assert tuple(n for n, _ in EpilogueSpec(scales=("row", None)).arguments) == ScaledParams._fields[:-1]
    assert EpilogueSpec(scales=True) == EpilogueSpec(scales=("tensor", "tensor")) and EpilogueSpec(scales=(None, None)) == EpilogueSpec()
    assert tuple(n for n, _ in EpilogueSpec().arguments) == EpilogueParams._fields[:-1]
    assert tuple(n for n, _ in EpilogueSpec(residual="float32").arguments) == ResidualParams._fields


def test_spec_validates():
    for message, error, fields in [
            ("accumulator 'float16'", ValueError, {"accumulator": "float16"}), ("bias 'rows'", ValueError, {"bias": "rows"}),
            ("beta scales c", ValueError, {"beta": True}), ("scales \\('column', None\\)", ValueError, {"scales": ("column", None)}),
            ("of a float64 accumulator", ValueError, {"accumulator": "float64", "output": "float16"}),
            ("no element type 'half'", TypeError, {"output": "half"}), ("mode='relu7'", ValueError, {"activation": "relu7"})]:
        with pytest.raises(error, match=message):
            EpilogueSpec(**fields)
    with pytest.raises(ValueError, match="packed results are for outputs of 16 bits and 8-bit floats, not float32"):
        make_epilogue(EpilogueSpec(), "packed")
