"""Cases of functions of one and of two arrays."""
import math
from dataclasses import dataclass

import numpy as np

from ._pointwise import EMPTY, FLOATS, LAYOUTS, SHORT, Pointwise, fits, over

_erf = np.vectorize(math.erf, otypes=[np.float64])
COMPARISONS = {"cmp_eq": np.equal, "cmp_neq": np.not_equal, "cmp_gt": np.greater, "cmp_ge": np.greater_equal, "cmp_lt": np.less,
               "cmp_le": np.less_equal}
LOGICAL = {"logical_and": np.logical_and, "logical_or": np.logical_or, "logical_not": np.logical_not}
# name -> (function, its derivative's size, least and largest argument)
UNARY = {
    "identity": (lambda x: x, np.ones_like, -4, 4), "neg": (np.negative, np.ones_like, -4, 4), "abs": (np.abs, np.ones_like, -4, 4),
    "ceil": (np.ceil, np.zeros_like, -4, 4), "floor": (np.floor, np.zeros_like, -4, 4),
    "sqrt": (np.sqrt, lambda x: 1 / np.sqrt(x), 1, 60), "rsqrt": (lambda x: 1 / np.sqrt(x), lambda x: x ** -1.5, 1, 60),
    "reciprocal": (np.reciprocal, lambda x: x ** -2.0, 1, 9), "exp": (np.exp, np.exp, -4, 4), "log": (np.log, lambda x: 1 / x, 1, 60),
    "erf": (_erf, lambda x: np.exp(-x * x), -3, 3), "sin": (np.sin, np.ones_like, -9, 9), "cos": (np.cos, np.ones_like, -9, 9),
    "tan": (np.tan, lambda x: 1 + np.tan(x) ** 2, -1, 1), "logical_not": (np.logical_not, np.zeros_like, -2, 2)}
BINARY = {
    "add": (np.add, -9, 9), "sub": (np.subtract, -9, 9), "mul": (np.multiply, -9, 9), "div": (np.divide, 1, 9), "max": (np.maximum, -9, 9),
    "min": (np.minimum, -9, 9), "pow": (np.power, 1, 4), "mod": (np.fmod, 1, 9), "atan2": (np.arctan2, 1, 9),
    "add_square": (lambda a, b: a + b * b, -9, 9), **{name: (f, -2, 2) for name, f in (*COMPARISONS.items(), *LOGICAL.items())},
    "binary_select": (None, -9, 9), "bias": (np.add, -9, 9), "scale": (np.multiply, -9, 9)}
del BINARY["logical_not"]
EXACT_ON_INTEGERS = ("identity", "neg", "abs", "ceil", "floor", "gen_index", "add", "sub", "mul", "max", "min", "mod", "add_square", "bias",
                     "scale", "binary_select", *COMPARISONS, *LOGICAL)


def result_dtype(mode, dtype):
    """dtype of the result."""
    return "int32" if mode == "gen_index" else "bool" if mode in COMPARISONS or mode in LOGICAL else dtype


class Elementwise(Pointwise):
    """What both have."""

    @property
    def exact(self):
        return self.mode in EXACT_ON_INTEGERS

    @property
    def trivial(self):
        return result_dtype(self.mode, self.dtype) == "bool" or self.dtype == "bool" or self.dtype == "uint8"


@dataclass(frozen=True)
class Unary(Elementwise):
    """``y = f(x)``"""
    axis: int | None = None
    op = "unary"

    @property
    def result(self):
        return "y", self.shape, result_dtype(self.mode, self.dtype)

    def inputs(self):
        return {"x": self.place("x", self.shape, self.dtype)}

    def problem(self):
        from dnnkern.act._elementwise import make_unary
        tensors, out = self.tensors()
        return make_unary(tensors, out, self.mode, self.axis, self.aliases)

    def values(self, mode):
        _, _, low, high = UNARY.get(self.mode, (None, None, -4, 4))
        x = self.random(mode, "x", self.inputs()["x"], low, high)
        return {"x": np.clip(x, low, high) if low > 0 else x}

    def call(self, arrays, out=None, **tail):
        from dnnkern import unary
        return unary(arrays["x"], self.mode, axis=self.axis, out=out, **tail)

    def reference(self, values, tensor_cores=False):
        x = values["x"]
        if self.mode == "gen_index":
            axis = self.axis % len(self.shape)
            index = np.arange(self.shape[axis], dtype=np.float64).reshape((-1,) + (1,) * (len(self.shape) - 1 - axis))
            return self.bounded(np.broadcast_to(index, self.shape), 0)
        function, slope, _, _ = UNARY[self.mode]
        y = function(x)
        return self.bounded(y, 6 * np.abs(y) + 2 * np.abs(slope(x)) * np.abs(x) if y.dtype != bool else 0)


@dataclass(frozen=True)
class Binary(Elementwise):
    """``y = f(a, b)``; `shape` is the result's, `a` and `b` those of the operands, `mask` of the mask."""
    a: tuple | None = None
    b: tuple | None = None
    mask: tuple | None = None
    mask_dtype: str = "bool"
    op = "binary"

    @property
    def result(self):
        return "y", self.shape, result_dtype(self.mode, self.dtype)

    def inputs(self):
        shapes = {name: self.shape if shape is None else shape for name, shape in (("a", self.a), ("b", self.b), ("mask", self.mask))}
        found = {name: self.place(name, shapes[name], self.dtype) for name in "ab"}
        select = self.mode == "binary_select"
        found["mask"] = self.place("mask", shapes["mask"], self.mask_dtype) if select else None
        return found

    def problem(self):
        from dnnkern.act._elementwise import make_binary
        tensors, out = self.tensors()
        return make_binary(tensors, out, self.mode, self.aliases)

    def values(self, mode):
        _, low, high = BINARY[self.mode]
        found = {}
        for name, place in self.inputs().items():
            if place is not None:
                x = self.random("exact" if name == "mask" else mode, name, place, *((0, 1) if name == "mask" else (low, high)))
                found[name] = np.clip(x, low, high) if low > 0 and name != "mask" else x
        return found

    def call(self, arrays, out=None, **tail):
        from dnnkern import binary
        if arrays["mask"] is not None:
            tail["mask"] = arrays["mask"]
        return binary(arrays["a"], arrays["b"], self.mode, out=out, **tail)

    def reference(self, values, tensor_cores=False):
        a, b = np.broadcast_arrays(np.broadcast_to(values["a"], self.shape), values["b"])
        if self.mode == "binary_select":
            y = np.where(values["mask"] != 0, a, b)
        else:
            y = BINARY[self.mode][0](a, b)
        if y.dtype == bool:
            return self.bounded(y, 0)
        if self.exact and fits(y, self.dtype if self.dtype in FLOATS else "int32"):
            return self.bounded(y, 2 * np.abs(y) + 2 * np.abs(b) ** 2)
        return self.bounded(y, 10 * np.abs(y) + 4 * np.abs(b) ** 2)


def unary_cases():
    """All cases of unary."""
    def case(name, shape, dtype, mode, **more):
        found.append(Unary(f"{name}-{SHORT[dtype]}", shape, dtype, mode, **more))

    found = []
    for name, shape, layout, dtype in over(LAYOUTS, FLOATS):
        case(name, shape, dtype, "neg" if len(name) % 2 else "exp", layout=layout)
    for k, mode in enumerate(UNARY):
        for dtype in (FLOATS[k % 4], FLOATS[(k + 1 + k // 4) % 4]):
            case(f"vector-{mode}-101", (101,), dtype, mode)
        case(f"rows-{mode}-5x19", (5, 19), FLOATS[(k + 3) % 4], mode, layout={"x": {"gap": 1}})
    for dtype in ("int8", "uint8", "int32"):
        for mode in ("identity", "abs", "neg", "logical_not", "sqrt"):
            case(f"{mode}-7x34", (7, 34), dtype, mode, layout={"x": {"gap": 2}} if mode == "abs" else {})
    case("logical_not-7x34", (7, 34), "bool", "logical_not")
    case("logical_not-misaligned-50", (50,), "bool", "logical_not", layout={"x": {"misaligned": 1}, "y": {"misaligned": 3}})
    for axis, shape in ((0, (5, 8)), (1, (5, 8)), (-1, (3, 1, 50)), (1, (2, 6, 7))):
        case(f"index-{axis}-{len(shape)}d-{shape[-1]}", shape, "float32" if axis else "bfloat16", "gen_index", axis=axis,
             layout={"y": {"flip": (0,)}} if axis == 1 else {})
    for name, shape in (("matrix", (5, 24)), ("run", (77,))):
        case(f"in-place-{name}", shape, "bfloat16", "abs", same="x")
    for name, (shape, layout) in EMPTY.items():
        case(name, shape, "float32", "exp")
    return list({c.id: c for c in found}.values())


# name -> (shape of the result, a, b, layouts)
BROADCASTS = {
    "row-6x24": ((6, 24), None, (24,), {}), "row-odd-6x21": ((6, 21), None, (21,), {}), "column-5x24": ((5, 24), None, (5, 1), {}),
    "outer-9x20": ((9, 20), (9, 1), (20,), {}), "number-101": ((101,), None, (), {}),
    "number-first-4x18": ((4, 18), (1,), None, {"y": {"gap": 2}}),
    "channels-2x3x20": ((2, 3, 20), None, (3, 1), {}), "channels-last-4x6x8": ((4, 6, 8), None, (8,), {}),
    "middle-3x5x16": ((3, 5, 16), None, (3, 1, 16), {}), "both-4x5x6": ((4, 5, 6), (4, 1, 6), (5, 6), {}),
    "all-ones": ((1, 1), (1,), (1, 1), {}),
    "row-strided-5x16": ((5, 16), None, (16,), {"b": {"step": 2}}), "row-negative-5x16": ((5, 16), None, (16,), {"b": {"flip": (0,)}}),
    "row-misaligned-7x32": ((7, 32), None, (32,), {"b": {"misaligned": 1}, "y": {"misaligned": 1}}),
    "few-rows-3x5x8": ((3, 5, 8), None, (3, 1, 1), {"a": {"gap": 8}}), "transposed-8x12": ((8, 12), None, (12,), {"a": {"order": (1, 0)}}),
    "alike-8x12": ((8, 12), None, None, {n: {"order": (1, 0)} for n in "aby"}), "apart-37": ((37,), None, None, {"a": {"misaligned": 1}}),
    "scalars": ((), None, None, {})}


def binary_cases():
    """All cases of binary."""
    def case(name, shape, dtype, mode, **more):
        found.append(Binary(f"{name}-{SHORT[dtype]}", shape, dtype, mode, **more))

    found = []
    for k, (name, (shape, a, b, layout)) in enumerate(BROADCASTS.items()):
        for j, mode in enumerate(("add", "cmp_gt", "div")):
            case(f"{name}-{mode}", shape, FLOATS[(k + j) % 4], mode, a=a, b=b, layout=layout)
    for k, mode in enumerate(BINARY):
        for dtype in (FLOATS[k % 4], FLOATS[(k + 1 + k // 4) % 4]):
            case(f"vector-{mode}-101", (101,), dtype, mode)
        if mode != "binary_select":
            case(f"rows-{mode}-5x19", (5, 19), FLOATS[(k + 3) % 4], mode, b=(19,) if k % 2 else (5, 1))
    for dtype in ("int8", "uint8", "int32"):
        for mode in ("add", "sub", "mul", "max", "cmp_le", "logical_or"):
            case(f"integers-{mode}-6x37", (6, 37), dtype, mode, b=(37,) if mode == "add" else None)
    for mode in ("logical_and", "logical_or"):
        case(f"truth-{mode}-4x33", (4, 33), "bool", mode, b=(33,) if mode == "logical_or" else None)
    for k, (name, mask) in enumerate((("all", None), ("row", (24,)), ("column", (6, 1)), ("one", ()))):
        for dtype in (FLOATS[k], FLOATS[(k + 2) % 4]):
            case(f"select-{name}-6x24", (6, 24), dtype, "binary_select", mask=mask)
        case(f"select-bytes-{name}-6x24", (6, 24), "int32" if k % 2 else "bool", "binary_select", mask=mask, mask_dtype="uint8", b=(6, 1))
    for k, (name, shape, b) in enumerate((("matrix", (5, 24), None), ("row", (5, 24), (24,)), ("run", (77,), None),
                                          ("number", (66,), (1,)))):
        case(f"in-place-{name}", shape, FLOATS[k % 4], "add", b=b, same="a")
        case(f"in-place-{name}-second", shape, FLOATS[(k + 1) % 4], "sub", a=b, same="b")
    for name, (shape, layout) in EMPTY.items():
        case(name, shape, "float32", "add", b=(1,))
    return list({c.id: c for c in found}.values())


LARGE_UNARY = [Unary(f"{name}-{mode}-{SHORT[dtype]}", shape, dtype, mode)
               for name, shape in (("1000003", (1000003,)), ("1023x1025", (1023, 1025)))
               for mode, dtype in (("exp", "bfloat16"), ("abs", "float32"), ("logical_not", "float16"))]
LARGE_BINARY = [Binary(f"{name}-{mode}-{SHORT[dtype]}", shape, dtype, mode, b=b)
                for name, shape, b in (("1000003", (1000003,), None), ("row-1023x1025", (1023, 1025), (1025,)),
                                       ("row-1024x4096", (1024, 4096), (4096,)), ("channels-16x64x3136", (16, 64, 3136), (64, 1)))
                for mode, dtype in (("add", "bfloat16"), ("mul", "float32"), ("cmp_lt", "float16"))]
