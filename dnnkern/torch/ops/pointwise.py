"""Functions of single elements: one kernel for each operator, of a program of `fused_pointwise`."""
import functools

import torch

import dnnkern

from .._table import Refused, aten
from .._tensors import one_dtype


class _Builder:
    """The steps of a formula, whose values are numbered: first the loads."""

    def __init__(self, loads, compute):
        self.count, self.compute, self.steps = loads, compute, []

    def __getattr__(self, mode):
        """A pointwise function of values."""
        from ...device.pointwise import Function  # what is enabled need not be used
        from ...device.program import Step

        def step(*values):
            self.steps.append(Step(Function.of(mode), values, compute=self.compute))
            self.count += 1
            return self.count - 1
        return step


# Operator -> formula of a builder and the numbers of its values: tensors, then numbers that are given at each call.
_UNARY = {name: name for name in ("exp", "log", "sqrt", "rsqrt", "reciprocal", "neg", "abs", "sin", "cos", "erf", "floor", "ceil")}
_BINARY = {"maximum": "max", "minimum": "min", "atan2": "atan2"}
_FORMULAS = {
    **{name: lambda f, x, mode=mode: getattr(f, mode)(x) for name, mode in _UNARY.items()},
    **{name: lambda f, x, y, mode=mode: getattr(f, mode)(x, y) for name, mode in _BINARY.items()},
    **{name: lambda f, x, y, mode=name: getattr(f, mode)(x, y) for name in (
        "add", "sub", "mul", "div", *(f"cmp_{name}" for name in ("eq", "neq", "gt", "ge", "lt", "le")))},
    "rsub": lambda f, y, x: f.sub(x, y),
    "rdiv": lambda f, y, x: f.div(x, y),
    "add_scaled": lambda f, x, y, alpha: f.add(x, f.mul(alpha, y)),
    "sub_scaled": lambda f, x, y, alpha: f.sub(x, f.mul(alpha, y)),
    "where": lambda f, mask, x, y: f.binary_select(x, y, mask),
    "addcmul": lambda f, x, a, b, value: f.add(x, f.mul(f.mul(value, a), b)),
    "addcdiv": lambda f, x, a, b, value: f.add(x, f.div(f.mul(value, a), b)),
    "sigmoid_backward": lambda f, dy, y: f.mul(dy, f.sub(y, f.mul(y, y))),
    "tanh_backward": lambda f, dy, y: f.sub(dy, f.mul(dy, f.mul(y, y))),
    "clamp_min": lambda f, x, low: f.max(x, low),
    "clamp_max": lambda f, x, high: f.min(x, high),
    "clamp": lambda f, x, low, high: f.min(f.max(x, low), high),
    "identity": lambda f, x: f.identity(x),
    "square": lambda f, x: f.mul(x, x),
    "cube": lambda f, x: f.mul(f.mul(x, x), x),
    "pow": lambda f, x, exponent: f.pow(x, exponent),
}


@functools.lru_cache(512)
def _program(formula, kinds, result):
    """The program of a formula: of arrays of these dtypes, and of numbers, where there is None."""
    from ...device.program import Program
    compute = "float64" if "float64" in kinds else "float32"
    builder = _Builder(len(kinds), compute)
    value = _FORMULAS[formula](builder, *range(len(kinds)))
    loads = [(compute, "value") if kind is None else (kind, "matrix") for kind in kinds]
    return Program(tuple(loads), tuple(builder.steps), ((value, result, "matrix"),), accumulators=0)


@functools.lru_cache(1 << 12)
def _strides(*described):
    """(shape, strides or None where they are packed) of the result of tensors of these shapes and strides, as TensorIterator makes it."""
    tensors = torch.broadcast_tensors(*(torch.empty_strided(*one, device="meta") for one in described))
    strides = torch._prims_common.compute_elementwise_output_strides(*tensors)
    packed = torch.empty(tensors[0].shape, device="meta").stride()
    return tensors[0].shape, None if tuple(strides) == packed else tuple(strides)


def run(formula, tensors, numbers=(), *, mask=None, result=None, out=None):
    """Compute a formula of a mask of bool, if it has one, of tensors of one dtype, and of numbers."""
    one_dtype(*tensors)
    operands, first = tensors if mask is None else (mask, *tensors), tensors[0]
    if any(t.numel() == 0 or t.device != first.device for t in operands):
        raise Refused("no elements, or several devices")
    result = result or first.dtype
    shape, strides = _strides(*[(t.shape, t.stride()) for t in operands])
    if out is None and strides is not None:
        out = torch.empty_strided(shape, strides, dtype=result, device=first.device)
    elif out is not None and out.shape != shape:
        raise Refused(f"a result of shape {tuple(shape)} in place of {tuple(out.shape)}")
    kinds = *[_word(t.dtype) for t in operands], *[None] * len(numbers)
    return dnnkern.fused_pointwise(_program(formula, kinds, _word(result)), operands, numbers=[float(v) for v in numbers], out=out)


def _word(dtype):
    return str(dtype).removeprefix("torch.")


def _of_tensors(formula, *tensors):
    return run(formula, tensors)


def _of_product(formula, x, a, b, *, value=1):
    return run(formula, (x, a, b), (value,))


def _add(name, function, formula):
    """Override an operator by a function with a formula."""
    aten(name, heavy=False)(functools.update_wrapper(functools.partial(function, formula), function))


for _op in (*_UNARY, *_BINARY, "sigmoid_backward", "tanh_backward"):
    _add(_op, _of_tensors, _op)
for _op in ("addcmul", "addcdiv"):
    _add(_op, _of_product, _op)


@aten("clamp", heavy=False)
def clamp(x, min=None, max=None):
    """x, not below and not above numbers."""
    formula = "clamp" if None not in (min, max) else "clamp_min" if max is None else "clamp_max"
    return run(formula, (x,), [bound for bound in (min, max) if bound is not None])


_POWERS = {2: "square", 3: "cube", 1: "identity", 0.5: "sqrt", -1: "reciprocal", -0.5: "rsqrt"}


@aten("pow.Tensor_Scalar", heavy=False)
def power(x, exponent):
    """x to the power of a number."""
    formula = _POWERS.get(exponent)
    return run("pow", (x,), (exponent,)) if formula is None else run(formula, (x,))
