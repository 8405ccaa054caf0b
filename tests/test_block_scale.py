"""Blocks with scales: special values, ties, mistakes that the contract's cases show, bad input."""
import numpy as np
import pytest
from cases import numpy_dtype
from cases.block_scale_quantize import CASES, E2M1, nearest_e2m1
from contract import check, refusal, registered
from labs import array, host, refuses

import dnnkern
from dnnkern import dispatch
from dnnkern.transform._parse import parse_problem
from dnnkern.transform.blocks import _formats, block_scale_lanes

ALGORITHMS = ("naive", "lanes")
E8M0, E4M3 = "float8_e8m0fnu", "float8_e4m3fn"


def quantized(x, block, **more):
    """(y, scale)"""
    return map(host, dnnkern.block_scale_quantize(array(x), block, **more))


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_special_values(algo):
    """A block of zeros keeps their signs; NaN is the scale's; an infinity has the largest scale, and is the largest element."""
    x = np.ones((5, 16))
    x[0] = [0.0, -0.0] * 8
    x[1, 3], x[2, 4], x[3], x[4] = np.nan, -np.inf, 2.0 ** -149, 3e38
    y, scale = quantized(x, 16, algo=algo)
    assert np.isnan(scale[1, 0]) and scale[[0, 2, 3, 4], 0].tolist() == [2.0 ** -127, 2.0 ** 127, 2.0 ** -127, 2.0 ** 120]
    assert not y[0].any() and np.signbit(y[0]).tolist() == [False, True] * 8 and np.isnan(y[1]).all()
    assert y[2].tolist() == [0] * 4 + [-448] + [0] * 11 and not y[3].any() and (y[4] == 224).all()
    y, scale = quantized(x, 16, dtype="float4_e2m1fn_x2", algo=algo)
    assert np.isnan(scale[1, 0]) and scale[[0, 2, 3, 4], 0].tolist() == [0, 448, 2.0 ** -9, 448]
    assert y[0].tolist() == [0x80] * 8 and y[2].tolist() == [0, 0, 0xF, 0, 0, 0, 0, 0] and (y[4] == 0x77).all()


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_ties_of_four_bits_are_even(algo):
    """Every middle of two neighbours and the floats beside it, for every scale of e4m3."""
    middles = (E2M1[:7] + E2M1[1:8]) / 2
    scales = np.arange(1, 127, dtype=np.uint8).view(numpy_dtype(E4M3)).astype(np.float32)
    exact = (scales[:, None] * middles).astype(np.float32)
    x = np.zeros((len(scales), 32), np.float32)
    for k, near in enumerate((exact, np.nextafter(exact, np.float32(0)), -exact, -np.nextafter(exact, np.float32(np.inf)))):
        x[:, 8 * k:8 * k + 7] = near
        x[:, 8 * k + 7] = 6 * scales
    y, scale = quantized(x, 32, dtype="float4_e2m1fn_x2", algo=algo)
    assert (scale[:, 0] == scales).all()
    code = nearest_e2m1(x.astype(float) / scales[:, None])
    assert (y == code[:, ::2] + 16 * code[:, 1::2]).all()


def test_every_scale_is_a_power_of_two():
    scale = 2.0 ** (np.arange(255) - 127.0)
    y = host(dnnkern.block_scale_dequantize(array(np.ones((256, 1)), E4M3), array([*scale, np.nan], E8M0)[:, None], 1))
    assert (y[:255, 0] == scale).all() and np.isnan(y[255, 0])


@pytest.mark.parametrize("name, wrong", [("to_e2m1", lambda right: lambda x, scale: right(np.float32(x * 1.0001), scale)),
                                         ("make_scale", lambda right: lambda dtype, narrow: lambda m: right(dtype, narrow)(m & ~0xFFFFF)),
                                         ("make_scaled", lambda right: lambda dtype: lambda x, value, inverse: x)])
def test_mistakes_are_found(name, wrong, monkeypatch, simulated):
    """A rounding that is none to even, a scale of a magnitude cut short, elements not divided."""
    right = getattr(_formats, name)
    monkeypatch.setattr(block_scale_lanes, name, wrong(right))
    monkeypatch.setattr(block_scale_lanes, "kernel", block_scale_lanes.kernel.__wrapped__)
    algorithm = next(a for a in block_scale_lanes.ALGORITHMS if a.op == "block_scale_quantize")
    with registered(algorithm) as mine, pytest.raises(AssertionError):
        for case in CASES:
            problem = case.problem()
            if not problem.is_empty and refusal(mine, problem) is None:
                check(mine, case, again=False)


X, Y, SCALE = array(np.ones((2, 64))), array(np.ones((2, 64)), E4M3), array(np.ones((2, 2)), E8M0)


@pytest.mark.parametrize("more, error, words", [
    ({"block_size": 0}, ValueError, ("block_size",)), ({"block_size": 24}, ValueError, ("64 elements along axis 1", "blocks of 24")),
    ({"block_size": 1, "dtype": "float4_e2m1fn_x2"}, ValueError, ("block_size=1; expected an even number",)),
    ({"axis": 2}, ValueError, ("2 is none of the 2 dimensions",)), ({"dtype": "float16"}, TypeError, ("dtype='float16'",)),
    ({"scale_dtype": "float32"}, TypeError, ("scale_dtype='float32'",)),
    ({"x": array(np.zeros((2, 64)), "float64")}, TypeError, ("x is float64",)),
    ({"x": None}, TypeError, ("NoneType",)), ({"x": array(0.0)}, ValueError, ("no dimensions",)),
    ({"out": (Y, array(np.ones((2, 4)), E8M0))}, ValueError, ("the out for scales has shape",)),
    ({"out": (Y, array(np.ones((2, 2)), E4M3))}, TypeError, ("scale_dtype asks for float8_e8m0fnu",))])
def test_bad_input_to_quantize(more, error, words):
    with refuses(error, words, "block_scale_quantize"):
        dnnkern.block_scale_quantize(**{"x": X, "block_size": 32, **more})


@pytest.mark.parametrize("more, error, words", [
    ({"scale": array(np.ones((2, 3)), E8M0)}, ValueError, ("scale has shape (2, 3); expected (2, 2)",)),
    ({"scale": array(np.ones((2, 2)), "float64")}, TypeError, ("scale is float64",)),
    ({"scale": None}, TypeError, ("scale: got NoneType",)),
    ({"x": X}, TypeError, ("x is float32",)), ({"dtype": "float64"}, TypeError, ("dtype='float64'",)),
    ({"block_size": 31}, ValueError, ("blocks of 31",))])
def test_bad_input_to_dequantize(more, error, words):
    with refuses(error, words, "block_scale_dequantize"):
        dnnkern.block_scale_dequantize(**{"x": Y, "scale": SCALE, "block_size": 32, **more})


def test_what_lanes_are_chosen_for():
    for words, algo in (("4096x4096 bf16 32", "lanes"), ("4096x4096 bf16 16 --to float4_e2m1fn_x2", "lanes"),
                        ("4096x4096 bf16 32 --axis 0", "naive")):
        for op in ("block_scale_quantize", "block_scale_dequantize"):
            assert dispatch.get_algorithm(op, parse_problem(words.split(), op)).name == algo
