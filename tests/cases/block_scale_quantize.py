"""Cases of block_scale_quantize and block_scale_dequantize. Results are known to the last bit: a scale is the least of its type that the
largest magnitude needs, an element the nearest to the quotient."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import Case, coherent, lay, numpy_dtype, rounded
from .transpose import SHORT

LARGEST = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0, "uint8": 6.0}
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
E4M3 = np.arange(127, dtype=np.uint8).view(numpy_dtype("float8_e4m3fn")).astype(float)


def least_scale(amax, largest, dtype):
    """The least scale of the dtype that is a quotient at least; the largest one where there is none."""
    if dtype == "float8_e4m3fn":
        return E4M3[np.minimum(np.searchsorted(E4M3 * largest, amax), len(E4M3) - 1)]
    mantissa, exponent = np.frexp(amax / largest)
    exponent = np.where(mantissa == 0, -127, np.where(mantissa == 0.5, exponent - 1, exponent))
    return 2.0 ** np.clip(exponent, -127, 127)


def nearest_e2m1(values):
    """Four bits: of the two nearest numbers the one with an even code."""
    size, steps = np.abs(values), E2M1[:8]
    above = np.clip(np.searchsorted(steps, size), 1, 7)
    middle = (steps[above] + steps[above - 1]) / 2
    code = np.where((size > middle) | (size == middle) & (above % 2 == 0), above, above - 1)
    return code + 8 * np.signbit(values)


@dataclass(frozen=True)
class Blocks(Case):
    """One call; layouts are keywords of `lay` for "x", "y" and "scale"; `shape` is of the floats."""
    id: str
    shape: tuple
    block: int
    wide: str = "float32"
    narrow: str = "float8_e4m3fn"
    scales: str = "float8_e8m0fnu"
    axis: int = -1
    layout: dict = field(default_factory=dict, hash=False)
    op: str = "block_scale_quantize"

    def place(self, name):
        quantizes, shape, axis = self.op == "block_scale_quantize", list(self.shape), self.axis % len(self.shape)
        if name == "scale":
            shape[axis] //= self.block
            return lay(tuple(shape), self.scales, **self.layout.get(name, {}))
        is_narrow = (name == "y") == quantizes
        if is_narrow and self.narrow == "uint8":
            shape[axis] //= 2
        return lay(tuple(shape), self.narrow if is_narrow else self.wide, **self.layout.get(name, {}))

    def inputs(self):
        return {name: self.place(name) for name in (("x",) if self.op == "block_scale_quantize" else ("x", "scale"))}

    def outputs(self):
        return {name: self.place(name) for name in (("y", "scale") if self.op == "block_scale_quantize" else ("y",))}

    @property
    def work(self):
        return 12 * math.prod(self.shape)

    @property
    def asked(self):
        """The dtype as callers name it."""
        return "float4_e2m1fn_x2" if self.narrow == "uint8" else self.narrow

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.transform.blocks._problem import make_dequantize, make_quantize

        def tensor(p):
            return Tensor(p.shape, p.strides, p.dtype, p.alignment)
        x, y, scale = (tensor(self.place(name)) for name in ("x", "y", "scale"))
        if self.op == "block_scale_quantize":
            return make_quantize((x,), (y, scale), self.block, self.axis, self.asked, self.scales, frozenset())
        return make_dequantize((x, scale), y, self.block, self.axis, self.wide, frozenset())

    def call(self, arrays, out=None, **tail):
        import dnnkern
        if self.op == "block_scale_quantize":
            return dnnkern.block_scale_quantize(arrays["x"], self.block, axis=self.axis, dtype=self.asked, scale_dtype=self.scales, out=out,
                                                **tail)
        return dnnkern.block_scale_dequantize(arrays["x"], arrays["scale"], self.block, axis=self.axis, dtype=self.wide,
                                              out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        """Floats of many magnitudes, a block of zeros and, where their type has them, ones that are too large; all quantized values."""
        rng, found, largest = np.random.default_rng(list(self.id.encode())), {}, LARGEST[self.narrow]
        place = self.place("x")
        if self.op == "block_scale_quantize":
            by_block = np.repeat(2.0 ** rng.integers(0, 8, self.place("scale").shape), self.block, self.axis)
            x = rng.integers(-100, 101, self.shape) * by_block
            if mode == "float":
                x = rng.standard_normal(self.shape) * by_block * 2.0 ** rng.uniform(-14, 5, self.shape)
                x.flat[:1] *= 2.0 ** (100 if self.wide != "float16" else 0)
            if x.size:
                np.moveaxis(x, self.axis, -1)[..., :self.block].reshape(-1, self.block)[0] = 0
            return {"x": coherent(rounded(x, self.wide), place)}
        if self.narrow == "uint8":
            found["x"] = rng.integers(0, 256, place.shape).astype(float)
        else:
            found["x"] = rng.integers(-4, 5, place.shape).astype(float) if mode == "exact" else \
                rounded(np.clip(rng.standard_normal(place.shape) * 2.0 ** rng.uniform(-4, 7, place.shape), -largest, largest), self.narrow)
        small = mode == "exact"
        found["scale"] = 2.0 ** rng.integers(1 if small else -9, 4 if small else 3, self.place("scale").shape)
        if not small and self.scales != "float8_e8m0fnu":
            found["scale"] = rounded(found["scale"] * rng.uniform(1, 2, found["scale"].shape), self.scales)
        return {name: coherent(found[name], self.place(name)) for name in found}

    def reference(self, values, tensor_cores=False):
        def blocks(a):
            last = np.moveaxis(a, self.axis, -1)
            return last.reshape(*last.shape[:-1], last.shape[-1] // self.block, self.block)

        def whole(a):
            return np.moveaxis(a.reshape(*a.shape[:-2], a.shape[-2] * a.shape[-1]), -1, self.axis)
        if self.op == "block_scale_quantize":
            x = blocks(values["x"])
            scale = least_scale(np.abs(x).max(-1, initial=0), LARGEST[self.narrow], self.scales)
            ratio = x / np.where(scale == 0, 1, scale)[..., None]
            if self.narrow == "uint8":
                code = nearest_e2m1(ratio)
                y = code[..., ::2] + 16 * code[..., 1::2]
            else:
                largest = LARGEST[self.narrow]
                y = rounded(np.clip(ratio.astype(np.float32), -largest, largest), self.narrow)
            found = {"y": whole(y.astype(float)), "scale": np.moveaxis(scale, -1, self.axis)}
        else:
            x = np.moveaxis(values["x"], self.axis, -1)
            if self.narrow == "uint8":
                code = x.astype(int)
                x = E2M1[np.stack([code & 15, code >> 4], -1)].reshape(*x.shape[:-1], 2 * x.shape[-1])
            scale = np.moveaxis(values["scale"], self.axis, -1)
            y = (x * np.repeat(scale, self.block, -1)).astype(np.float32)
            found = {"y": np.moveaxis(rounded(y, self.wide), -1, self.axis)}
        return found, {name: np.zeros(()) for name in found}


def block_cases(op):
    """Those of an operation."""
    def case(name, shape, block, wide="float32", narrow="float8_e4m3fn", scales=None, layout=None, **more):
        scales = scales or ("float8_e4m3fn" if narrow == "uint8" else "float8_e8m0fnu")
        layout = {("y" if name == "x" else "x") if op != "block_scale_quantize" and name in "xy" else name: how
                  for name, how in (layout or {}).items()}  # of x, the floats, and y, what is quantized
        found.append(Blocks(f"{name}-{'x'.join(map(str, shape))}-{SHORT[wide]}", shape, block, wide, narrow, scales, layout=layout, op=op,
                            **more))

    found = []
    for wide in ("float32", "float16", "bfloat16"):
        case("mxfp8", (5, 96), 32, wide)
        case("e5m2", (3, 128), 64, wide, "float8_e5m2")
        case("nvfp4", (6, 80), 16, wide, "uint8")
    case("mxfp4", (2, 3, 64), 32, "float32", "uint8", "float8_e8m0fnu")
    case("e4m3-by-e4m3", (4, 64), 32, "bfloat16", "float8_e4m3fn", "float8_e4m3fn")
    case("long-blocks", (3, 1024), 512, "bfloat16")
    case("short-blocks", (5, 30), 6)
    case("columns", (64, 9), 32, "bfloat16", axis=0)
    case("columns-nvfp4", (3, 32, 5), 16, "float32", "uint8", axis=1)
    case("apart", (5, 64), 32, "float16", layout={"x": {"gap": 8}, "y": {"gap": 16}, "scale": {"gap": 3}})
    case("misaligned", (5, 64), 32, layout={"x": {"misaligned": 1}, "y": {"misaligned": 3}, "scale": {"misaligned": 1}})
    case("strided", (3, 2, 64), 16, layout={"x": {"step": 2, "flip": (0,)}, "y": {"order": (2, 0, 1)}, "scale": {"flip": (2,)}})
    case("turned", (32, 4, 3), 16, "bfloat16", axis=0, layout={"x": {"order": (2, 1, 0)}, "y": {"order": (1, 2, 0)}})
    case("nothing", (0, 64), 32)
    return found


def large_cases(op):
    """For a GPU."""
    return [Blocks(f"large-{axis % 2}-{narrow}-{SHORT[wide]}", (4096, 4096), block, wide, narrow, scales, axis, op=op)
            for wide in ("bfloat16", "float32") for narrow, scales, block, axis in (
                ("float8_e4m3fn", "float8_e8m0fnu", 32, -1), ("float8_e5m2", "float8_e8m0fnu", 32, 0), ("uint8", "float8_e4m3fn", 16, -1))]


CASES, LARGE = block_cases("block_scale_quantize"), large_cases("block_scale_quantize")
