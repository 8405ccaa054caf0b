"""What the cases of functions of single elements share: layouts, values, and bounds of the error."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import EXACT, RANGE, ROUNDOFF, Case, coherent, lay, rounded, rounding_error, saturated
from .transpose import SHORT as NUMBERS

SHORT = {**NUMBERS, "uint8": "u8", "bool": "b"}
FLOATS = ("float64", "float32", "float16", "bfloat16")
# name -> (shape, {array: how it lies}); of the arrays that a case does not have nothing is said
LAYOUTS = {
    "row-37": ((37,), {}), "matrix-5x24": ((5, 24), {}), "odd-rows-6x19": ((6, 19), {}), "one": ((1,), {}), "scalar": ((), {}),
    "strided-7x18": ((7, 18), {"x": {"gap": 2}, "y": {"gap": 6}}),
    "apart-9x16": ((9, 16), {"x": {"gap": 16}, "dy": {"gap": 16}, "y": {"gap": 16}}),
    "step-6x11": ((6, 11), {"x": {"step": 2}, "y": {"step": 3}}), "negative-6x9": ((6, 9), {"x": {"flip": (0, 1)}, "y": {"flip": (0,)}}),
    "misaligned-4x32": ((4, 32), {"x": {"misaligned": 1}, "dy": {"misaligned": 1}, "y": {"misaligned": 1}}),
    "misaligned-apart-131": ((131,), {"x": {"misaligned": 2}, "dy": {"misaligned": 3}, "y": {"misaligned": 1}}),
    "result-misaligned-70": ((70,), {"y": {"misaligned": 3}}), "transposed-8x12": ((8, 12), {"x": {"order": (1, 0)}}),
    "alike-8x12": ((8, 12), {"x": {"order": (1, 0)}, "dy": {"order": (1, 0)}, "y": {"order": (1, 0)}}),
    "broadcast-6x20": ((6, 20), {"x": {"expand": (0,)}}), "rank-6": ((2, 1, 3, 2, 1, 4), {"y": {"order": (0, 3, 2, 1, 4, 5)}}),
    "long-2x700": ((2, 700), {"y": {"gap": 1}})}
EMPTY = {"empty": ((0,), {}), "empty-4x0": ((4, 0), {})}


@dataclass(frozen=True)
class Pointwise(Case):
    """A call; `layout` are keywords of `lay` by array, "y" being the result whatever its name is."""
    id: str
    shape: tuple
    dtype: str
    mode: str
    layout: dict = field(default_factory=dict, hash=False)
    same: str | None = None  # the operand that is the result

    @property
    def result(self):
        """(name, shape, dtype) of the output."""
        return "y", self.shape, self.dtype

    def place(self, name, shape, dtype):
        """Where an array lies; in place, where the result does."""
        key = "y" if name in (self.same, self.result[0]) else name
        return lay(shape, dtype, **self.layout.get(key, {}))

    def outputs(self):
        return {self.result[0]: self.place(*self.result)}

    def in_place(self):
        return {self.result[0]: self.same} if self.same else {}

    @property
    def work(self):
        return 12 * math.prod(self.shape)

    def tensors(self):
        """(operands, result) as the library's tensors; None for a missing operand."""
        from dnnkern.host.tensor import Tensor
        found = [p and Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (*self.inputs().values(), *self.outputs().values())]
        return found[:-1], found[-1]

    @property
    def aliases(self):
        return frozenset({self.same} - {None})

    @property
    def double(self):
        """Whether it is computed in float64."""
        return self.dtype in ("float64", "int32")

    def random(self, mode, name, place, low=-4, high=4):
        """Integers between the bounds in exact mode, else normal numbers around them, or small integers of integer types."""
        rng = np.random.default_rng([*self.id.encode(), *name.encode()])
        if mode == "exact" or place.dtype in RANGE:
            bottom, top = RANGE.get(place.dtype, (low, high))
            x = rng.integers(max(low, bottom), min(high, top) + 1, place.shape).astype(np.float64)
        else:
            x = rounded(rng.standard_normal(place.shape) * (high - low) / 3 + (high + low) / 2, place.dtype)
        return coherent(x, place)

    def bounded(self, y, error):
        """The reference and its bound: `error` in units of the rounding of what it is computed in, then one rounding to the result."""
        name, _, dtype = self.result
        unit = ROUNDOFF["float64" if self.double else "float32"]
        y = np.asarray(y, np.float64)
        if dtype == "bool":
            return {name: y}, {name: np.zeros_like(y)}
        return {name: saturated(y, dtype)}, {name: unit * np.asarray(error) + rounding_error(y, dtype)}


def tail_error(mode, dtype, x, gradient=False):
    """What gelu's tail may be off by, in units of float32's rounding, where results have 16 bits; else 0. As `device.fastmath` says:
    `short_tail` for gradients, `half_tail` or `bfloat16_tail` for values."""
    if mode != "gelu" or dtype not in ("float16", "bfloat16"):
        return 0.0
    relative = 2.0 ** -12 if dtype == "bfloat16" and not gradient else 2.0 ** -16
    return relative / ROUNDOFF["float32"] * np.vectorize(math.erfc, otypes=[np.float64])(np.abs(x) / math.sqrt(2)) / 2


def fits(y, dtype):
    """Whether integers are exact in a dtype."""
    return np.abs(y).max(initial=0) <= EXACT[dtype]


def over(layouts, dtypes):
    """(name, shape, layout, dtype) with every layout, the dtypes in turn, and every dtype."""
    rows = [(name, shape, layout, dtypes[k % len(dtypes)]) for k, (name, (shape, layout)) in enumerate(layouts.items())]
    return rows + [("again-" + name, shape, layout, dtypes[(k + 1) % len(dtypes)])
                   for k, (name, (shape, layout)) in enumerate(layouts.items()) if k % 3 == 0]


def check_large(case, algo, allow, definition):
    """Small integers, every element checked exactly against ``definition(torch, *operands)``, a slice of the output at a time."""
    import torch
    generator = torch.Generator("cuda").manual_seed(7)
    arrays = {}
    for name, place in case.inputs().items():
        arrays[name] = None
        if place is not None:
            arrays[name] = torch.empty(place.shape, dtype=getattr(torch, place.dtype), device="cuda")
            for part in arrays[name].view(-1).split(1 << 26):
                part.copy_(torch.randint(-3, 4, part.shape, generator=generator, device="cuda", dtype=torch.int8))
    y = torch.full(case.shape, 99, dtype=getattr(torch, case.dtype), device="cuda")
    assert y.numel() > 2 ** 31
    case.call(arrays, y, algo=algo, allow=allow)
    step = max(1, (1 << 26) // y[0].numel())
    for first in range(0, len(y), step):
        some = [x[first:first + step] if x.shape == y.shape else x for x in arrays.values() if x is not None]
        assert torch.equal(y[first:first + step], definition(torch, *some)), f"{case.id}, {algo}: wrong in rows {first} to {first + step}"
