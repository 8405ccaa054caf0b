"""Cases of conv_bwd_bias: ``db[k] = sum over n, o, p, q of dy[n, k, o, p, q]``."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import EXACT, ROUNDOFF, Case, coherent, lay, rounded, rounding_error
from ._conv import SHORT
from ._conv_tables import FLOATS


@dataclass(frozen=True)
class BiasGradient(Case):
    """One call; `size` is (N, K, *spatial) of dy whatever the layout."""
    id: str
    size: tuple
    dtype: str = "float32"
    layout: str = "NCHW"
    out_dtype: str | None = None
    lay: dict = field(default_factory=dict, hash=False)
    op = "conv_bwd_bias"

    @property
    def output_dtype(self):
        return self.out_dtype or self.dtype

    @property
    def length(self):
        """Of the sums."""
        return self.size[0] * math.prod(self.size[2:])

    def inputs(self):
        n, k, *spatial = self.size
        shape = (n, *spatial, k) if self.layout == "NHWC" else self.size
        return {"dy": lay(shape, self.dtype, **self.lay.get("dy", {}))}

    def outputs(self):
        return {"db": lay((self.size[1],), self.output_dtype, **self.lay.get("db", {}))}

    @property
    def work(self):
        return math.prod(self.size) + self.size[1]

    @property
    def trivial(self):
        return self.length == 0

    def problem(self):
        from dnnkern.conv._calls import make_bwd_bias
        from dnnkern.host.tensor import Tensor
        dy, db = (Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (self.inputs()["dy"], self.outputs()["db"]))
        return make_bwd_bias((dy,), db, self.layout)

    def call(self, arrays, out=None, **tail):
        from dnnkern import conv_bwd_bias
        return conv_bwd_bias(arrays["dy"], layout=self.layout, out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        rng, place = np.random.default_rng(list(self.id.encode())), self.inputs()["dy"]
        if mode == "float":
            return {"dy": coherent(rounded((rng.standard_normal(place.shape) + 0.25), place.dtype), place)}
        budget = min(EXACT[self.output_dtype], 2**24)
        top = max(1, min(4, budget // max(self.length, 1)))
        dy = rng.integers(-top, top + 1, place.shape).astype(np.float64)
        if self.length > budget:  # as many nonzeros as an exact sum allows
            dy[rng.random(place.shape) > budget / self.length / 4] = 0
        return {"dy": coherent(dy, place)}

    def _sum(self, dy):
        channel = dy.ndim - 1 if self.layout == "NHWC" else 1
        return dy.sum(tuple(a for a in range(dy.ndim) if a != channel))

    def reference(self, values, tensor_cores=False):
        y, sizes = self._sum(values["dy"]), self._sum(np.abs(values["dy"]))
        error = ROUNDOFF["float64" if self.dtype == "float64" else "float32"] * min(self.length, 8 * self.length**0.5)
        return {"db": y}, {"db": error * sizes + rounding_error(y, self.output_dtype)}

    @property
    def gradient(self):
        return self._differences if math.prod(self.size) <= 200 and self.size[1] <= 8 else None

    def _differences(self, values):
        """d sum((y + b) * dy) / d b, by differences."""
        dy = np.moveaxis(values["dy"], -1, 1) if self.layout == "NHWC" else values["dy"]
        numeric, step = np.zeros(self.size[1]), 0.5
        for k in range(self.size[1]):
            b = np.zeros((self.size[1], *(1,) * (dy.ndim - 2)))
            b[k] = step
            numeric[k] = ((b * dy).sum() - (-b * dy).sum()) / (2 * step)
        yield self._sum(values["dy"]), numeric, 1e-9 * (1 + np.abs(numeric))


def _cases():
    def case(name, size, dtype="float32", **more):
        found.append(BiasGradient(f"{name}-{SHORT[dtype]}", size, dtype, **more))

    found = []
    for dtype in FLOATS:
        case("2x5x6x7", (2, 5, 6, 7), dtype)
        case("nhwc-2x16x6x7", (2, 16, 6, 7), dtype, layout="NHWC")
        case("misaligned-nhwc-3x24x4x4", (3, 24, 4, 4), dtype, layout="NHWC", lay={"dy": {"misaligned": 1}, "db": {"misaligned": 3}})
        case("long-nhwc-1x3x40x41", (1, 3, 40, 41), dtype, layout="NHWC")
        case("long-1x2x37x41", (1, 2, 37, 41), dtype)
    for dtype, k in (("float16", 1), ("bfloat16", 2), ("float16", 4), ("float32", 1), ("float32", 2), ("float64", 1)):
        case(f"pixels-nhwc-3x{k}x20x18", (3, k, 20, 18), dtype, layout="NHWC")
    case("pixels-nhwc-1x2x7x5", (1, 2, 7, 5), "bfloat16", layout="NHWC")
    case("pixels-nhwc-misaligned-2x2x8x8", (2, 2, 8, 8), "float16", layout="NHWC", lay={"dy": {"misaligned": 1}})
    case("pixels-nhwc-splits-2x2x100x84", (2, 2, 100, 84), "bfloat16", layout="NHWC")
    case("long-nhwc-2x5x30x31", (2, 5, 30, 31), "float16", layout="NHWC")
    for size in ((1, 1, 1), (3, 33, 5), (2, 4, 3, 4, 5), (1, 130, 2, 2), (31, 3, 3, 3), (1, 257, 1), (64, 2, 8)):
        for layout in ("NCHW", "NHWC"):
            case(f"edge-{layout.lower()}-{'x'.join(map(str, size))}", size, "float32" if size[1] % 2 else "bfloat16", layout=layout)
    case("empty-batch", (0, 4, 5, 5))
    case("empty-channels", (3, 0, 5, 5))
    case("empty-pixels-nhwc", (3, 4, 0, 5), "bfloat16", layout="NHWC")
    case("strided-last-2x8x4x5", (2, 8, 4, 5), "bfloat16", lay={"dy": {"order": (0, 2, 3, 1)}})
    case("strided-nhwc-first-2x8x4x5", (2, 8, 4, 5), "float16", layout="NHWC", lay={"dy": {"order": (0, 3, 1, 2)}})
    case("strided-gaps-2x8x4x5", (2, 8, 4, 5), lay={"dy": {"gap": 3}, "db": {"step": 2}})
    case("negative-nhwc-2x6x4x5", (2, 6, 4, 5), layout="NHWC", lay={"dy": {"flip": (1, 3)}, "db": {"flip": (0,)}})
    case("expanded-2x6x4x5", (2, 6, 4, 5), lay={"dy": {"expand": (2, 3)}})
    for dtype, out in (("float64", "float32"), ("float32", "bfloat16"), ("bfloat16", "float32"), ("float16", "float32")):
        case(f"to-{SHORT[out]}-nhwc-2x16x5x5", (2, 16, 5, 5), dtype, layout="NHWC", out_dtype=out)
    return found


CASES = _cases()
LARGE = [BiasGradient(f"{layout.lower()}-{'x'.join(map(str, size))}-{SHORT[dtype]}", size, dtype, layout)
         for dtype in FLOATS for layout in ("NCHW", "NHWC") for size in ((16, 64, 56, 57), (3, 255, 31, 33), (64, 512, 7, 7))]
"""Small cases run on a GPU as well."""
BEYOND_INT32 = [BiasGradient(f"2**31-{layout.lower()}-bf16", (1025, 8, 512, 513), "bfloat16", layout, "float32")
                for layout in ("NCHW", "NHWC")]
"""dy has more than 2**31 elements."""


def check_beyond_int32(case, algo, allow):
    """Small integers, checked exactly against PyTorch's sum in float64."""
    import torch
    generator = torch.Generator("cuda").manual_seed(7)
    dy = torch.empty(case.inputs()["dy"].shape, dtype=torch.bfloat16, device="cuda")
    for part in dy.view(-1).split(1 << 26):
        part.copy_(torch.randint(-1, 2, part.shape, generator=generator, device="cuda", dtype=torch.int8))
    assert dy.numel() > 2**31
    db = torch.full((case.size[1],), 99, dtype=torch.float32, device="cuda")
    case.call({"dy": dy}, db, algo=algo, allow=allow)
    channel = 3 if case.layout == "NHWC" else 1
    want = sum(image.movedim(channel - 1, 0).flatten(1).double().sum(1) for image in dy)
    assert torch.equal(db.double(), want), f"{case.id}, {algo}: wrong"
