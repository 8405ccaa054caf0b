"""Cases of pad_bwd: the adjoint of ``numpy.pad(x, pads, mode)``."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import EXACT, Case, coherent, lay, rounded, rounding_error
from .pad import MODES

SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class PadGradient(Case):
    """One call; layouts are keywords of `lay` for "dy" and "dx"."""
    id: str
    shape: tuple
    pads: tuple
    mode: str = "constant"
    dtype: str = "float32"
    layout: dict = field(default_factory=dict, hash=False)
    op = "pad_bwd"

    @property
    def trivial(self):
        return not math.prod(self.shape)

    def inputs(self):
        return {"dy": lay(tuple(n + a + b for n, (a, b) in zip(self.shape, self.pads)), self.dtype, **self.layout.get("dy", {}))}

    def outputs(self):
        return {"dx": lay(self.shape, self.dtype, **self.layout.get("dx", {}))}

    @property
    def work(self):
        return 4 * math.prod(self.inputs()["dy"].shape)

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.transform.layout._pad_problem import make_gradient_problem
        dy, dx = (Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (self.inputs()["dy"], self.outputs()["dx"]))
        return make_gradient_problem((dy,), dx, self.pads, self.mode, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import pad_bwd
        return pad_bwd(arrays["dy"], self.pads, mode=self.mode, out=out[0] if isinstance(out, tuple) else out, **tail)

    def sources(self):
        """For each element of dy which of x it is a copy of, counted through; -1 for none."""
        numbers = np.arange(math.prod(self.shape)).reshape(self.shape)
        more = {"constant_values": -1} if self.mode == "constant" else {}
        return np.pad(numbers, self.pads, mode=self.mode, **more) if self.shape else numbers

    def summed(self, values):
        """(sums over the copies of each element of x, how many there are)."""
        sources, elements = self.sources().reshape(-1), math.prod(self.shape)
        kept = sources >= 0
        totals = np.bincount(sources[kept], weights=values.reshape(-1)[kept], minlength=elements)
        return totals.reshape(self.shape), np.bincount(sources[kept], minlength=elements).reshape(self.shape)

    def values(self, mode):
        """In exact mode integers so small that the sums are exact."""
        rng, place = np.random.default_rng(list(self.id.encode())), self.inputs()["dy"]
        if mode == "exact":
            copies = self.summed(np.zeros(place.shape))[1].max(initial=1)
            bound = max(1, min(EXACT[self.dtype], 100) // copies)
            return {"dy": coherent(rng.integers(-bound, bound + 1, place.shape).astype(np.float64), place)}
        return {"dy": coherent(rounded(rng.standard_normal(place.shape) + 0.5, self.dtype), place)}

    def reference(self, values, tensor_cores=False):
        total, copies = self.summed(values["dy"])
        size, _ = self.summed(np.abs(values["dy"]))
        unit = 2.0 ** -53 if self.dtype == "float64" else 2.0 ** -24
        return {"dx": total}, {"dx": copies * unit * size + rounding_error(total, self.dtype)}


def _cases():
    def case(name, shape, pads, mode="constant", dtype="float32", **more):
        found.append(PadGradient(f"{name}-{mode}-{SHORT[dtype]}", shape, pads, mode, dtype, **more))

    none, found = (0, 0), []
    for dtype in SHORT:
        for mode in MODES:
            case("picture-2x3x6x9", (2, 3, 6, 9), (none, none, (1, 2), (3, 1)), mode, dtype)
            case("rows-5x61", (5, 61), ((2, 1), (5, 20)), mode, dtype)
            case("misaligned-3x2x40", (3, 2, 40), ((1, 1), (0, 1), (3, 1)), mode, dtype,
                 layout={"dy": {"misaligned": 1}, "dx": {"misaligned": 3}})
    for mode in MODES:
        case("aligned-rows", (3, 64), ((1, 1), (8, 8)), mode, "float16")
        case("short-rows", (40, 2), ((1, 1), (1, 1)), mode, "bfloat16")
        case("gaps", (6, 25), ((1, 2), (3, 4)), mode, "bfloat16", layout={"dy": {"step": 2, "gap": 3}, "dx": {"gap": 1}})
        case("channels-last-2x5x4x8", (2, 5, 4, 8), (none, (1, 1), (2, 1), none), mode, "bfloat16")
        case("long-row", (300,), ((70, 30),), mode)
        case("both-sides", (2, 9), (none, (8, 8)), mode, "float16")
        case("no-border", (4, 33), (none, none), mode)
        case("one-pixel", (3, 1, 5), (none, none, (4, 4)), mode)
        case("rank-8", (2, 1, 2, 3, 1, 2, 2, 3), ((0, 1), none, (1, 0), (2, 1), none, (1, 1), none, (1, 2)), mode)
        case("broadcast", (5, 9), ((1, 2), (3, 4)), mode, layout={"dy": {"expand": (0,)}})
        case("strided", (6, 7), ((1, 2), (3, 4)), mode, layout={"dy": {"step": 2, "gap": 3}, "dx": {"gap": 1, "step": 2}})
        case("backwards", (6, 7), ((1, 2), (3, 4)), mode, layout={"dy": {"flip": (0, 1)}, "dx": {"flip": (0,)}})
        case("transposed", (6, 8), ((1, 2), (3, 4)), mode, layout={"dy": {"order": (1, 0)}})
    case("far-border", (3, 1), (none, (20, 33)), "edge")
    case("scalar", (), (), "constant")
    case("empty", (0, 5), ((0, 0), (1, 1)), "edge")
    return found


CASES = _cases()

LARGE = [PadGradient(f"images-16x64x57x57-{mode}-{SHORT[dtype]}", (16, 64, 57, 57), ((0, 0), (0, 0), (3, 3), (2, 1)), mode, dtype)
         for dtype in SHORT for mode in MODES]
