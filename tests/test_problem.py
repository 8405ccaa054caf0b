"""`dnnkern.problem`: the problem of a call out of arrays, or of shapes with dtypes, for every operation there is."""
import importlib
import inspect
import itertools

import cases
import numpy as np
import pytest
from cases import Place
from labs import guarded

import dnnkern
from dnnkern import dispatch
from dnnkern.dispatch import operation_of
from dnnkern.host.tensor import Tensor
from dnnkern.sketch import _NOT_OF_A_PROBLEM, Sketch, _functions

OPS = cases.modules()
FUNCTIONS = sorted(_functions())
F32 = "float32"
IMAGE, FILTER = ("2x3x8x8", F32), ("4x3x3x3", F32)


class _Called(Exception):
    """A public function, and the arguments of its call."""


@pytest.fixture
def called_with(monkeypatch):
    """called_with(case, arrays, out): the public function that a case calls, and {argument: value} of the call."""
    def recorder(name, signature):
        def record(*given, **named):
            bound = signature.bind(*given, **named).arguments
            more = bound.pop("parameters", {})
            raise _Called(name, {**bound, **more})
        return record

    def run(case, arrays, out):
        try:
            case.call(arrays, out)
        except _Called as called:
            return called.args
    original = {name: getattr(dnnkern, name) for name in FUNCTIONS}
    for name, function in original.items():
        monkeypatch.setattr(dnnkern, name, recorder(name, inspect.signature(function)))
    return run


def simplified(value):
    """A shape with a dtype in place of an array that is packed and aligned."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(simplified, value))
    if isinstance(value, Sketch) and value.tensor == Tensor.packed(value.tensor.shape, value.tensor.dtype):
        return value.tensor.shape, value.tensor.dtype
    return value


@pytest.mark.parametrize("op", OPS)
def test_is_that_of_the_call(op, called_with):
    """Of all cases, which give strides, misaligned and missing operands, outputs in place, lists, and every parameter."""
    tried, addresses = 0, itertools.count(1 << 50, 1 << 20)
    for case in OPS[op].CASES:
        if any(getattr(case, name, None) for name in ("fused", "made", "reductions", "modifier", "dual", "quantized", "staged")):
            continue  # no function takes one
        shared = {i: o for o, i in case.in_place().items()}
        places = {**case.outputs(), **{name: p for name, p in case.inputs().items() if name not in shared}}
        drawn = {name: p and Sketch(Tensor(p.shape, p.strides, p.dtype, p.alignment), next(addresses) + p.alignment % 16)
                 for name, p in places.items()}
        arrays = {name: drawn[shared.get(name, name)] for name in case.inputs()}
        out = tuple(drawn[name] for name in case.outputs())
        name, arguments = called_with(case, arrays, out if len(out) != 1 else out[0])
        assert dnnkern.problem(name, **arguments) == case.problem(), case.id
        if not case.in_place():
            arguments = {argument: simplified(value) for argument, value in arguments.items()}
            assert dnnkern.problem(name, **arguments) == case.problem(), case.id
        tried += 1
    assert tried >= 3


def test_of_arrays():
    """Strides, alignment, and which of them are the same memory."""
    a = guarded(Place((6, 5), F32, (7, 1), misaligned=1), np.ones((6, 5))).array
    b = guarded(Place((5, 6), F32, (1, 5)), np.ones((5, 6))).array
    c = guarded(Place((6, 6), F32, (6, 1)), np.ones((6, 6))).array
    problem = dnnkern.problem("matmul", a=a, b=b, c=c, out=c, beta=0.5)
    operation = operation_of("matmul")
    operation.forget()
    dnnkern.matmul(a, b, c=c, out=c, beta=0.5)
    (bound,) = operation.calls.values()
    assert bound.problem == problem and problem.in_place and problem.a.strides == (7, 1) and problem.a.alignment == 4


def test_a_call_made_before_is_not_made_again():
    a = guarded(Place((3, 5), F32, (5, 1)), np.ones((3, 5))).array
    out = guarded(Place((3, 5), F32, (5, 1)), np.ones((3, 5)))
    dnnkern.activation_fwd(a, "tanh", out=out.array)
    before = out.raw()
    with dispatch.watch() as seen:
        for x in (a, ("3x5", F32)):
            dnnkern.problem("activation_fwd", x=x, mode="relu", out=out.array)
    assert (out.raw() == before).all() and not seen


@pytest.mark.parametrize("shape, dtype, expected", [
    ("64x3", "bf16", ((64, 3), "bfloat16")), ((64, 3), np.float64, ((64, 3), "float64")), ([7], np.dtype("int8"), ((7,), "int8")),
    ("7", "half", ((7,), "float16")), ((), F32, ((), F32)), ("0x4", F32, ((0, 4), F32))])
def test_shapes_and_dtypes(shape, dtype, expected):
    x = dnnkern.problem("transpose", x=(shape, dtype), axes=tuple(range(len(expected[0])))).x
    assert (x.shape, x.dtype) == expected and x.is_packed and x.alignment == 16


@pytest.mark.parametrize("op, arguments, text", [
    ("conv_transpose_fwd", {"x": ("2x3x4x4", F32), "w": ("3x5x2x2", F32), "stride": 2}, "conv_bwd_data 2x5x8x8 k3 2x2 s2 p0 float32 NCHW"),
    ("convert_layout", {"x": ("2x3x4x4", F32), "source": "NCHW", "target": "NHWC"}, "transpose 2x3x4x4 float32 0,2,3,1"),
    ("adaptive_avg_pool_fwd", {"x": ("2x3x4x4", F32), "output_size": 2}, "avg_pool_fwd 2x3x4x4 float32 NCHW window 2x2 stride 2"),
    ("matmul", {"a": ("64x64", F32), "b": ("64x64", F32), "c": ("64x64", F32), "out": "c"}, "matmul 64x64x64 float32 nn + c"),
    ("unary", {"x": ("5", F32), "op": "exp"}, "unary 5 float32 exp")])
def test_functions_of_another_operation(op, arguments, text):
    problem = dnnkern.problem(op, **arguments)
    assert str(problem) == text and problem.op == text.split()[0]
    assert dispatch.get_algorithm(problem.op, problem, algo="naive").name == "naive"


def test_every_public_function_has_one():
    """Each gets as far as to miss its first argument."""
    functions = {n for n in dnnkern.__all__ if inspect.isfunction(getattr(dnnkern, n))}
    assert functions - set(FUNCTIONS) == {"problem", "recording", "view", "warm"} and set(OPS) <= set(FUNCTIONS)
    for name in FUNCTIONS:
        assert "algo" in inspect.signature(getattr(dnnkern, name)).parameters
        with pytest.raises(TypeError, match=f"problem: {name} also needs "):
            dnnkern.problem(name)


ENDLESS = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize("op, arguments, error, words", [
    ("conv", {}, ValueError, "problem: unknown function 'conv'; did you mean 'conv_fwd', .*$"),
    ("sofmax_fwd", {}, ValueError, "did you mean 'softmax_fwd' or 'softmax_bwd'"),
    ("view", {}, ValueError, "problem: unknown function 'view'; expected one of activation_bwd, "),
    ("dispatch", {}, ValueError, "unknown function 'dispatch'"), (3, {}, ValueError, "unknown function 3"),
    ([], {}, ValueError, r"unknown function \[\]"),
    ("transpose", {"x": ENDLESS, "axes": (0,)}, TypeError, r"transpose: x\S*: got list"),
    ("conv_fwd", {"x": IMAGE, "w": FILTER, "strid": 2}, TypeError, r"has no argument 'strid'; did you mean 'stride'\? \(it takes x, w,"),
    ("conv_fwd", {}, TypeError, "conv_fwd also needs x and w"), ("conv_fwd", {"x": IMAGE}, TypeError, "conv_fwd also needs w"),
    ("conv_fwd", {"x": IMAGE, "w": FILTER, "algo": "naive"}, TypeError, "algo is not part of a problem"),
    ("conv_fwd", {"x": IMAGE, "w": FILTER, "workspace": None}, TypeError, "workspace is not part of a problem"),
    ("conv_fwd", {"x": "2x3x8x8", "w": FILTER}, TypeError, r"conv_fwd: x is '2x3x8x8'; expected the dtype too: \('2x3x8x8', 'float32'\)"),
    ("conv_fwd", {"x": ("2x3x8x8", "f33"), "w": FILTER}, TypeError, "conv_fwd: x: unknown dtype 'f33'"),
    ("conv_fwd", {"x": ((2, -3, 8, 8), F32), "w": FILTER}, ValueError, "conv_fwd: x: a tensor has no negative sizes"),
    ("conv_fwd", {"x": ("2x4x8x8", F32), "w": FILTER}, ValueError, "conv_fwd: w has 3 input channels per group, x gives 4"),
    ("conv_fwd", {"x": IMAGE, "w": FILTER, "out": "y"}, ValueError, "conv_fwd: out is 'y'; expected an array, .* name of an operand"),
    ("concat", {"arrays": [("2x3", F32), ("2x3", "f33")], "axis": 0}, TypeError, r"concat: arrays\[1\]: unknown dtype"),
    ("softmax_fwd", {"x": 7}, TypeError, "softmax_fwd: x: got int"),
    ("sgd_step", {"params": [], "grads": [], "lr": 0.1}, ValueError, "sgd_step: the lists are empty")])
def test_mistakes(op, arguments, error, words):
    with pytest.raises(error, match=words) as caught:
        dnnkern.problem(op, **arguments)
    assert "\n" not in str(caught.value)


def test_what_is_no_part_of_a_problem_is_the_tail_of_every_function():
    tail = set(inspect.signature(dnnkern.matmul).parameters) & _NOT_OF_A_PROBLEM
    assert {"workspace", "stream", "algo", "allow"} <= tail


def test_families_import_nothing_of_it():
    """It stands above them."""
    assert "sketch" not in vars(importlib.import_module("dnnkern.matmul"))
