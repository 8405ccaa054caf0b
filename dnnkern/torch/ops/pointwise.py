"""Functions of single elements: one kernel for each operator, of a program of `fused_pointwise`.

Operators with a number of Python beside a tensor (add, mul, where) are not here: the dispatcher hands it over as a number, which PyTorch's
kernel, where a call has to go back to it, does not take.
"""
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
    compute = "float64" if result == "float64" else "float32"
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


def _run(formula, tensors, numbers=()):
    """Compute a formula of tensors of one dtype, and of numbers."""
    one_dtype(*tensors)
    if any(t.numel() == 0 for t in tensors):
        raise Refused("no elements")
    first, out = tensors[0], None
    shape, strides = _strides(*[(t.shape, t.stride()) for t in tensors])
    if strides is not None:
        out = torch.empty_strided(shape, strides, dtype=first.dtype, device=first.device)
    kind = str(first.dtype).removeprefix("torch.")
    program = _program(formula, (*[kind] * len(tensors), *[None] * len(numbers)), kind)
    return dnnkern.fused_pointwise(program, tensors, numbers=[float(v) for v in numbers], out=out)


def _of_tensors(formula, *tensors):
    return _run(formula, tensors)


def _of_product(formula, x, a, b, *, value=1):
    return _run(formula, (x, a, b), (value,))


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
    return _run(formula, (x,), [bound for bound in (min, max) if bound is not None])


_POWERS = {2: "square", 3: "cube", 1: "identity", 0.5: "sqrt", -1: "reciprocal", -0.5: "rsqrt"}


@aten("pow.Tensor_Scalar", heavy=False)
def power(x, exponent):
    """x to the power of a number."""
    formula = _POWERS.get(exponent)
    return _run("pow", (x,), (exponent,)) if formula is None else _run(formula, (x,))
