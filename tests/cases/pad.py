"""Cases of pad: ``y = numpy.pad(x, pads, mode)``."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import Case, lay
from .transpose import SHORT, moved_values, random_bytes

MODES = ("constant", "edge", "reflect")


@dataclass(frozen=True)
class Pad(Case):
    """One call; layouts are keywords of `lay` for "x" and "y"."""
    id: str
    shape: tuple
    pads: tuple
    mode: str = "constant"
    dtype: str = "float32"
    value: float = 3.0
    layout: dict = field(default_factory=dict, hash=False)
    op = "pad"

    @property
    def trivial(self):
        return not math.prod(self.shape)

    def inputs(self):
        return {"x": lay(self.shape, self.dtype, **self.layout.get("x", {}))}

    def outputs(self):
        return {"y": lay(tuple(n + a + b for n, (a, b) in zip(self.shape, self.pads)), self.dtype, **self.layout.get("y", {}))}

    @property
    def work(self):
        return 2 * math.prod(self.outputs()["y"].shape)

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.transform.layout._pad_problem import make_pad_problem
        x, y = (Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (self.inputs()["x"], self.outputs()["y"]))
        return make_pad_problem((x,), y, self.pads, self.mode, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import pad
        return pad(arrays["x"], self.pads, mode=self.mode, value=self.value, out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        return {"x": moved_values(self.id, mode, self.inputs()["x"])}

    def reference(self, values, tensor_cores=False):
        """Bits are moved: there is no error."""
        more = {"constant_values": self.value} if self.mode == "constant" else {}
        y = np.pad(values["x"], self.pads, mode=self.mode, **more) if self.shape else values["x"]
        return {"y": y}, {"y": np.zeros(y.shape)}


def _cases():
    def case(name, shape, pads, mode="constant", dtype="float32", **more):
        found.append(Pad(f"{name}-{mode}-{SHORT[dtype]}", shape, pads, mode, dtype, **more))

    none, found = (0, 0), []
    for k, dtype in enumerate(SHORT):
        for mode in MODES:
            case("picture-2x3x6x9", (2, 3, 6, 9), (none, none, (1, 2), (3, 1)), mode, dtype)
        case("rows-3x60", (3, 60), (none, (5, 20)), MODES[k % 3], dtype, value=-2.0)
        case("channels-last-2x5x4x8", (2, 5, 4, 8), (none, (1, 1), (2, 1), none), MODES[(k + 1) % 3], dtype)
        case("whole-rows-6x40", (6, 40), ((2, 3), none), MODES[(k + 2) % 3], dtype)
        case("misaligned-4x50", (4, 50), ((1, 0), (3, 2)), MODES[k % 3], dtype, layout={"x": {"misaligned": 1}, "y": {"misaligned": 3}})
        case("three-channels-made-four", (2, 9, 5, 3), (none, none, none, (0, 1)), MODES[(k + 1) % 2], dtype, value=-2.0)
    for n in (1, 7, 8, 9, 16, 17):
        case(f"edge-{n}", (3, 2 * n + 20), (none, (n, 2 * n)), MODES[n % 3], ("float16", "int8", "float32")[n % 2 + n % 3 // 2])
    for mode in MODES[:2]:
        case("one-channel-made-eight", (150, 1), (none, (0, 7)), mode, "float16")
        case("two-channels-made-four", (700, 2), (none, (1, 1)), mode, "int8", layout={"x": {"misaligned": 1}})
        case("three-channels-made-eight", (90, 3), (none, (4, 1)), mode, "bfloat16", layout={"y": {"misaligned": 3}})
        case("borders-all-round", (2, 4, 5, 3), (none, (1, 2), (2, 1), (0, 1)), mode, "float16")
    for mode in MODES:
        case("short-odd-rows", (300, 5), (none, (2, 4)), mode, "int8", layout={"x": {"misaligned": 3}, "y": {"misaligned": 5}})
        case("long-row", (1300,), ((70, 30),), mode, "bfloat16")
        case("wider-than-x", (2, 9), (none, (8, 8)), mode, "float16")
        case("no-border", (4, 33), (none, none), mode, "float16")
        case("one-pixel", (3, 1, 5), (none, none, (4, 4)), mode)
        case("rank-8", (2, 1, 2, 3, 1, 2, 2, 3), ((0, 1), none, (1, 0), (2, 1), none, (1, 1), none, (1, 2)), mode, "float16")
        case("broadcast", (5, 30), ((1, 2), (3, 4)), mode, layout={"x": {"expand": (0,)}})
        case("strided", (6, 25), ((1, 2), (3, 4)), mode, layout={"x": {"step": 2, "gap": 3}, "y": {"gap": 1}})
        case("strided-result", (6, 25), ((1, 2), (3, 4)), mode, "bfloat16", layout={"y": {"step": 2}})
        case("negative-x", (6, 37), ((1, 2), (3, 4)), mode, "float16", layout={"x": {"flip": (0, 1)}})
        case("negative-y", (6, 37), ((1, 2), (3, 4)), mode, "int8", layout={"y": {"flip": (0, 1)}})
        case("transposed", (20, 24), ((1, 2), (3, 4)), mode, "float16", layout={"x": {"order": (1, 0)}})
        case("transposed-result", (20, 24), ((1, 2), (3, 4)), mode, layout={"y": {"order": (1, 0)}})
    case("far-border", (2, 9), ((0, 3), (200, 100)), "constant", "float16")
    case("far-border-edge", (3, 9), (none, (60, 33)), "edge")
    case("round-nothing", (0, 9), ((2, 1), (0, 3)), "constant")
    case("scalar", (), (), "constant", "float16")
    case("empty", (0, 5), (none, (1, 1)), "edge")
    return found


CASES = _cases()

LARGE = [Pad(f"{name}-{mode}-{SHORT[dtype]}", shape, pads, mode, dtype) for dtype in SHORT for mode in MODES for name, shape, pads in (
    ("images-16x64x57x57", (16, 64, 57, 57), ((0, 0), (0, 0), (1, 1), (1, 1))),
    ("last-16x56x56x72", (16, 56, 56, 72), ((0, 0), (3, 3), (3, 3), (0, 0))), ("odd-1023x4099", (1023, 4099), ((1, 2), (5, 8))))]

BEYOND_INT32 = [Pad("2**31-constant-i8", (2 ** 16 + 9, 2 ** 15 + 35), ((1, 2), (3, 0)), "constant", "int8"),
                Pad("2**31-edge-bf16", (2 ** 16 + 5, 257, 129), ((0, 0), (0, 0), (1, 2)), "edge", "bfloat16")]
"""More than 2**31 elements, made and checked on the GPU by `check_beyond_int32`."""


def check_beyond_int32(case, algo, allow):
    """Every element compared, a slice of the output at a time."""
    import torch
    x = random_bytes(torch, case.shape, case.dtype)
    y = torch.full(case.outputs()["y"].shape, 101, dtype=x.dtype, device="cuda")
    case.call({"x": x}, y, algo=algo, allow=allow)
    (top, bottom), *inner = case.pads
    step = max(1, (1 << 26) // y[0].numel())
    for first in range(0, len(y), step):
        last = min(first + step, len(y))
        part = x[max(first - top, 0):max(min(last, top + len(x)) - top, 0)]
        for axis, (before, after) in enumerate(inner, 1):
            sides = [part.narrow(axis, at, 1).expand(*part.shape[:axis], n, *part.shape[axis + 1:])
                     for at, n in ((0, before), (part.shape[axis] - 1, after))]
            if case.mode == "constant":
                sides = [torch.full_like(s, case.value) for s in sides]
            part = torch.cat((sides[0], part, sides[1]), axis)
        rows = [torch.full((n, *y.shape[1:]), case.value, dtype=y.dtype, device="cuda")
                for n in (max(min(top, last) - first, 0), max(last - max(top + len(x), first), 0))]
        assert torch.equal(y[first:last], torch.cat((rows[0], part, rows[1]))), f"{case.id}, {algo}: wrong in rows {first} to {last}"
