"""Cases of pointwise programs: chains and DAGs, layouts, types; the reference evaluates them in float64, value by value."""
import itertools
import math
from dataclasses import dataclass, field

import numpy as np
from activations import ACTIVATIONS

from . import RANGE, ROUNDOFF, Case, coherent, lay, rounded, rounding_error, saturated
from ._elementwise import BINARY, UNARY
from ._pointwise import SHORT as NAMES
from ._pointwise import check_large, tail_error

SHORT = {**NAMES, "int16": "i16"}
FLOATS = ("float32", "bfloat16", "float16", "float64")
EXACT_MODES = ("add", "sub", "mul", "max", "min", "neg", "abs", "relu", "identity", "add_square", "binary_select", "gen_index", "cmp_gt",
               "cmp_le", "cmp_eq", "logical_and", "logical_or", "logical_not")


def definition(function):
    """A function of float64 arrays."""
    if function.op == "unary":
        return UNARY[function.mode][0]
    if function.mode == "binary_select":
        return lambda a, b, mask: np.where(mask != 0, a, b)
    return BINARY[function.mode][0] if function.op == "binary" else ACTIVATIONS[function.mode][0]


@dataclass(frozen=True)
class Fused(Case):
    """A call: `given` are the loads, (dtype, access), of arrays (dtype, shape); `moves` the steps, (mode, inputs[, round_to[, compute]]);
    `results` the stores, (value, dtype). `layout` are keywords of `lay` by array, `same` ((output, input), ...)."""
    id: str
    shape: tuple
    given: tuple
    moves: tuple
    results: tuple
    layout: dict = field(default_factory=dict, hash=False)
    same: tuple = ()
    axes: tuple = ()
    op = "fused_pointwise"

    @property
    def program(self):
        from dnnkern.device.pointwise import Function
        from dnnkern.device.program import Program, Step
        loads = [(dtype, "matrix" if isinstance(access, tuple) else access) for dtype, access in self.given]
        steps = [Step(Function.of(mode), inputs, *more) for mode, inputs, *more in self.moves]
        return Program(loads, steps, [(value, dtype, "matrix") for value, dtype in self.results], accumulators=0)

    @property
    def dtype(self):
        """Of the first result."""
        return self.results[0][1]

    @property
    def exact(self):
        return all(mode in EXACT_MODES for mode, *_ in self.moves)

    @property
    def trivial(self):
        return any(dtype in ("bool", "int8", "uint8") for _, dtype in self.results) or self.given[0][0] == "bool"

    @property
    def work(self):
        return (8 + 4 * len(self.moves)) * math.prod(self.shape)

    def in_place(self):
        return dict(self.same)

    def inputs(self):
        found = {}
        for dtype, access in self.given:
            if isinstance(access, tuple):
                name = f"x{len(found)}"
                output = next((o for o, i in self.same if i == name), None)
                found[name] = lay(access, dtype, **self.layout.get(output or name, {}))
        return found

    def outputs(self):
        return {f"y{k}": lay(self.shape, dtype, **self.layout.get(f"y{k}", {})) for k, (_, dtype) in enumerate(self.results)}

    def numbers(self):
        """The numbers of a call."""
        return [1.5 * (k + 1) for k, _ in enumerate(load for load in self.given if load[1] == "value")]

    def problem(self):
        from dnnkern.fused._problem import FusedProblem
        from dnnkern.host.tensor import Tensor
        tensors = [[Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in places.values()]
                   for places in (self.inputs(), self.outputs())]
        return FusedProblem(self.program, *tensors, self.axes, tuple(i for _, i in self.same))

    def call(self, arrays, out=None, **tail):
        from dnnkern import fused_pointwise
        return fused_pointwise(self.program, list(arrays.values()), numbers=self.numbers(), axes=self.axes, out=out, **tail)

    def values(self, mode):
        found = {}
        for name, place in self.inputs().items():
            rng = np.random.default_rng([*self.id.encode(), *name.encode()])
            if mode == "exact" or place.dtype in RANGE:
                low, high = (0, 1) if place.dtype == "bool" else RANGE.get(place.dtype, (-3, 3))
                x = rng.integers(max(low, -3 if place.size > 2 else 1), min(high, 3) + 1, place.shape).astype(np.float64)
            else:
                x = rounded(rng.standard_normal(place.shape) + 0.25, place.dtype)
            found[name] = coherent(x, place)
        return found

    def reference(self, values, tensor_cores=False):
        """Each value with a bound of its error: what its inputs may be off by, at the corners, and its own rounding."""
        found, arrays, numbers, axes = [], iter(values.values()), iter(self.numbers()), iter(self.axes)
        for _, access in self.given:
            if isinstance(access, tuple):
                v = np.broadcast_to(next(arrays), self.shape)
            elif access == "index":
                v = np.indices(self.shape, float)[next(axes)]
            else:
                v = np.full(self.shape, float(np.float32(next(numbers) if access == "value" else access)))
            found.append((v, np.zeros(self.shape)))
        for step, (mode, inputs, *_) in zip(self.program.steps, self.moves):
            f, compute = definition(step.function), step.compute
            some = [found[i] for i in inputs]
            y = np.asarray(f(*(v for v, _ in some)), np.float64)
            error = np.zeros(self.shape)
            for signs in itertools.product((-1, 1), repeat=len(some)):
                error = np.maximum(error, np.abs(np.asarray(f(*(v + s * e for s, (v, e) in zip(signs, some))), np.float64) - y))
            if compute != "int32":
                error = error + ROUNDOFF[compute] * (8 * np.abs(y) + sum(np.abs(v) for v, _ in some) * (mode not in EXACT_MODES))
                error = error + ROUNDOFF["float32"] * np.abs(some[0][0]) * tail_error(mode, "bfloat16", some[0][0])
            if step.round_to:
                y, error = saturated(y, step.round_to), error + rounding_error(y, step.round_to)
            found.append((y, error))
        reference, bound = {}, {}
        for k, (value, dtype) in enumerate(self.results):
            y, error = found[value]
            if dtype == "bool":
                y, error = (y != 0).astype(float), np.zeros(self.shape)
            else:
                error = error + rounding_error(y, dtype)
            reference[f"y{k}"], bound[f"y{k}"] = saturated(y, dtype), error
        return reference, bound


def chain(dtype, *operands, shape):
    """Loads: the first array, then operands: shapes of arrays, and numbers."""
    return ((dtype, shape), *((dtype, o) for o in operands))


def _two(dtype, shape, b):
    """``relu(x * b + x)``"""
    compute = "float64" if dtype == "float64" else "float32"
    return chain(dtype, b, shape=shape), (("mul", (0, 1), None, compute), ("add", (2, 0), None, compute), ("relu", (3,), None, compute))


# name -> (shape, the second array's shape, {array: how it lies})
LAYOUTS = {
    "run-101": ((101,), None, {}), "run-256": ((256,), None, {}), "matrix-5x24": ((5, 24), None, {}), "odd-rows-6x19": ((6, 19), None, {}),
    "row-6x24": ((6, 24), (24,), {}), "row-odd-6x21": ((6, 21), (21,), {}), "column-5x24": ((5, 24), (5, 1), {}),
    "number-70": ((70,), (1,), {}), "scalar": ((), (), {}), "one-1x1": ((1, 1), (1,), {}), "channels-2x3x20": ((2, 3, 20), (3, 1), {}),
    "middle-3x5x16": ((3, 5, 16), (3, 1, 16), {}), "rank-8": ((2, 1, 2, 3, 1, 2, 2, 3), (2, 3, 1, 2, 1, 1), {}),
    "strided-7x18": ((7, 18), None, {"x0": {"gap": 2}, "y0": {"gap": 6}}),
    "step-6x11": ((6, 11), None, {"x1": {"step": 2}, "y0": {"step": 3}}),
    "negative-6x9": ((6, 9), None, {"x0": {"flip": (0, 1)}, "y0": {"flip": (0,)}}), "apart-131": ((131,), None, {"x0": {"misaligned": 2}}),
    "misaligned-4x32": ((4, 32), (32,), {n: {"misaligned": 1} for n in ("x0", "x1", "y0")}),
    "result-misaligned-70": ((70,), None, {"y0": {"misaligned": 3}}), "transposed-8x12": ((8, 12), (12,), {"x0": {"order": (1, 0)}}),
    "alike-8x12": ((8, 12), None, {n: {"order": (1, 0)} for n in ("x0", "x1", "y0")}), "long-2x700": ((2, 700), (700,), {"y0": {"gap": 1}}),
    "rows-of-4-9x32": ((9, 32), (32,), {})}


def cases():
    """All cases."""
    found = []

    def case(name, dtype, shape, given, moves, results, **more):
        found.append(Fused(f"{name}-{SHORT[dtype]}", shape, given, moves, results, **more))

    for k, (name, (shape, b, layout)) in enumerate(LAYOUTS.items()):
        for dtype in (FLOATS[k % 4], FLOATS[(k + 1) % 4]):
            given, moves = _two(dtype, shape, shape if b is None else b)
            case(name, dtype, shape, given, moves, ((4, dtype),), layout=layout)
    for k, dtype in enumerate(FLOATS):
        compute = "float64" if dtype == "float64" else "float32"
        shape = (6, 40)
        case("bias-gelu-6x40", dtype, shape, chain(dtype, (40,), shape=shape),
             (("add", (0, 1), None, compute), ("gelu", (2,), None, compute)), ((3, dtype),))
        case("six-nodes-and-a-side-output-6x40", dtype, shape, chain(dtype, (40,), (6, 1), (6, 40), 0.5, shape=shape),
             (("mul", (0, 1), None, compute), ("add", (5, 2), None, compute), ("add", (6, 3), None, compute),
              ("mul", (7, 4), None, compute), ("sigmoid", (8,), None, compute), ("mul", (9, 8), None, compute)), ((10, dtype), (7, dtype)))
        case("numbers-77", dtype, (77,), chain(dtype, "value", "value", shape=(77,)),
             (("mul", (0, 1), None, compute), ("add", (3, 2), None, compute)), ((4, dtype),))
        case("in-place-5x24", dtype, (5, 24), chain(dtype, (5, 24), (24,), shape=(5, 24)),
             (("add", (0, 1), None, compute), ("sub", (1, 2), None, compute)), ((3, dtype), (4, dtype)), same=(("y0", "x1"),))
        case("both-in-place-300", dtype, (300,), chain(dtype, (300,), shape=(300,)),
             (("add", (0, 1), None, compute), ("sub", (0, 1), None, compute)), ((2, dtype), (3, dtype)), same=(("y0", "x0"), ("y1", "x1")))
    for name, dtype in (("gate", "bfloat16"), ("gate", "float32")):  # silu(a) * b of halves of a row
        case(f"{name}-4x56", dtype, (4, 56), chain(dtype, (4, 56), shape=(4, 56)), (("swish", (0,)), ("mul", (2, 1))), ((3, dtype),),
             layout={"x0": {"gap": 56}, "x1": {"gap": 56}})
    case("mask-and-value-5x33", "float32", (5, 33), (("float32", (5, 33)), ("float32", (33,)), ("float32", 0)),
         (("cmp_gt", (0, 1)), ("binary_select", (0, 2, 3)), ("add", (4, 1))), ((3, "bool"), (5, "float32")))
    case("mask-in-5x40", "bfloat16", (5, 40), (("bfloat16", (5, 40)), ("bool", (5, 40)), ("bool", (40,)), ("bfloat16", 0)),
         (("logical_and", (1, 2)), ("binary_select", (0, 3, 4))), ((5, "bfloat16"), (4, "bool")))
    for axes, shape in (((0, 1), (6, 35)), ((1, 0), (8, 16)), ((2, 1), (2, 5, 24)), ((0, 0), (50,))):
        case(f"causal-{axes[0]}{axes[1]}-{len(shape)}d-{shape[-1]}", "float32", shape,
             (("float32", shape), ("int32", "index"), ("int32", "index"), ("float32", -1000.0)),
             (("cmp_le", (1, 2)), ("binary_select", (0, 3, 4))), ((5, "float32"),), axes=axes)
    case("index-of-flipped-rows-6x20", "int32", (6, 20), (("int32", (6, 20)), ("int32", "index")), (("add", (0, 1), None, "int32"),),
         ((2, "int32"),), axes=(0,), layout={"y0": {"flip": (0,)}})
    for k, dtype in enumerate(("int32", "int8", "uint8", "int16")):
        case("integers-7x34", dtype, (7, 34), chain(dtype, (34,), shape=(7, 34)),
             (("mul", (0, 1), None, "int32"), ("max", (2, 0), None, "int32")), ((3, dtype),))
    for source, target in (("float32", "int8"), ("int8", "bfloat16"), ("float16", "float32"), ("float32", "float8_e4m3fn"),
                           ("float8_e5m2", "float16"), ("int32", "float32"), ("bool", "float32"), ("float32", "uint8"),
                           ("float64", "float16"), ("int8", "int32")):
        case(f"to-{SHORT[target]}-4x36", source, (4, 36), chain(source, 2.0, shape=(4, 36)), (("mul", (0, 1)),), ((2, target),))
    case("rounded-on-the-way-90", "float32", (90,), chain("float32", (90,), shape=(90,)),
         (("add", (0, 1), "bfloat16"), ("mul", (2, 2), "float16"), ("exp", (1,)), ("add", (3, 4))), ((5, "float32"), (2, "bfloat16")))
    many = tuple(("float32", (3, 20) if k % 3 else (20,)) for k in range(13))
    case("sixteen-arrays-3x20", "float32", (3, 20), many,
         tuple(("add", (k if k == 0 else 12 + k, k + 1)) for k in range(12)), ((24, "float32"), (20, "float32"), (16, "float32")))
    long = [("mul", (0, 1))]
    for k in range(14):
        long += [("add", (2 + 2 * k, 0)), ("relu" if k % 2 else "mul", (3 + 2 * k,) if k % 2 else (3 + 2 * k, 1))]
    case("thirty-nodes-6x24", "float32", (6, 24), chain("float32", 0.5, shape=(6, 24)), tuple(long), ((len(long) + 1, "float32"),))
    case("empty-4x0", "float32", (4, 0), *_two("float32", (4, 0), (1,)), ((4, "float32"),))
    return list({c.id: c for c in found}.values())


CASES = cases()
LARGE = [Fused(f"bias-gelu-{n}-{SHORT[dtype]}", shape, ((dtype, shape), (dtype, shape[-1:])), (("add", (0, 1)), ("gelu", (2,))),
               ((3, dtype),)) for n, (dtype, shape) in enumerate((("bfloat16", (4096, 4096)), ("float32", (1023, 4095))))]
_WIDE = (4097, 2 ** 19 + 1)
BEYOND_INT32 = [Fused("2**31-row-add-bf16", _WIDE, (("bfloat16", _WIDE), ("bfloat16", _WIDE[-1:])), (("add", (0, 1)),),
                      ((2, "bfloat16"),))]


def check_beyond_int32(case, algo, allow):
    """Exactly, against torch."""
    check_large(case, algo, allow, lambda torch, a, b: a + b)
