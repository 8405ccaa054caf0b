"""Functions of single elements: the references against PyTorch, special values, broadcasting, integers, bad input, the command line."""
import importlib
import json

import contract
import labs
import numpy as np
import pytest
from activations import ACTIVATIONS, SLOPES
from cases import lay
from cases._activation import PARAMETRISED
from cases._elementwise import BINARY, UNARY, Binary
from labs import array

import dnnkern
from dnnkern import dispatch
from dnnkern.engine.form import canonical, spread
from dnnkern.act._lanes import make_work
from dnnkern.act._parse import FAMILY, SMALL, parse_problem
from dnnkern.device import SIMULATED
from dnnkern.device.activation import PARAMETERS, Activation
from dnnkern.device.pointwise import BINARY as BINARY_MODES
from dnnkern.device.pointwise import GATES
from dnnkern.device.pointwise import UNARY as UNARY_MODES
from dnnkern.dispatch import NotSupported
from dnnkern.host.tensor import Tensor

ALGORITHMS = ("naive", "vector", "rows")
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4e38, -3.4e38, 1e-30, 88.8, -88.8, 700.0, -700.0])


def host(y):
    """The result as NumPy's array, bfloat16 as float32."""
    if isinstance(y, np.ndarray):
        return y
    labs.synchronize()
    return (y.float() if str(y.dtype) == "torch.bfloat16" else y).cpu().numpy()


# ---- the references are PyTorch's functions

def _torch_functions():
    functional = pytest.importorskip("torch").nn.functional
    names = {"hard_sigmoid": "hardsigmoid", "swish": "silu", "hard_swish": "hardswish", "gelu_tanh": None, "identity": None}
    found = {m: getattr(functional, names.get(m, m)) for m in ACTIVATIONS if names.get(m, m)}
    found.update(gelu_tanh=lambda x: functional.gelu(x, approximate="tanh"), identity=lambda x: x)
    found.update({"relu6": functional.relu6, "leaky-quarter": lambda x: functional.leaky_relu(x, 0.25),
                  "elu-steep": lambda x: functional.elu(x, 2.5), "celu-wide": lambda x: functional.celu(x, 2.0),
                  "softplus-sharp": lambda x: functional.softplus(x, 3.0, threshold=100)})
    return found


def test_references_of_activations_are_pytorchs():
    torch = pytest.importorskip("torch")
    functions = _torch_functions()
    assert set(ACTIVATIONS) <= set(functions) and set(PARAMETERS) == set(ACTIVATIONS) == set(SLOPES)
    points = np.concatenate([np.linspace(-8, 8, 333), [0.0, 3.0, -3.0, 6.0]])
    for name, function in functions.items():
        forward, slope = (ACTIVATIONS[name][0], SLOPES[name]) if name in ACTIVATIONS else PARAMETRISED[name][2:]
        x = torch.tensor(points, requires_grad=True)
        y = function(x)
        y.sum().backward()
        np.testing.assert_allclose(forward(points), y.detach().numpy(), rtol=1e-12, atol=1e-12, err_msg=name)
        smooth = np.abs(np.abs(points)[:, None] - np.array([0, 3, 6])).min(1) > 0  # of a kink everybody has an opinion
        np.testing.assert_allclose(slope(points)[smooth], x.grad.numpy()[smooth], rtol=1e-7, atol=1e-12, err_msg=name)


def test_gated_units_are_pytorchs():
    torch = pytest.importorskip("torch")
    from cases.glu_bwd import CASES as backward
    for case in backward:
        if case.mode == "sigmoid" and "float64" in case.dtype:
            values = case.values("float")
            x = torch.tensor(values["x"], requires_grad=True)
            torch.nn.functional.glu(x, case.axis).backward(torch.tensor(values["dy"]))
            np.testing.assert_allclose(case.reference(values)[0]["dx"], x.grad.numpy(), rtol=1e-9, atol=1e-12)


def test_references_of_elementwise_functions_are_pytorchs():
    torch = pytest.importorskip("torch")
    names = {"cmp_eq": "eq", "cmp_neq": "ne", "cmp_gt": "gt", "cmp_ge": "ge", "cmp_lt": "lt", "cmp_le": "le", "max": "maximum",
             "min": "minimum", "mod": "fmod", "bias": "add", "scale": "mul"}
    x, b = np.linspace(0.5, 7, 60), np.linspace(4, -3, 60)
    for name, (function, *_) in UNARY.items():
        if name != "identity":
            np.testing.assert_allclose(function(x), getattr(torch, name)(torch.tensor(x)).numpy(), rtol=1e-12, atol=1e-12, err_msg=name)
    for name, (function, *_) in BINARY.items():
        if name not in ("add_square", "binary_select"):
            expected = getattr(torch, names.get(name, name))(torch.tensor(x), torch.tensor(b)).numpy()
            np.testing.assert_allclose(function(x, b), expected, rtol=1e-12, err_msg=name)
    assert set(UNARY) | {"gen_index"} == set(UNARY_MODES) and set(BINARY) == set(BINARY_MODES) | {"bias", "scale"}


# ---- special values

@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("mode", list(PARAMETERS))
def test_nan_and_infinities_of_activations(mode, dtype):
    """NaN gives NaN; the value and the slope at infinity are the limits, and nothing else is NaN."""
    algo = ALGORITHMS[len(mode) % 3]
    y = host(dnnkern.activation_fwd(array(SPECIAL, dtype), mode, algo=algo)).astype(np.float64)
    dx = host(dnnkern.activation_bwd(array(np.ones_like(SPECIAL), dtype), array(SPECIAL, dtype), mode, algo=algo)).astype(np.float64)
    assert np.isnan(y[0]) and not np.isnan(y[1:]).any(), y
    assert not np.isnan(dx[1:]).any(), dx
    far = np.array([90.0, -90.0])
    value, slope = ACTIVATIONS[mode][0](far), SLOPES[mode](far)
    for side, at in ((0, 1), (1, 2)):
        limit = np.sign(far[side]) * np.inf if abs(slope[side]) > 1e-3 else round(value[side], 3) if mode != "softsign" else far[side] / 90
        np.testing.assert_allclose(y[at], limit, rtol=1e-2, atol=1e-6)
        np.testing.assert_allclose(dx[at], slope[side] if mode != "softsign" else 0, rtol=1e-2, atol=1e-6)
    np.testing.assert_allclose(y[3:5], ACTIVATIONS[mode][0](np.zeros(2)), rtol=1e-2, atol=1e-6)


def _calls_with(name):
    """Results of every function that takes the name of an activation or of a gate."""
    rng = np.random.default_rng(3)
    x, w, image = array(rng.standard_normal((4, 6))), array(rng.standard_normal((6, 4))), array(rng.standard_normal((2, 4, 3, 3)))
    c, one, filters = array(np.ones(4)), array(np.ones((4, 4))), array(rng.standard_normal((4, 4, 1, 1)))
    offsets = array([0, 1, 4], "int32")
    return {"activation_fwd": dnnkern.activation_fwd(x, name, beta=1.5), "activation_bwd": dnnkern.activation_bwd(x, x, name),
            "glu_fwd": dnnkern.glu_fwd(x, gate=name), "glu_bwd": dnnkern.glu_bwd(array(rng.standard_normal((4, 3))), x, gate=name),
            "matmul": dnnkern.matmul(x, w, activation=name), "conv_fwd": dnnkern.conv_fwd(image, filters, activation=name),
            "conv_transpose_fwd": dnnkern.conv_transpose_fwd(image, filters, activation=name),
            "grouped_matmul": dnnkern.grouped_matmul(one, array(rng.standard_normal((2, 4, 5))), offsets, activation=name),
            "batch_norm_infer": dnnkern.batch_norm_infer(image, c, c, c, c, activation=name)}


def test_silu_is_a_name_of_swish():
    other = _calls_with("swish")
    for function, result in _calls_with("silu").items():
        np.testing.assert_array_equal(host(result), host(other[function]), err_msg=function)


@pytest.mark.parametrize("family, op, words", [
    ("act", "activation_fwd", "64 f32 {}"), ("act", "activation_bwd", "64 f32 {}"), ("act", "glu_fwd", "9x66 f32 {}"),
    ("matmul", "matmul", "32x32x32 bf16 --activation {}"), ("matmul", "grouped_matmul", "2x32x32x32 bf16 --activation {}"),
    ("conv", "conv_fwd", "2x4x8x8 k4 3x3 f32 --activation {}"), ("norm", "batch_norm_infer", "4x6x5x3 f32 {}")])
def test_silu_in_words(family, op, words):
    parse = importlib.import_module(f"dnnkern.{family}._parse").parse_problem
    one, other = (parse(words.format(name).split(), op) for name in ("silu", "swish"))
    assert one == other and hash(one) == hash(other)


def test_nan_of_prelu_and_of_gates():
    x, slope = array([[np.nan, np.inf, -np.inf, -2]]), array([0.5])
    np.testing.assert_array_equal(host(dnnkern.activation_fwd(x, "prelu", slope=slope)), [[np.nan, np.inf, -np.inf, -1]])
    np.testing.assert_array_equal(host(dnnkern.activation_bwd(array([[1, 1, 1, 1.0]]), x, "prelu", slope=slope))[0, 1:], [1, 0.5, 0.5])
    for gate in GATES:
        y = host(dnnkern.glu_fwd(array([2, 2, 2, np.nan, np.nan, np.inf, -np.inf, 1]), gate=gate))
        assert np.isnan(y[0]) and np.isnan(y[3]), y
        np.testing.assert_array_equal(y[1:3], [2 if gate == "sigmoid" else np.inf, 0])


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_nan_in_functions_of_two_arrays(algo):
    values = np.array([np.nan, -np.inf, -1, 0, 1, np.inf])
    a, b = np.repeat(values, 6), np.tile(values, 6)
    x, z = array(a), array(b)
    with np.errstate(all="ignore"):
        for mode, (function, *_) in BINARY.items():
            if mode not in ("binary_select", "pow", "atan2"):
                np.testing.assert_array_equal(host(dnnkern.binary(x, z, mode, algo=algo)), function(a, b), err_msg=mode)
    mask = labs.guarded(lay((36,), "bool"), np.arange(36) % 2).array
    np.testing.assert_array_equal(host(dnnkern.binary(x, z, "binary_select", mask=mask, algo=algo)), np.where(np.arange(36) % 2, a, b))


def test_limits_of_functions_of_one_array():
    inf, nan = np.inf, np.nan
    for mode, values, expected in (("sqrt", [-1, inf, nan, 0], [nan, inf, nan, 0]), ("rsqrt", [0, inf, -1, nan], [inf, 0, nan, nan]),
                                   ("reciprocal", [0, -0.0, inf, nan], [inf, -inf, 0, nan]),
                                   ("log", [0, -1, inf, nan], [-inf, nan, inf, nan]),
                                   ("exp", [-inf, inf, nan, 0], [0, inf, nan, 1]), ("erf", [-inf, inf, nan, 0], [-1, 1, nan, 0]),
                                   ("abs", [-inf, nan, -0.0, -2], [inf, nan, 0, 2]), ("ceil", [-1.5, 1.5, nan, inf], [-1, 2, nan, inf]),
                                   ("floor", [-1.5, 1.5, nan, -inf], [-2, 1, nan, -inf]), ("neg", [-inf, nan, 1, 0], [inf, nan, -1, 0]),
                                   ("logical_not", [0, -0.0, nan, 2], [True, True, False, False])):
        for dtype in ("float32", "float64", "bfloat16"):
            got = host(dnnkern.unary(array(values, dtype), mode))
            np.testing.assert_array_equal(got.astype(np.float64), np.array(expected, np.float64), err_msg=f"{mode} {dtype}")


# ---- integers and their rounding

def test_integers_are_rounded_and_saturate():
    a, b = array([100, -100, 7, -7, 5], "int8"), array([100, 100, 2, 2, 2], "int8")
    for mode, expected in (("add", [127, 0, 9, -5, 7]), ("sub", [0, -128, 5, -9, 3]), ("mul", [127, -128, 14, -14, 10]),
                           ("div", [1, -1, 4, -4, 2]), ("mod", [0, 0, 1, -1, 1]), ("add_square", [127, 127, 11, -3, 9])):
        np.testing.assert_array_equal(host(dnnkern.binary(a, b, mode)), expected, err_msg=mode)
    np.testing.assert_array_equal(host(dnnkern.unary(array([-128, 5], "int8"), "neg")), [127, -5])
    large = array([2 ** 31 - 1, -2 ** 31, 2 ** 24 + 1, 70001], "int32")
    np.testing.assert_array_equal(host(dnnkern.binary(large, array([1, -1, 1, 70001], "int32"), "add")),
                                  [2 ** 31 - 1, -2 ** 31, 2 ** 24 + 2, 140002])
    np.testing.assert_array_equal(host(dnnkern.binary(large, array([1], "int32"), "mul")), [2 ** 31 - 1, -2 ** 31, 2 ** 24 + 1, 70001])
    assert host(dnnkern.binary(large, large, "cmp_eq")).dtype == bool


def test_index_along_any_axis():
    for shape, axis in (((4, 5), 0), ((4, 5), -1), ((3, 1, 7), 1), ((7,), 0)):
        got = host(dnnkern.unary(array(np.zeros(shape)), "gen_index", axis=axis))
        assert got.dtype == np.int32
        np.testing.assert_array_equal(got, np.indices(shape)[axis])


# ---- what algorithms see

def test_form_of_a_bias_of_channels():
    form = parse_problem("64x256x56x56 256x1x1 bf16 add".split(), "binary").form
    assert [(d.size, d.strides) for d in form.dims] == [(64, (802816, 0, 802816)), (256, (3136, 1, 3136)), (3136, (1, 0, 1))]
    last = parse_problem("64x56x56x256 256 bf16 add".split(), "binary").form
    assert [(d.size, d.strides) for d in last.dims] == [(200704, (256, 0, 256)), (256, (1, 1, 1))]


def test_form_of_reversed_and_single_arrays():
    y = Tensor((4, 5), (-5, 1), "float32")
    form = canonical((spread("x", Tensor.packed((4, 5), "float32"), (4, 5)),), (spread("y", y, (4, 5)),))
    assert [(d.size, d.strides) for d in form.dims] == [(4, (-5, 5)), (5, (1, 1))] and [a.first for a in form.arrays] == [15, -15]
    one = canonical((spread("x", Tensor.packed((), "float32"), (1, 1)),), (spread("y", Tensor.packed((1, 1), "float32"), (1, 1)),))
    assert one.size == 1 and len(one.dims) == 1


def binary_problem(a, b, y):
    from dnnkern.act._elementwise import BinaryProblem
    return BinaryProblem(a, b, y, "add")


@pytest.mark.parametrize("alignments, strides, units, align", [
    ((16, 16, 16), (48, 48, 48), (16, 16, 16), 0),     # every row begins at a multiple of 16
    ((2, 16, 16), (48, 48, 48), (2, 16, 16), 0),       # but for those of a
    ((2, 2, 2), (48, 48, 48), (4, 4, 16), 8),          # where they begin is known when the kernel runs; they may be 4 bytes apart
    ((16, 8, 16), (43, 43, 43), (16, 8, 16), 8),       # odd rows, alike
    ((16, 16, 16), (44, 48, 43), (2, 2, 16), 8),       # odd rows, not alike
    ((16, 16, 4), (40, 40, 44), (4, 4, 16), 8)])
def test_units_follow_the_alignments(alignments, strides, units, align):
    a, b, y = (Tensor((6, 41), (s, 1), "bfloat16", n) for n, s in zip(alignments, strides))
    work = make_work(binary_problem(a, b, y), 2, (1, 1, 1))
    assert (work.units, work.align) == (units, align)


def test_what_is_loaded_once():
    rows = next(a for a in dispatch.algorithms("binary") if a.name == "rows")

    def once(words):
        works = [c.work for c in rows.configs(parse_problem(words.split(), "binary"), contract.device())]
        return [w.once for w in works], [w.lanes for w in works]
    assert once("64x256 256 f32 add") == ([(False, True)] * 3, [1, 2, 4])          # a bias along the rows
    assert once("64x256 64x1 f32 add")[0] == [(False, False)] * 3                  # a value a row
    assert once("64x255 255 f32 add")[0] == [(False, False)] * 3                   # each row begins elsewhere
    assert once("3x256 256 f32 add")[1] == [1, 2]


def test_predictions_prefer_what_is_made_for_it():
    for op, words, algo in (("activation_fwd", "268435456 bf16 gelu", "vector"), ("binary", "32768x4096 4096 bf16 add", "rows"),
                            ("binary", "64x256x56x56 256x1x1 f32 mul", "rows"), ("glu_fwd", "8192x28672 bf16 swish", "rows"),
                            ("unary", "4096x4096 f32 gen_index --axis 1", "naive"), ("glu_bwd", "8192x28672 bf16 gelu", "rows")):
        assert dispatch.get_algorithm(op, parse_problem(words.split(), op), device=contract.device()).name == algo, words


def test_beyond_two_to_the_31():
    """Such arrays have an algorithm of each kind, and a grid that covers them."""
    for op, words, able in (("activation_fwd", "70000x65536 bf16 relu", {"naive", "vector"}),
                            ("glu_bwd", "70000x65536 bf16", {"naive", "rows"}),
                            ("binary", "70000x65536 65536 bf16 add", {"naive", "rows"})):
        problem = parse_problem(words.split(), op)
        assert {a.name for a in dispatch.algorithms(op) if a.supports(problem) is None} == able
        for algorithm in dispatch.algorithms(op):
            if algorithm.supports(problem) is None:
                (launch,) = algorithm.build(problem, contract.device(), algorithm.configured(problem, contract.device()).config)
                assert launch.grid[0] * 256 * 64 > problem.form.size


# ---- calls

def test_broadcasting_is_numpys():
    rng = np.random.default_rng(3)
    for a_shape, b_shape in (((3, 1, 4), (5, 1)), ((), (7,)), ((2, 3), ()), ((1,), (1, 1)), ((4, 1), (1, 6)), ((0, 3), (3,)),
                             ((2, 0), (2, 1))):
        a, b = rng.integers(-9, 9, a_shape), rng.integers(-9, 9, b_shape)
        got = host(dnnkern.binary(array(a), array(b), "sub"))
        np.testing.assert_array_equal(got, a - b)
        assert got.shape == np.broadcast_shapes(a_shape, b_shape)


def test_in_place():
    x = array([-1.0, 2, -3])
    assert dnnkern.activation_fwd(x, "relu", out=x) is x
    np.testing.assert_array_equal(host(x), [0, 2, 0])
    dy = array([5.0, 6, 7])
    assert dnnkern.activation_bwd(dy, x, "relu", out=dy) is dy
    np.testing.assert_array_equal(host(dy), [0, 6, 0])
    np.testing.assert_array_equal(host(dnnkern.binary(dy, dy, "add", out=dy)), [0, 12, 0])
    np.testing.assert_array_equal(host(dnnkern.activation_bwd(dy, dy, "identity", out=dy)), [0, 12, 0])


def test_an_activation_may_be_an_object():
    x = array([-4.0, 9])
    np.testing.assert_array_equal(host(dnnkern.activation_fwd(x, Activation("relu", upper_clip=6))), [0, 6])


def test_other_names_of_cudnn():
    a, b = array([3.0, 4]), array([2.0])
    np.testing.assert_array_equal(host(dnnkern.binary(a, b, "bias")), [5, 6])
    np.testing.assert_array_equal(host(dnnkern.binary(a, b, "scale")), [6, 8])


# ---- what a caller can get wrong

class Out:
    """A poisoned output that must stay so."""

    def __init__(self, shape, dtype="float32", **layout):
        self.guarded = labs.guarded(lay(shape, dtype, **layout))
        self.array = self.guarded.array


def refused(error, words, call, *args, out=None, **keywords):
    """The call raises `error`, whose message begins with the function's name and has all the words; `out` is as it was."""
    if out is not None:
        keywords["out"] = out.array
    with labs.refuses(error, words, call):
        getattr(dnnkern, call)(*args, **keywords)
    if out is not None:
        labs.synchronize()
        out.guarded.assert_untouched("out")


def test_bad_activations():
    x, out = array(np.ones((3, 4))), Out((3, 4))
    for call, given in (("activation_fwd", (x,)), ("activation_bwd", (x, x))):
        refused(ValueError, ["mode='relu6'", "'identity', 'relu'", "prelu"], call, *given, "relu6", out=out)
        refused(ValueError, ["no parameter alpha", "it takes none"], call, *given, "gelu", out=out, alpha=1.0)
        refused(TypeError, ["negative_slope='x'", "number"], call, *given, "leaky_relu", out=out, negative_slope="x")
        refused(TypeError, ["alpha=[1.0, 2.0]", "number"], call, *given, "elu", out=out, alpha=[1.0, 2.0])
        refused(ValueError, ["lower_clip 3.0 is not below upper_clip 3.0"], call, *given, "relu", out=out, lower_clip=3, upper_clip=3)
        refused(ValueError, ["beta is 0.0", "positive"], call, *given, "softplus", out=out, beta=0)
        refused(TypeError, ["slope", "prelu"], call, *given, "relu", out=out, slope=x)
        refused(TypeError, ["slope: got NoneType", "array"], call, *given, "prelu", out=out)
        refused(ValueError, ["prelu has no parameter alpha", "slope"], call, *given, "prelu", out=out, slope=x, alpha=1)
        refused(ValueError, ["slope has shape (3,)", "x's (3, 4)"], call, *given, "prelu", out=out, slope=array(np.ones(3)))
        refused(TypeError, ["slope is float16", "float32"], call, *given, "prelu", out=out, slope=array(np.ones(4), "float16"))
        refused(TypeError, ["slope: got float"], call, *given, "prelu", out=out, slope=0.25)
        refused(ValueError, ["out has shape (4, 3)", "(3, 4)"], call, *given, "relu", out=Out((4, 3)))
        refused(TypeError, ["out is float16", "float32"], call, *given, "relu", out=Out((3, 4), "float16"))
        refused(ValueError, ["share one address"], call, *given, "relu", out=Out((3, 4), expand=(0,)))
        refused(TypeError, ["got list"], call, *([[1.0]] * len(given)), "relu", out=out)
    refused(TypeError, ["x is int8", "bfloat16"], "activation_fwd", array(np.ones(4), "int8"), "relu")
    slope = array(np.ones(4))
    refused(TypeError, ["slope_gradient=1", "True or False"], "activation_bwd", x, x, "prelu", slope=slope, slope_gradient=1)
    refused(ValueError, ["slope_gradient=True", "mode 'relu'", "prelu"], "activation_bwd", x, x, "relu", slope_gradient=True)
    for bad, kind, words in ((Out((4,), "float16"), TypeError, ["out[1] is float16", "float32"]),
                             (Out((3,)), ValueError, ["out[1] has shape (3,)", "(4,)"])):
        with pytest.raises(kind) as caught:
            dnnkern.activation_bwd(x, x, "prelu", slope=slope, slope_gradient=True, out=(out.array, bad.array))
        assert all(word in str(caught.value) for word in words), caught.value
    with pytest.raises(ValueError, match=r"activation_bwd: out has 1 arrays; expected 2 \(dx, dslope\)"):
        dnnkern.activation_bwd(x, x, "prelu", slope=slope, slope_gradient=True, out=out.array)
    refused(ValueError, ["dy has shape (4, 3)", "(3, 4)"], "activation_bwd", array(np.ones((4, 3))), x, "relu", out=out)
    refused(TypeError, ["dy is float16", "float32"], "activation_bwd", array(np.ones((3, 4)), "float16"), x, "relu", out=out)
    refused(TypeError, ["x: got NoneType"], "activation_bwd", x, None, "relu", out=out)


def test_bad_functions():
    x, y, out = array(np.ones((3, 4))), array(np.ones((3, 4))), Out((3, 4))
    refused(ValueError, ["op='cbrt'", "sqrt"], "unary", x, "cbrt", out=out)
    refused(TypeError, ["op=['exp']"], "unary", x, ["exp"], out=out)
    refused(ValueError, ["exp with axis=1", "gen_index"], "unary", x, "exp", axis=1, out=out)
    refused(ValueError, ["gen_index with axis=None"], "unary", x, "gen_index")
    refused(ValueError, ["axis 2", "(3, 4)"], "unary", x, "gen_index", axis=2)
    refused(ValueError, ["axis is -3", "-2 or more"], "unary", x, "gen_index", axis=-3)
    refused(TypeError, ["axis=1.5"], "unary", x, "gen_index", axis=1.5)
    refused(TypeError, ["out is float32", "the result is int32"], "unary", x, "gen_index", axis=0, out=out)
    refused(TypeError, ["x is bool", "float64"], "unary", labs.guarded(lay((3, 4), "bool"), 1).array, "exp")
    refused(ValueError, ["op='hypot'", "atan2"], "binary", x, y, "hypot", out=out)
    refused(ValueError, ["a (3, 4), b (3,)", "broadcast"], "binary", x, array(np.ones(3)), "add", out=out)
    refused(TypeError, ["a is float32 and b is float16", "same"], "binary", x, array(np.ones(4), "float16"), "add", out=out)
    refused(TypeError, ["out is float32", "the result is bool"], "binary", x, y, "cmp_gt", out=out)
    refused(ValueError, ["out has shape (3, 4)", "(2, 3, 4)"], "binary", x, array(np.ones((2, 1, 1))), "add", out=out)
    refused(TypeError, ["binary_select with mask None", "mask"], "binary", x, y, "binary_select", out=out)
    refused(TypeError, ["add with mask", "binary_select"], "binary", x, y, "add", mask=labs.guarded(lay((4,), "bool"), 1).array, out=out)
    refused(TypeError, ["mask is float32", "bool, uint8"], "binary", x, y, "binary_select", mask=array(np.ones(4)), out=out)
    refused(TypeError, ["b: got NoneType"], "binary", x, None, "add", out=out)
    refused(TypeError, ["b: got float"], "binary", x, 2.0, "add", out=out)


def test_bad_gated_units():
    x, out = array(np.ones((4, 6))), Out((4, 3))
    refused(ValueError, ["extent of 5", "axis 1", "(4, 5)", "even"], "glu_fwd", array(np.ones((4, 5))))
    refused(ValueError, ["gate='relu'", "'sigmoid', 'swish', 'silu', 'gelu'"], "glu_fwd", x, gate="relu", out=out)
    refused(ValueError, ["axis 2", "(4, 6)"], "glu_fwd", x, axis=2, out=out)
    refused(ValueError, ["out has shape (4, 6)", "(4, 3)"], "glu_fwd", x, out=Out((4, 6)))
    refused(TypeError, ["x is int32"], "glu_fwd", array(np.ones((4, 6)), "int32"))
    refused(ValueError, ["dy has shape (4, 6)", "give (4, 3)"], "glu_bwd", x, x, out=Out((4, 6)))
    refused(TypeError, ["dy is float16", "float32"], "glu_bwd", array(np.ones((4, 3)), "float16"), x)
    refused(ValueError, ["out is the same memory as x"], "glu_bwd", array(np.ones((4, 3))), x, out=type("Same", (), {
        "array": x, "guarded": labs.guarded(lay((1,), "float32"))}))


def test_partial_overlap_and_in_place_that_is_none():
    both = array(np.arange(12.0))
    for call, given in (("activation_fwd", ("relu",)), ("unary", ("exp",)), ("binary", (array(np.ones(8)), "add"))):
        with pytest.raises(ValueError, match=f"{call}: out partly overlaps"):
            getattr(dnnkern, call)(both[:8], *given, out=both[2:10])
    row = array(np.arange(4.0))
    with pytest.raises(ValueError, match="out begins where b does"):
        dnnkern.binary(array(np.ones((1, 4))), row, "add", out=row.reshape(1, 4))
    np.testing.assert_array_equal(host(both), np.arange(12))


def test_a_forced_algorithm_says_why_not():
    x = array(np.ones((8, 6)), order=(1, 0))
    for algo, words in (("vector", "2 dimensions"), ("rows", "stride 8")):
        with pytest.raises(NotSupported, match=words):
            dnnkern.unary(x, "exp", algo=algo)
    with pytest.raises(NotSupported, match="gen_index reads no array"):
        dnnkern.unary(x, "gen_index", axis=0, algo="rows")


def test_find_in_place_measures_what_is_called():
    """Only the operand that is the result shares its memory."""
    from dnnkern.act._problem import ActivationProblem
    x = Tensor.packed((40,), "float32")
    problem = ActivationProblem("activation_bwd", x, x, Activation("gelu"), x, in_place=("dy",))
    perfs = dispatch.find_algorithms("activation_bwd", problem, save=False)
    assert {p.algo for p in perfs} == set(ALGORITHMS) and all(p.status == "ok" for p in perfs)


# ---- records and words

@pytest.mark.parametrize("op", FAMILY)
def test_records_come_back(op):
    for text in SMALL[op]:
        problem = parse_problem(text.split(), op)
        record = json.loads(json.dumps(dispatch.problem_record(problem)))
        assert FAMILY[op][2](record) == problem, text
        assert str(FAMILY[op][2](record)) == str(problem)
    with pytest.raises(ValueError, match=f"{op}: not a record"):
        FAMILY[op][2]({"x": 1})


def test_a_record_of_an_unbounded_relu():
    problem = parse_problem("64 f32 relu negative_slope=0.5".split(), "activation_fwd")
    assert FAMILY["activation_fwd"][2](json.loads(json.dumps(dispatch.problem_record(problem)))) == problem


@pytest.mark.parametrize("op, words, message", [
    ("activation_fwd", "64 f32 prelu --slope 64 --slope-gradient", "unrecognized arguments: --slope-gradient"),
    ("activation_bwd", "64 f32 relu --slope-gradient", "no slope"),
    ("activation_fwd", "64 f32 relux", "mode='relux'"), ("activation_fwd", "64 f32 relu upper_clip=x", "not a parameter such as"),
    ("activation_fwd", "64 f32 relu upper", "unexpected keyword argument 'upper'"), ("activation_bwd", "64 f32 prelu", "slope"),
    ("unary", "64 f32 cbrt", "cbrt"),
    ("binary", "64x3 4 f32 add", "broadcast"), ("glu_fwd", "64x3 f32", "extent of 3"), ("glu_bwd", "64x4 f32 relu", "relu")])
def test_words_that_make_no_sense(op, words, message):
    with pytest.raises((ValueError, TypeError), match=message):
        parse_problem(words.split(), op)


def test_random_broadcasts(request):
    """Shapes, strides and modes that nobody thought of, by whatever dispatch chooses and by every algorithm that can."""
    hypothesis = pytest.importorskip("hypothesis")
    st, sizes = hypothesis.strategies, [1, 2, 3, 7, 8, 17, 24] if SIMULATED else [1, 2, 7, 31, 64, 129, 1000]
    modes = ["add", "cmp_lt", "max", "binary_select", "mul"]

    @st.composite
    def problems(draw):
        shape = tuple(draw(st.lists(st.sampled_from(sizes), max_size=3)))
        shapes = {n: tuple(m if draw(st.booleans()) else 1 for m in shape)[draw(st.integers(0, len(shape))):] for n in ("a", "b", "mask")}
        mode = draw(st.sampled_from(modes))
        used = ["a", "b"] + ["mask"] * (mode == "binary_select")
        shape = np.broadcast_shapes(*(shapes[n] for n in used))
        layout = {}
        for name in ("a", "b", "mask", "y"):
            ndim = len(shape if name == "y" else shapes[name])
            layout[name] = {"gap": draw(st.sampled_from([0, 0, 1, 8])), "misaligned": draw(st.sampled_from([0, 0, 1, 2])),
                            "order": tuple(draw(st.permutations(range(ndim)))) if draw(st.booleans()) else None}
        dtype = draw(st.sampled_from(["float64", "float32", "float16", "bfloat16", "int8", "int32"]))
        return Binary(f"random-{dtype}", tuple(shape), dtype, mode, layout, None, shapes["a"], shapes["b"], shapes["mask"])

    @hypothesis.settings(max_examples=300 if request.config.getoption("--full") else 30, deadline=None, derandomize=True, database=None,
                         suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(problems())
    def check(case):
        values, problem = case.values("float"), case.problem()
        reference, tolerance = case.reference(values)
        for algorithm in dispatch.algorithms("binary"):
            if algorithm.supports(problem) is None:
                run = contract.Run(case, algorithm, values)
                run.check_memory()
                run.check_values(reference, tolerance)
    check()
