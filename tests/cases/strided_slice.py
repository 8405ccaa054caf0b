"""Cases of strided_slice: ``y = x[slices].copy()``."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import Case, lay
from .transpose import SHORT, moved_values

ALL = slice(None)


@dataclass(frozen=True)
class Slice(Case):
    """One call; layouts are keywords of `lay` for "x" and "y"."""
    id: str
    shape: tuple
    slices: tuple = field(hash=False)
    dtype: str = "float32"
    layout: dict = field(default_factory=dict, hash=False)
    op = "strided_slice"

    def inputs(self):
        return {"x": lay(self.shape, self.dtype, **self.layout.get("x", {}))}

    def outputs(self):
        shape = tuple(len(range(*s.indices(n))) for n, s in zip(self.shape, self.slices))
        return {"y": lay(shape, self.dtype, **self.layout.get("y", {}))}

    @property
    def work(self):
        return math.prod(self.outputs()["y"].shape)

    @property
    def bounds(self):
        """starts, stops, steps"""
        return tuple(tuple(getattr(s, name) for s in self.slices) for name in ("start", "stop", "step"))

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.transform.layout._slice_problem import make_slice_problem
        x, y = (Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (self.inputs()["x"], self.outputs()["y"]))
        return make_slice_problem((x,), y, *self.bounds, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import strided_slice
        return strided_slice(arrays["x"], *self.bounds, out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        return {"x": moved_values(self.id, mode, self.inputs()["x"])}

    def reference(self, values, tensor_cores=False):
        """Bits are moved: there is no error."""
        y = values["x"][self.slices]
        return {"y": y}, {"y": np.zeros(y.shape)}


def _cases():
    def case(name, shape, slices, dtype="float32", **more):
        found.append(Slice(f"{name}-{SHORT[dtype]}", shape, slices, dtype, **more))

    found = []
    for dtype in SHORT:
        case("rows-9x40", (9, 40), (slice(2, 8), ALL), dtype)
        case("columns-6x70", (6, 70), (ALL, slice(3, 67)), dtype)
        case("box-4x9x50", (4, 9, 50), (slice(1, 3), slice(2, 9), slice(1, 48)), dtype)
        case("every-other-5x61", (5, 61), (ALL, slice(1, None, 2)), dtype)
        case("backwards-4x37", (4, 37), (slice(None, None, -1), slice(None, None, -1)), dtype)
        case("channels-2x16x5x8", (2, 16, 5, 8), (ALL, slice(8, 16), ALL, ALL), dtype)
        case("misaligned-3x90", (3, 90), (ALL, slice(5, 85)), dtype, layout={"x": {"misaligned": 1}, "y": {"misaligned": 3}})
        case("out-of-transposed-40x36", (40, 36), (slice(4, 36), slice(2, 34)), dtype, layout={"x": {"order": (1, 0)}})
    for n in (1, 7, 8, 9, 15, 16, 17, 31, 33):
        case(f"edge-{n}", (5, 80), (slice(1, 4), slice(n, 2 * n)), ("float16", "int8", "float32")[n % 3])
    case("long-row", (1400,), (slice(3, 1390),), "bfloat16")
    case("long-row-bytes", (2, 1400), (ALL, slice(13, None)), "int8")
    case("aligned-apart", (6, 64), (ALL, slice(8, 40)), "float16", layout={"y": {"gap": 8}})
    case("steps-everywhere", (7, 8, 9), (slice(None, None, 2), slice(6, None, -3), slice(8, 0, -2)))
    case("step-beyond", (5, 6), (slice(1, 5, 9), ALL), "float16")
    case("outside", (5, 6), (slice(-99, 99), slice(-4, -1)))
    case("nothing", (5, 6), (slice(3, 3), ALL))
    case("of-nothing", (0, 6), (ALL, slice(None, None, -1)))
    case("scalar", (), ())
    case("one", (7,), (slice(-1, None),), "float16")
    case("rank-8", (2, 3, 2, 2, 3, 2, 2, 5), tuple(slice(k % 2, None) for k in range(8)), "float16")
    case("broadcast", (6, 40), (slice(1, 5), slice(3, 30)), layout={"x": {"expand": (0,)}})
    case("one-value-rows", (6, 40), (slice(1, 5), slice(3, 30)), "float16", layout={"x": {"expand": (1,)}})
    case("strided", (8, 30), (slice(1, 7), slice(2, 29)), layout={"x": {"step": 2, "gap": 3}, "y": {"gap": 1}})
    case("strided-out", (8, 30), (slice(1, 7), slice(2, 29)), "bfloat16", layout={"y": {"step": 2}})
    case("negative-x", (8, 40), (slice(1, 7), slice(2, 35)), "float16", layout={"x": {"flip": (0, 1)}})
    case("negative-y", (8, 40), (slice(1, 7), slice(2, 35)), "int8", layout={"y": {"flip": (1,)}})
    case("twice-negative", (8, 40), (slice(1, 7), slice(35, 2, -1)), "float16", layout={"x": {"flip": (1,)}})
    case("pictures", (2, 3, 9, 11), (ALL, ALL, slice(1, 9), slice(2, 10)), "float16", layout={"y": {"order": (0, 2, 3, 1)}})
    case("few-channels-out", (2, 4, 8, 10), (ALL, slice(0, 3), ALL, ALL), "float16", layout={"y": {"order": (0, 2, 3, 1)}})
    case("few-channels", (2, 3, 8, 10), (slice(1, 2), ALL, ALL, ALL), "int8", layout={"y": {"order": (0, 2, 3, 1)}})
    case("few-channels-too", (3, 3, 8, 8), (slice(0, 2), ALL, ALL, ALL), "float32", layout={"y": {"order": (0, 2, 3, 1)}})
    return found


CASES = _cases()

LARGE = [Slice(f"{name}-{SHORT[dtype]}", shape, slices, dtype) for dtype in SHORT for name, shape, slices in (
    ("image-crop-16x64x57x57", (16, 64, 57, 57), (ALL, ALL, slice(1, 56), slice(1, 56))),
    ("heads-4x1025x3072", (4, 1025, 3072), (ALL, slice(1, None), slice(1024, 2048))),
    ("odd-1023x4099", (1023, 4099), (slice(5, None), slice(3, None))),
    ("reversed-1000x1001", (1000, 1001), (slice(None, None, -1), slice(None, None, -1))),
    ("every-third-999x3001", (999, 3001), (ALL, slice(1, None, 3))))]

BEYOND_INT32 = [Slice("2**31-bytes-i8", (2 ** 16 + 9, 2 ** 15 + 35), (slice(4, None), slice(3, None)), "int8"),
                Slice("2**31-steps-bf16", (2 ** 16 + 5, 257, 130), (ALL, slice(None, None, -1), slice(1, -1)), "bfloat16")]
"""Out of more than 2**31 elements, made and checked on the GPU by `check_beyond_int32`."""


def check_beyond_int32(case, algo, allow):
    """Every element compared with torch's, a slice of the output at a time."""
    import torch

    from .transpose import random_bytes
    x = random_bytes(torch, case.shape, case.dtype)
    y = torch.full(case.outputs()["y"].shape, 101, dtype=x.dtype, device="cuda")
    case.call({"x": x}, y, algo=algo, allow=allow)
    flipped = [k for k, s in enumerate(case.slices) if (s.step or 1) < 0]
    assert all(case.slices[k] == slice(None, None, -1) for k in flipped), "torch has no other negative steps"
    want = x[tuple(ALL if k in flipped else s for k, s in enumerate(case.slices))]
    step = max(1, (1 << 26) // y[0].numel())
    for first in range(0, len(y), step):
        part = want[first:first + step].flip(flipped) if flipped else want[first:first + step]
        assert 0 not in flipped and torch.equal(y[first:first + step], part), f"{case.id}, {algo}: wrong in rows {first} to {first + step}"
