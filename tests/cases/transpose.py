"""Cases of transpose, which are those of convert_layout too: ``y = numpy.transpose(x, axes)``."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import EXACT, Case, coherent, lay, rounded

SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "i8", "int32": "i32", "float8_e4m3fn": "e4m3",
         "float8_e5m2": "e5m2"}


@dataclass(frozen=True)
class Transpose(Case):
    """One call; `source` and `target` call convert_layout instead. Layouts are keywords of `lay` for "x" and "y"."""
    id: str
    shape: tuple
    axes: tuple
    dtype: str = "float32"
    source: str = ""
    target: str = ""
    layout: dict = field(default_factory=dict, hash=False)
    op = "transpose"

    def inputs(self):
        return {"x": lay(self.shape, self.dtype, **self.layout.get("x", {}))}

    def outputs(self):
        return {"y": lay(tuple(self.shape[a] for a in self.axes), self.dtype, **self.layout.get("y", {}))}

    @property
    def work(self):
        return math.prod(self.shape)

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.transform._problem import make_problem
        x, y = (Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (self.inputs()["x"], self.outputs()["y"]))
        return make_problem((x,), y, self.axes, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import convert_layout, transpose
        out = out[0] if isinstance(out, tuple) else out
        if self.source:
            return convert_layout(arrays["x"], self.source, self.target, out=out, **tail)
        return transpose(arrays["x"], self.axes, out=out, **tail)

    def values(self, mode):
        return {"x": moved_values(self.id, mode, self.inputs()["x"])}

    def reference(self, values, tensor_cores=False):
        """Bits are moved: there is no error."""
        y = np.moveaxis(values["x"], self.axes, range(len(self.axes))) if self.axes else values["x"]
        return {"y": y}, {"y": np.zeros(y.shape)}


def moved_values(name, mode, place):
    """Values of an array whose bits are moved, drawn by the case's name."""
    rng, bound = np.random.default_rng(list(name.encode())), min(EXACT[place.dtype], 2 ** 24)
    if mode == "exact" or not place.dtype.startswith(("float", "bfloat")):
        x = rng.integers(-bound, bound + 1, place.shape).astype(np.float64)
    else:
        x = rounded(rng.standard_normal(place.shape) + 0.5, place.dtype)
    return coherent(x, place)


def random_bytes(torch, shape, dtype):
    """A tensor of integers from -100 to 100."""
    generator, x = torch.Generator("cuda").manual_seed(7), torch.empty(shape, dtype=getattr(torch, dtype), device="cuda")
    for part in x.view(-1).split(1 << 26):
        part.copy_(torch.randint(-100, 101, part.shape, generator=generator, device="cuda", dtype=torch.int8))
    assert x.numel() > 2 ** 31
    return x


DTYPES = tuple(SHORT)


def _cases():
    def case(name, shape, axes, dtype="float32", **more):
        found.append(Transpose(f"{name}-{SHORT[dtype]}", shape, axes, dtype, **more))

    found = []
    for dtype in DTYPES:
        case("matrix-33x31", (33, 31), (1, 0), dtype)
        case("matrix-144x80", (144, 80), (1, 0), dtype)
        case("nchw-nhwc-2x16x5x8", (2, 16, 5, 8), (0, 2, 3, 1), dtype, source="NCHW", target="NHWC")
        case("nhwc-nchw-3x4x4x32", (3, 4, 4, 32), (0, 3, 1, 2), dtype, source="NHWC", target="NCHW")
        case("heads-2x6x4x16", (2, 6, 4, 16), (0, 2, 1, 3), dtype, source="BSHD", target="BHSD")
        case("odd-rows-3x5x4x7", (3, 5, 4, 7), (2, 0, 1, 3), dtype)
        case("copy-5x77", (5, 77), (0, 1), dtype)
        case("misaligned-32x48", (32, 48), (1, 0), dtype, layout={"x": {"misaligned": 1}, "y": {"misaligned": 3}})
    for shape in ((0, 5), (1, 1), (1, 33), (31, 1), (32, 32), (33, 64), (63, 65), (128, 16), (7, 257), (257, 9)):
        case("edge-{}x{}".format(*shape), shape, (1, 0), "float32" if shape[0] % 2 else "bfloat16")
    for shape in ((127, 129), (130, 64), (64, 130), (136, 24)):
        case("edge-{}x{}".format(*shape), shape, (1, 0), "int8")
    case("scalar", (), ())
    case("vector-67", (67,), (0,), "float16")
    case("image-3-channels", (2, 3, 9, 11), (0, 2, 3, 1), "float16", source="NCHW", target="NHWC")
    case("image-3-channels-back", (2, 9, 11, 3), (0, 3, 1, 2), "bfloat16", source="NHWC", target="NCHW")
    case("image-1d", (2, 12, 37), (0, 2, 1), source="NCHW", target="NHWC")
    case("image-3d", (2, 3, 4, 5, 8), (0, 4, 1, 2, 3), "float16", source="NHWC", target="NCHW")
    case("filter", (16, 24, 3, 3), (0, 2, 3, 1), "bfloat16", source="KCRS", target="KRSC")
    case("filter-back", (16, 3, 3, 24), (0, 3, 1, 2), "bfloat16", source="KRSC", target="KCRS")
    case("filter-3d-to-crsk", (4, 6, 2, 3, 3), (1, 2, 3, 4, 0), source="KCTRS", target="CTRSK")
    # short runs that stay together
    case("run-of-2-halves", (20, 36, 2), (1, 0, 2), "float16")
    case("run-of-4-floats", (18, 21, 4), (1, 0, 2))
    case("run-of-16-bytes", (9, 20, 16), (1, 0, 2), "int8")
    case("run-of-8-halves-misaligned", (12, 10, 8), (1, 0, 2), "float16", layout={"x": {"misaligned": 2}})
    # ranks
    case("reverse-3", (5, 6, 7), (2, 1, 0))
    case("reverse-4", (3, 4, 5, 6), (3, 2, 1, 0), "float16")
    case("reverse-8", (2, 3, 2, 2, 3, 2, 2, 3), (7, 6, 5, 4, 3, 2, 1, 0), "float16")
    case("shuffle-6", (3, 2, 4, 3, 2, 5), (4, 1, 5, 0, 3, 2), "float64")
    case("swap-pairs-8", (2, 2, 2, 2, 2, 2, 2, 2), (1, 0, 3, 2, 5, 4, 7, 6), "int8")
    case("rotate-3", (6, 10, 14), (1, 2, 0), "bfloat16")
    case("ones", (1, 8, 1, 12, 1), (4, 3, 2, 1, 0))
    case("zero-batch", (0, 3, 4), (0, 2, 1))
    # strides
    case("strided-x", (20, 30), (1, 0), layout={"x": {"step": 2, "gap": 3}})
    case("strided-y", (20, 30), (1, 0), "bfloat16", layout={"y": {"step": 3, "gap": 1}})
    case("strided-both", (4, 9, 10), (2, 0, 1), "int8", layout={"x": {"step": 2}, "y": {"step": 2, "gap": 5}})
    case("gap-x-16-bytes", (24, 40), (1, 0), "float16", layout={"x": {"gap": 8}, "y": {"gap": 8}})
    case("gap-odd", (24, 40), (1, 0), "float16", layout={"x": {"gap": 1}, "y": {"gap": 1}})
    case("negative-x", (16, 24), (1, 0), layout={"x": {"flip": (0, 1)}})
    case("negative-y", (16, 24), (1, 0), "float16", layout={"y": {"flip": (1,)}})
    case("negative-both", (5, 16, 24), (0, 2, 1), layout={"x": {"flip": (0, 2)}, "y": {"flip": (0, 1)}})
    case("stored-transposed", (17, 34), (1, 0), layout={"x": {"order": (1, 0)}})
    case("out-stored-transposed", (17, 34), (1, 0), "float16", layout={"y": {"order": (1, 0)}})
    case("broadcast-rows", (12, 20), (1, 0), layout={"x": {"expand": (0,)}})
    case("broadcast-columns", (12, 20), (1, 0), "float16", layout={"x": {"expand": (1,)}})
    case("broadcast-batch", (3, 12, 20), (2, 0, 1), layout={"x": {"expand": (0,)}})
    case("pixels-misaligned-nhwc", (2, 24, 7, 7), (0, 2, 3, 1), "float16")
    case("pixels-misaligned-nchw", (2, 7, 7, 24), (0, 3, 1, 2), "int8")
    case("pixels-8-byte-units", (2, 32, 6, 6), (0, 2, 3, 1), "float16")
    return found


CASES = _cases()

LARGE = [Transpose(f"{name}-{SHORT[dtype]}", shape, axes, dtype) for dtype in DTYPES for name, shape, axes in (
    ("1025x4097", (1025, 4097), (1, 0)),
    ("nchw-nhwc-16x256x28x28", (16, 256, 28, 28), (0, 2, 3, 1)),
    ("nhwc-nchw-16x14x14x200", (16, 14, 14, 200), (0, 3, 1, 2)),
    ("heads-4x512x16x64", (4, 512, 16, 64), (0, 2, 1, 3)),
    ("image-64x3x224x224", (64, 3, 224, 224), (0, 2, 3, 1)),
    ("shuffle-13x17x19x23x5", (13, 17, 19, 23, 5), (4, 2, 0, 3, 1)))]

BEYOND_INT32 = [Transpose("matrix-2**31-i8", (2 ** 16 + 1, 2 ** 15 + 33), (1, 0), "int8"),
                Transpose("batch-2**31-bf16", (2 ** 16 + 5, 257, 128), (0, 2, 1), "bfloat16"),
                Transpose("copy-2**31-f16", (65, 2 ** 19, 64), (1, 0, 2), "float16")]
"""More than 2**31 elements, made and checked on the GPU by `check_beyond_int32`."""


def check_beyond_int32(case, algo, allow):
    """Every element compared with torch's permutation, a slice of the output at a time."""
    import torch
    x = random_bytes(torch, case.shape, case.dtype)
    y = torch.full(case.outputs()["y"].shape, 101, dtype=x.dtype, device="cuda")
    case.call({"x": x}, y, algo=algo, allow=allow)
    want = x.permute(case.axes)
    step = max(1, (1 << 26) // y[0].numel())
    for first in range(0, len(y), step):
        assert torch.equal(y[first:first + step], want[first:first + step]), f"{case.id}, {algo}: wrong in rows {first} to {first + step}"
