"""What a caller of a convolution can get wrong: the error says what was got and what was expected, and nothing is written."""
import labs
import numpy as np
import pytest
from cases import lay

import dnnkern
from dnnkern.conv import ConvProblem
from dnnkern.dispatch import NotSupported
from dnnkern.host.tensor import Tensor


def array(shape, dtype="float32", **layout):
    """An array of this process's kind, of ones."""
    return labs.guarded(lay(shape, dtype, **layout), np.broadcast_to(np.float64(1), shape)).array


def refused(function, error, words, *args, out=None, **keywords):
    """The function raises `error`, whose message has all the words, and `out`, a shape or (shape, dtype), is as it was."""
    guarded = None
    if isinstance(out, tuple):
        shape, dtype = out if out and isinstance(out[-1], str) else (out, "float32")
        guarded = labs.guarded(lay(shape, dtype))
        out = guarded.array
    with labs.refuses(error, words if isinstance(words, list) else [words], function):
        getattr(dnnkern, function)(*args, **keywords, **({} if out is None else {"out": out}))
    if guarded is not None:
        labs.synchronize()
        guarded.assert_untouched("out")


X, W, Y = (2, 4, 7, 6), (6, 4, 3, 3), (2, 6, 5, 4)


# ---- shapes

@pytest.mark.parametrize("x, w, options, words", [
    ((2, 64, 7, 7), (6, 16, 3, 3), {"groups": 2}, "w has 16 input channels per group, x gives 32 (C=64, groups=2)"),
    (X, (6, 2, 3, 3), {}, "w has 2 input channels per group, x gives 4 (C=4, groups=1)"),
    (X, (6, 1, 3, 3), {"groups": 3}, "x has 4 channels, which 3 groups do not divide"),
    (X, (5, 2, 3, 3), {"groups": 2}, "w has 5 filters (K), which 2 groups do not divide"),
    (X, (6, 4, 3), {}, ["w has shape (6, 4, 3)", "x (2, 4, 7, 6)", "as many dimensions"]),
    ((2, 4), (6, 4), {}, ["x has shape (2, 4)", "3, 4 or 5"]),
    ((2, 4, 1, 1, 1, 1), (6, 4, 1, 1, 1, 1), {}, "3, 4 or 5"),
    (X, (6, 4, 9, 3), {"padding": ((0, 1), (0, 0))}, ["spans 9 along h", "has 8 (0 + 7 + 1)"]),
    (X, W, {"dilation": (1, 3)}, ["spans 7 along w", "3 taps, dilation 3", "has 6"]),
    (X, (6, 4, 0, 3), {}, "no taps along h"),
    ((2, 4, 0, 6), W, {}, "has 0 (0 + 0 + 0)")])
def test_operands_that_do_not_fit(x, w, options, words):
    refused("conv_fwd", ValueError, words, array(x), array(w), **options)


def test_channels_last_is_understood():
    refused("conv_fwd", ValueError, "w has 3 input channels per group, x gives 6 (C=6, groups=1)", array(X), array(W), layout="NHWC")


@pytest.mark.parametrize("options, error, words", [
    ({"stride": 0}, ValueError, "stride is 0; expected 1 or more"), ({"stride": (1, -1)}, ValueError, "stride is -1"),
    ({"dilation": 0}, ValueError, "dilation is 0"), ({"groups": 0}, ValueError, "groups is 0"),
    ({"padding": -1}, ValueError, "padding is -1; expected 0 or more"), ({"padding": ((0, -1), (0, 0))}, ValueError, "padding is -1"),
    ({"stride": (1, 1, 1)}, ValueError, ["stride=(1, 1, 1) has 3 entries", "2 spatial dimensions"]),
    ({"padding": (1,)}, ValueError, ["padding=(1,) has 1 entries", "pair"]), ({"padding": ((1, 2, 3), (0, 0))}, ValueError, "3 entries"),
    ({"stride": 1.5}, TypeError, "1.5; expected an int"), ({"stride": True}, TypeError, "True; expected an int"),
    ({"padding": "same"}, (TypeError, ValueError), "padding"), ({"groups": 1.0}, TypeError, "groups=1.0"),
    ({"layout": "NCW"}, ValueError, "layout='NCW'; expected one of 'NCHW', 'NHWC', 'channels_last'"),
    ({"mode": "correlation"}, ValueError, "mode='correlation'; expected one of 'cross_correlation', 'convolution'"),
    ({"math": "exact"}, ValueError, "math='exact'"), ({"beta": 1.0}, ValueError, "beta is not 0, which adds to out")])
def test_values_of_keywords(options, error, words):
    x, w = array(X), array(W)
    refused("conv_fwd", error, words, x, w, **options)
    if "beta" not in options:
        refused("conv_fwd", error, words, x, w, out=Y, **options)
        refused("conv_bwd_data", error, words, array(Y), w, X, out=X, **options)
        refused("conv_bwd_filter", error, words, x, array(Y), W, out=W, **options)


def test_an_activation_that_does_not_exist():
    with pytest.raises(ValueError, match="'rely'.*relu"):
        dnnkern.conv_fwd(array(X), array(W), activation="rely")


@pytest.mark.parametrize("options, words", [
    ({"bias": (4,)}, "bias has shape (4,); expected (6,)"), ({"bias": (1, 6)}, "bias has shape (1, 6)"),
    ({"residual": (2, 6, 5, 5)}, "residual has shape (2, 6, 5, 5); expected the output's, (2, 6, 5, 4)"),
    ({"residual": (6, 5, 4)}, "residual has shape (6, 5, 4)")])
def test_addends(options, words):
    refused("conv_fwd", ValueError, words, array(X), array(W), out=Y, **{name: array(shape) for name, shape in options.items()})


def test_outputs():
    x, w, dy = array(X), array(W), array(Y)
    refused("conv_fwd", ValueError, ["out has shape (2, 6, 5, 5)", "(2, 6, 5, 4)"], x, w, out=(2, 6, 5, 5))
    refused("conv_fwd", ValueError, "out has shape (2, 6, 20)", x, w, out=(2, 6, 20))
    refused("conv_bwd_data", ValueError, ["out has shape (2, 4, 7, 7)", "x_shape is (2, 4, 7, 6)"], dy, w, X, out=(2, 4, 7, 7))
    refused("conv_bwd_filter", ValueError, ["out has shape (6, 4, 9)", "w_shape is (6, 4, 3, 3)"], x, dy, W, out=(6, 4, 9))
    refused("conv_bwd_bias", ValueError, "out has shape (4,); expected (6,)", dy, out=(4,))
    same = labs.guarded(lay(Y, "float32", expand=(0,))).array
    refused("conv_fwd", ValueError, "share one address", x, w, out=same)


def test_shapes_of_gradients():
    x, w, dy = array(X), array(W), array(Y)
    refused("conv_bwd_data", ValueError, ["dy has shape (2, 6, 5, 4)", "x_shape (2, 4, 8, 6)", "(2, 6, 6, 4)"], dy, w, (2, 4, 8, 6))
    refused("conv_bwd_data", ValueError, ["dy has shape", "x_shape (3, 4, 7, 6)"], dy, w, (3, 4, 7, 6))
    refused("conv_bwd_data", ValueError, "w has 4 input channels per group, x_shape gives 5", dy, w, (2, 5, 7, 6))
    refused("conv_bwd_data", ValueError, "x_shape has shape (2, 4)", dy, w, (2, 4))
    refused("conv_bwd_data", ValueError, "x_shape is -7", dy, w, (2, 4, -7, 6))
    refused("conv_bwd_data", TypeError, "x_shape is 7; expected a tuple", dy, w, 7)
    refused("conv_bwd_filter", ValueError, ["dy has shape (2, 6, 5, 4)", "w_shape (6, 4, 2, 3)"], x, dy, (6, 4, 2, 3))
    refused("conv_bwd_filter", ValueError, ["dy has shape", "(2, 7, 5, 4)"], x, dy, (7, 4, 3, 3))
    refused("conv_bwd_filter", ValueError, "w_shape has 3 input channels per group", x, dy, (6, 3, 3, 3))
    refused("conv_bwd_bias", ValueError, "dy has shape (3, 4)", array((3, 4)))


def test_transposed_convolutions():
    x, w = array((2, 4, 5, 5)), array((4, 3, 3, 3))
    f = "conv_transpose_fwd"
    refused(f, ValueError, "w has 6 input channels, x gives 4", x, array((6, 3, 3, 3)))
    refused(f, ValueError, "output_padding 2 is not below the stride 2", x, w, stride=2, output_padding=2)
    refused(f, ValueError, "output_padding is -1", x, w, stride=2, output_padding=-1)
    refused(f, ValueError, "spatial extents (-1, -1)", x, w, padding=4)
    refused(f, ValueError, "w has 4 filters (K), which 3 groups do not divide", x, w, groups=3)
    refused(f, ValueError, "bias has shape (4,); expected (3,)", x, w, array((4,)))
    refused(f, ValueError, ["out has shape (2, 3, 9, 9)", "(2, 3, 7, 7)"], x, w, out=(2, 3, 9, 9))
    refused(f, TypeError, "x is int8; expected one of float64, float32, float16, bfloat16", array((2, 4, 5, 5), "int8"),
            array((4, 3, 3, 3), "int8"))
    refused(f, TypeError, "x: got list", [1.0], w)
    refused(f, TypeError, "w: got NoneType", x, None)
    refused(f, ValueError, "beta is not 0", x, w, beta=2.0)


# ---- dtypes

def test_dtypes():
    x, w, dy = array(X), array(W), array(Y)
    refused("conv_fwd", TypeError, ["x is float32", "w is float16", "same"], x, array(W, "float16"), out=Y)
    refused("conv_fwd", TypeError, ["x is int32", "float64, float32, float16, bfloat16, int8"], array(X, "int32"), array(W, "int32"))
    refused("conv_fwd", TypeError, "out (or out_dtype) is int32", x, w, out_dtype="int32")
    refused("conv_fwd", TypeError, ["out is float32", "out_dtype asks for float16"], x, w, out=Y, out_dtype="float16")
    refused("conv_fwd", TypeError, "bias is int8", x, w, array((6,), "int8"))
    refused("conv_fwd", TypeError, "residual is float64", x, w, residual=array(Y, "float64"))
    for kind in ("int8", "float8_e4m3fn"):
        refused("conv_bwd_data", TypeError, f"dy is {kind}; expected one of float64, float32, float16, bfloat16", array(Y, kind),
                array(W, kind), X)
        refused("conv_bwd_filter", TypeError, f"x is {kind}; expected one of", array(X, kind), array(Y, kind), W)
        refused("conv_bwd_bias", TypeError, f"dy is {kind}; expected one of", array(Y, kind))
    refused("conv_bwd_data", TypeError, ["dy is float32 and w is float16; expected the same dtype"], dy, array(W, "float16"), X)
    refused("conv_bwd_filter", TypeError, "out (or out_dtype) is float64", x, dy, W, out=(W, "float64"))
    refused("conv_bwd_bias", TypeError, "out is float64", dy, out=((6,), "float64"))
    with pytest.raises(TypeError, match="'float31'"):
        dnnkern.conv_fwd(x, w, out_dtype="float31")


@pytest.mark.parametrize("value, got", [([[1.0]], "list"), (1.5, "float"), ("a", "str")])
def test_things_that_are_no_arrays(value, got):
    x, w, dy = array(X), array(W), array(Y)
    for name in ("x", "w", "bias", "residual"):
        operands = {"x": x, "w": w, "bias": None, "residual": None, name: value}
        refused("conv_fwd", TypeError, f"{name}: got {got}", operands["x"], operands["w"], operands["bias"], residual=operands["residual"],
                out=Y)
    refused("conv_fwd", TypeError, f"out: got {got}", x, w, out=value)
    refused("conv_fwd", TypeError, f"out: got {got}", x, w, out=value, beta=1.0)
    refused("conv_bwd_data", TypeError, f"dy: got {got}", value, w, X)
    refused("conv_bwd_filter", TypeError, f"dy: got {got}", x, value, W)
    refused("conv_bwd_bias", TypeError, f"dy: got {got}", value)
    refused("conv_fwd", TypeError, "x: got NoneType", None, w)
    refused("conv_bwd_data", TypeError, "w: got NoneType", dy, None, X)


# ---- memory

def test_outputs_that_are_operands():
    x, w = array((1, 4, 5, 5)), array((4, 4, 1, 1))
    refused("conv_fwd", ValueError, "out is the same memory as x; in place it works with nothing", x, w, out=x)
    refused("conv_bwd_data", ValueError, "out is the same memory as dy", x, w, (1, 4, 5, 5), out=x)
    refused("conv_transpose_fwd", ValueError, "out is the same memory as x", x, w, out=x)
    refused("conv_fwd", ValueError, "out is the same memory as residual", array((1, 4, 5, 5)), w, residual=x, out=x)
    assert (np.asarray(x if isinstance(x, np.ndarray) else x.cpu()) == 1).all()


def test_an_output_that_partly_overlaps():
    whole = labs.guarded(lay((3, 4, 5, 5), "float32"), np.ones((3, 4, 5, 5))).array
    w = array((4, 4, 1, 1))
    refused("conv_fwd", ValueError, "out partly overlaps x", whole[:2], w, out=whole[1:])
    refused("conv_bwd_data", ValueError, "out partly overlaps dy", whole[:2], w, (2, 4, 5, 5), out=whole[1:])
    refused("conv_transpose_fwd", ValueError, "out partly overlaps x", whole[:2], w, out=whole[1:])


def test_a_forced_algorithm_that_is_none():
    refused("conv_fwd", NotSupported, ["'quantum'", "naive"], array(X), array(W), algo="quantum", out=Y)


def test_a_filters_gradient_has_no_bias():
    x, w, y = (Tensor.packed(s, "float32") for s in (X, W, Y))
    with pytest.raises(ValueError, match="conv_bwd_filter: a bias makes no sense"):
        ConvProblem("conv_bwd_filter", x, w, y, bias=Tensor.packed((6,), "float32"))
