"""Cases of programs with reductions: softmax and norms spelled out, chains with sums, layouts, types; the reference evaluates them in
float64, value by value."""
import itertools
import math
from dataclasses import dataclass

import numpy as np

from . import ROUNDOFF, lay, rounding_error, saturated
from .fused_pointwise import EXACT_MODES, SHORT, Fused, definition

ROW = "row-"
LINEAR = {"add": lambda v: v, "avg": lambda v: v, "norm1": np.abs, "sum_square": np.square, "norm2": np.square}
EXTREMA = {"max": np.max, "min": np.min, "amax": lambda v, **k: np.abs(v).max(**k)}


def reduced(mode, v, error, axes, compute):
    """(the reduction of a value, a bound of its error); sums may be in any order that adds 256 elements in a row at most."""
    n = math.prod(v.shape[a] for a in axes)
    if mode in EXTREMA:
        return EXTREMA[mode](v, axis=axes, keepdims=True), error.max(axis=axes, keepdims=True)
    if mode in ("mul", "logsumexp"):
        if mode == "mul":
            y = v.prod(axis=axes, keepdims=True)
            relative = (error / np.maximum(np.abs(v), 1e-30)).sum(axis=axes, keepdims=True) + n * ROUNDOFF[compute]
            return y, 2 * relative * np.abs(y)
        top = v.max(axis=axes, keepdims=True)
        y = top + np.log(np.exp(v - top).sum(axis=axes, keepdims=True))
        return y, error.max(axis=axes, keepdims=True) + ROUNDOFF[compute] * (16 + np.abs(y) + 2 * np.abs(v).max(axis=axes, keepdims=True))
    f = LINEAR[mode]
    y, bound = f(v), np.maximum(np.abs(f(v + error) - f(v)), np.abs(f(v - error) - f(v)))
    bound = bound + ROUNDOFF[compute] * (min(n, 256) + n / 256 + 8) * np.abs(y)
    y, bound = y.sum(axis=axes, keepdims=True), bound.sum(axis=axes, keepdims=True)
    if mode == "avg":
        y, bound = y / max(n, 1), bound / max(n, 1)
    if mode == "norm2":
        root = np.sqrt(y)
        y, bound = root, bound / np.maximum(root, 1e-30) + 4 * ROUNDOFF[compute] * root
    return y, bound + ROUNDOFF[compute] * np.abs(y) * (mode not in ("add", "norm1", "sum_square"))


@dataclass(frozen=True)
class RowFused(Fused):
    """As `Fused`, with moves ("row-max", (value,)[, round_to[, compute]]), loads (dtype, shape, "row") and results (value, dtype, "row");
    `axes` are those that are reduced."""
    index_axes: tuple = ()
    op = "fused_reduction"

    @property
    def program(self):
        from dnnkern.device.pointwise import Function
        from dnnkern.device.program import Step
        from dnnkern.fused import Reduction, StagedProgram
        loads = [(dtype, (more or ["matrix"])[0] if isinstance(access, tuple) else access) for dtype, access, *more in self.given]
        steps = [Reduction(mode[len(ROW):], *inputs, *more) if mode.startswith(ROW) else Step(Function.of(mode), inputs, *more)
                 for mode, inputs, *more in self.moves]
        return StagedProgram(loads, steps, [(value, dtype, (more or ["matrix"])[0]) for value, dtype, *more in self.results])

    @property
    def exact(self):
        known = (*EXACT_MODES, *(ROW + m for m in (*EXTREMA, "add", "norm1", "sum_square")))
        return all(mode in known and not any(more[:1]) for mode, _, *more in self.moves)

    @property
    def trivial(self):
        return any(dtype in ("bool", "int8", "uint8") for _, dtype, *_ in self.results)

    @property
    def row_shape(self):
        return tuple(1 if k in self.axes else n for k, n in enumerate(self.shape))

    def inputs(self):
        found = {}
        for dtype, access, *_ in self.given:
            if isinstance(access, tuple):
                found[f"x{len(found)}"] = lay(access, dtype, **self.layout.get(f"x{len(found)}", {}))
        return found

    def outputs(self):
        return {f"y{k}": lay(self.row_shape if more else self.shape, dtype, **self.layout.get(f"y{k}", {}))
                for k, (_, dtype, *more) in enumerate(self.results)}

    def numbers(self):
        return [1.5 * (k + 1) for k, _ in enumerate(load for load in self.given if load[1] == "value")]

    def problem(self):
        from dnnkern.fused import FusedReductionProblem
        from dnnkern.host.tensor import Tensor
        tensors = [[Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in places.values()]
                   for places in (self.inputs(), self.outputs())]
        return FusedReductionProblem(self.program, *tensors, self.shape, self.axes, self.index_axes)

    def call(self, arrays, out=None, **tail):
        from dnnkern import fused_reduction
        return fused_reduction(self.program, list(arrays.values()), axes=self.axes, numbers=self.numbers(), index_axes=self.index_axes,
                               out=out, **tail)

    def reference(self, values, tensor_cores=False):
        """Each value with a bound of its error, as `Fused` has it."""
        found, arrays, numbers, axes = [], iter(values.values()), iter(self.numbers()), iter(self.index_axes)
        for _, access, *more in self.given:
            if isinstance(access, tuple):
                v = np.broadcast_to(next(arrays), self.row_shape if more else self.shape)
            elif access == "index":
                v = np.indices(self.shape, float)[next(axes)]
            else:
                v = np.full(self.row_shape, float(np.float32(next(numbers) if access == "value" else access)))
            found.append((v, np.zeros(v.shape)))
        for step, (mode, inputs, *_) in zip(self.program.steps, self.moves):
            some = [found[i] for i in inputs]
            if mode.startswith(ROW):
                whole = [np.broadcast_to(a, self.shape) for a in some[0]]
                y, error = reduced(mode[len(ROW):], *whole, self.axes, step.compute)
            else:
                f = definition(step.function)
                y = np.asarray(f(*(v for v, _ in some)), np.float64)
                error = np.zeros(y.shape)
                for signs in itertools.product((-1, 1), repeat=len(some)):
                    moved = np.asarray(f(*(v + s * e for s, (v, e) in zip(signs, some))), np.float64)
                    error = np.maximum(error, np.abs(moved - y))
                rounds = sum(np.abs(v) for v, _ in some) * (mode not in EXACT_MODES and mode != "div")
                error = error + ROUNDOFF[step.compute] * (8 * np.abs(y) + rounds)
            if step.round_to:
                y, error = saturated(y, step.round_to), error + rounding_error(y, step.round_to)
            found.append((y, error))
        reference, bound = {}, {}
        for k, (value, dtype, *more) in enumerate(self.results):
            y, error = (np.broadcast_to(a, self.row_shape if more else self.shape) for a in found[value])
            reference[f"y{k}"], bound[f"y{k}"] = saturated(y, dtype), error + rounding_error(y, dtype)
        return reference, bound


def softmax(dtype, compute):
    """Moves and results."""
    c = (None, compute)
    return ((f"{ROW}max", (0,), *c), ("sub", (0, 1), *c), ("exp", (2,), *c), (f"{ROW}add", (3,), *c), ("div", (3, 4), *c)), ((5, dtype),)


def layer_norm(dtype, compute):
    """Of x, gamma, beta and eps, with the statistics."""
    c = (None, compute)
    moves = ((f"{ROW}avg", (0,), *c), ("sub", (0, 4), *c), ("mul", (5, 5), *c), (f"{ROW}avg", (6,), *c), ("add", (7, 3), *c),
             ("rsqrt", (8,), *c), ("mul", (5, 9), *c), ("mul", (10, 1), *c), ("add", (11, 2), *c))
    return moves, ((12, dtype), (4, compute, "row"), (9, compute, "row"))


def rms_norm(dtype, compute):
    c = (None, compute)
    moves = (("mul", (0, 0), *c), (f"{ROW}avg", (3,), *c), ("add", (4, 2), *c), ("rsqrt", (5,), *c), ("mul", (0, 6), *c),
             ("mul", (7, 1), *c))
    return moves, ((8, dtype),)


def chain(dtype, compute):
    """relu(x * b + x) with its sum and its largest magnitude."""
    c = (None, compute)
    moves = (("mul", (0, 1), *c), ("add", (2, 0), *c), ("relu", (3,), *c), (f"{ROW}add", (4,), *c), (f"{ROW}amax", (4,), *c))
    return moves, ((4, dtype), (5, compute, "row"), (6, compute, "row"))


# name -> (shape, axes, the second array's shape, {array: how it lies})
LAYOUTS = {
    "warp-9x24": ((9, 24), (1,), (24,), {}), "odd-6x19": ((6, 19), (1,), (19,), {}), "thread-70x4": ((70, 4), (1,), (70, 1), {}),
    "block-3x1040": ((3, 1040), (1,), (1040,), {}), "long-2x3001": ((2, 3001), (1,), (1,), {}),
    "all-5x16": ((5, 16), (0, 1), (5, 16), {}), "all-40x60": ((40, 60), (0, 1), (40, 60), {}), "vector-300": ((300,), (0,), (300,), {}),
    "planes-3x4x5x6": ((3, 4, 5, 6), (2, 3), (4, 1, 1), {}), "middle-3x20x8": ((3, 20, 8), (1,), (20, 8), {}),
    "apart-4x3x6": ((4, 3, 6), (0, 2), (3, 1), {}), "ones-4x1x12": ((4, 1, 12), (1, 2), (12,), {}),
    "strided-7x18": ((7, 18), (1,), (7, 18), {"x0": {"gap": 2}, "y0": {"gap": 6}}),
    "step-6x11": ((6, 11), (1,), (6, 11), {"x1": {"step": 2}, "y0": {"step": 3}}),
    "negative-6x9": ((6, 9), (1,), (6, 9), {"x0": {"flip": (0, 1)}, "y0": {"flip": (0,)}, "y1": {"flip": (0,)}}),
    "misaligned-4x40": ((4, 40), (1,), (40,), {n: {"misaligned": 1} for n in ("x0", "x1", "y0")}),
    "columns-20x6": ((20, 6), (0,), (20, 1), {}), "transposed-8x12": ((8, 12), (1,), (12,), {n: {"order": (1, 0)} for n in ("x0", "y0")}),
    "channels-5x6x4x24": ((5, 6, 4, 24), (0, 1, 2), (24,), {}), "images-4x3x5x24": ((4, 3, 5, 24), (0, 1, 2), (3, 5, 24), {}),
    "channels-first-2x2x23x24": ((2, 2, 23, 24), (0, 2, 3), (2, 1, 1), {}), "groups-1x9x12x10": ((1, 9, 12, 10), (1, 2, 3), (9, 1, 1), {}),
    "odd-columns-37x19": ((37, 19), (0,), (19,), {}),
    "padded-columns-33x22": ((33, 22), (0,), (33, 22), {"x0": {"gap": 2}, "y0": {"gap": 2}})}


def cases():
    """All cases."""
    found = []

    def case(name, dtype, shape, given, moves, results, axes=(1,), **more):
        found.append(RowFused(f"{name}-{SHORT[dtype]}", shape, given, moves, results, axes=axes, **more))
    floats = ("float32", "bfloat16", "float16", "float64")
    for k, (name, (shape, axes, b, layout)) in enumerate(LAYOUTS.items()):
        dtype = floats[k % 4]
        case(name, dtype, shape, ((dtype, shape), (dtype, b)), *chain(dtype, "float64" if dtype == "float64" else "float32"), axes,
             layout=layout)
    for dtype in floats:
        compute = "float64" if dtype == "float64" else "float32"
        shape = (5, 96)
        case("softmax-5x96", dtype, shape, ((dtype, shape),), *softmax(dtype, compute))
        case("layer-norm-5x96", dtype, shape, ((dtype, shape), (dtype, shape[1:]), (dtype, shape[1:]), (compute, 0.0625)),
             *layer_norm(dtype, compute))
        case("rms-norm-4x51", dtype, (4, 51), ((dtype, (4, 51)), (dtype, (51,)), (compute, "value")), *rms_norm(dtype, compute))
        case("norm2-3x64", dtype, (3, 64), ((dtype, (3, 64)),), ((f"{ROW}norm2", (0,), None, compute), ("div", (0, 1), None, compute)),
             ((2, dtype),))
    case("amax-to-e4m3-6x80", "bfloat16", (6, 80), (("bfloat16", (6, 80)), ("float32", 448.0)),
         ((f"{ROW}amax", (0,)), ("div", (1, 2)), ("mul", (0, 3))), ((4, "float8_e4m3fn"), (3, "float32", "row")))
    case("row-operands-5x40", "float32", (5, 40), (("float32", (5, 40)), ("float32", (5, 1), "row"), ("float32", "value")),
         (("mul", (0, 1)), (f"{ROW}add", (3,)), ("mul", (4, 1)), ("add", (5, 2)), ("sub", (3, 6))), ((7, "float32"), (6, "float32", "row")))
    case("rounded-5x72", "float32", (5, 72), (("float32", (5, 72)),),
         (("mul", (0, 0), "bfloat16"), (f"{ROW}add", (1,), "bfloat16"), ("sub", (1, 2), "float16"), (f"{ROW}max", (3,))),
         ((3, "float16"), (2, "float32", "row"), (4, "float32", "row")))
    case("modes-6x44", "float32", (6, 44), (("float32", (6, 44)), ("float32", 0.05), ("float32", 1.0)),
         (("mul", (0, 1)), ("add", (3, 2)), (f"{ROW}mul", (4,)), (f"{ROW}logsumexp", (0,)), (f"{ROW}min", (0,)), (f"{ROW}norm1", (0,)),
          (f"{ROW}sum_square", (0,))), tuple((v, "float32", "row") for v in range(5, 10)))
    case("causal-7x24", "float32", (7, 24), (("float32", (7, 24)), ("int32", "index"), ("int32", "index"), ("float32", -1000.0)),
         (("cmp_le", (2, 1)), ("binary_select", (0, 3, 4)), (f"{ROW}max", (5,)), ("sub", (5, 6)), ("exp", (7,)), (f"{ROW}add", (8,)),
          ("div", (8, 9))), ((10, "float32"),), index_axes=(0, 1))
    for dtype in floats:
        compute = "float64" if dtype == "float64" else "float32"
        case("batch-norm-10x6x32", dtype, (10, 6, 32), ((dtype, (10, 6, 32)), (dtype, (32,)), (dtype, (32,)), (compute, 0.0625)),
             *layer_norm(dtype, compute), axes=(0, 1))
    c = (None, "float32")
    case("bias-gradient-70x40", "float16", (70, 40), (("float16", (70, 40)), ("float16", (70, 40)), ("float32", 0.0)),
         (("cmp_gt", (1, 2), *c), ("binary_select", (0, 2, 3), *c), (f"{ROW}add", (4,), *c), (f"{ROW}sum_square", (4,), *c),
          (f"{ROW}logsumexp", (0,), *c), (f"{ROW}norm2", (0,), *c)), ((4, "float16"), *((v, "float32", "row") for v in (5, 6, 7, 8))),
         axes=(0,))
    case("column-operands-9x40", "float32", (9, 40), (("float32", (9, 40)), ("float32", (1, 40), "row"), ("float32", "value"),
                                                      ("int32", "index")),
         (("mul", (0, 1)), (f"{ROW}max", (4,)), ("mul", (5, 1)), ("add", (6, 2)), ("sub", (4, 7)), ("mul", (8, 3)), (f"{ROW}add", (9,)),
          ("mul", (8, 10))), ((4, "bfloat16"), (9, "float32"), (11, "float32"), (7, "float32", "row"), (10, "float32", "row")), axes=(0,),
         index_axes=(0,))
    case("reduced-alone-6x50", "float16", (6, 50), (("float16", (6, 50)),), (("neg", (0,)), (f"{ROW}max", (1,))), ((2, "float16", "row"),))
    case("empty-rows-0x8", "float32", (0, 8), (("float32", (0, 8)),), *softmax("float32", "float32"))
    case("nothing-3x0", "float32", (3, 0), (("float32", (3, 0)),), ((f"{ROW}add", (0,)),), ((1, "float32", "row"),))
    return found


CASES = cases()
LARGE = []
