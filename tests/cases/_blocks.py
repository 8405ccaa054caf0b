"""Cases of depth_to_space and space_to_depth."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import Case, lay
from .transpose import SHORT, moved_values, random_bytes


@dataclass(frozen=True)
class Blocks(Case):
    """One call; `wide` is the shape of the array that has blocks of pixels. Layouts are keywords of `lay` for "x" and "y"."""
    op: str
    id: str
    wide: tuple
    block: int
    dtype: str = "float32"
    layout: dict = field(default_factory=dict, hash=False)

    @property
    def shapes(self):
        """Of x and of y."""
        (n, c, h, w), b = self.wide, self.block
        deep = n, c * b * b, h // b, w // b
        return (deep, self.wide) if self.op == "depth_to_space" else (self.wide, deep)

    def inputs(self):
        return {"x": lay(self.shapes[0], self.dtype, **self.layout.get("x", {}))}

    def outputs(self):
        return {"y": lay(self.shapes[1], self.dtype, **self.layout.get("y", {}))}

    @property
    def work(self):
        return math.prod(self.wide)

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.transform.layout._blocks_problem import make_blocks_problem
        x, y = (Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (self.inputs()["x"], self.outputs()["y"]))
        return make_blocks_problem(self.op, (x,), y, self.block, frozenset())

    def call(self, arrays, out=None, **tail):
        import dnnkern
        return getattr(dnnkern, self.op)(arrays["x"], self.block, out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        return {"x": moved_values(self.id, mode, self.inputs()["x"])}

    def reference(self, values, tensor_cores=False):
        """Bits are moved: there is no error."""
        x, y, b = values["x"], np.empty(self.shapes[1]), self.block
        c = self.wide[1]
        for i in range(b):
            for j in range(b):
                group = slice((i * b + j) * c, (i * b + j + 1) * c)
                if self.op == "depth_to_space":
                    y[:, :, i::b, j::b] = x[:, group]
                else:
                    y[:, group] = x[:, :, i::b, j::b]
        return {"y": y}, {"y": np.zeros(y.shape)}


def blocks_cases(op):
    """All cases of an operation."""
    def case(name, wide, block, dtype="float32", **more):
        found.append(Blocks(op, f"{name}-{SHORT[dtype]}", wide, block, dtype, **more))

    found = []
    for dtype in SHORT:
        case("layer-1x8x4x16", (1, 8, 4, 16), 2, dtype)
        case("odd-2x3x3x21", (2, 3, 3, 21), 3, dtype)
        case("pictures-1x3x4x32", (1, 3, 4, 32), 4, dtype)
        case("misaligned-1x2x4x36", (1, 2, 4, 36), 2, dtype, layout={"x": {"misaligned": 1}, "y": {"misaligned": 3}})
    case("block-of-one", (2, 3, 5, 7), 1, "float16")
    case("block-of-one-rows-apart", (2, 3, 5, 16), 1, layout={"x": {"gap": 4}})
    case("block-of-one-misaligned", (2, 3, 5, 16), 1, "int8", layout={"x": {"misaligned": 4}})
    case("large-block", (1, 2, 16, 32), 16, "bfloat16")
    case("patches", (2, 3, 16, 16), 8)
    case("one-channel", (2, 1, 12, 10), 2, "float16")
    case("empty", (0, 3, 4, 4), 2)
    case("no-pixels", (2, 3, 0, 4), 2)
    last = {"order": (0, 2, 3, 1)}
    for name, layout in (("channels-last", {"x": last, "y": last}), ("channels-last-x", {"x": last}), ("channels-last-y", {"y": last})):
        case(name, (2, 8, 6, 8), 2, "float16", layout=layout)
    case("strided", (2, 3, 6, 8), 2, layout={"x": {"step": 2, "gap": 1}, "y": {"gap": 3}})
    case("negative", (2, 3, 6, 8), 2, "float16", layout={"x": {"flip": (1, 3)}, "y": {"flip": (2, 3)}})
    case("broadcast", (4, 3, 6, 8), 2, layout={"x": {"expand": (0,)}})
    return found


def large_cases(op):
    """Those for a GPU."""
    return [Blocks(op, f"{name}-{SHORT[dtype]}", wide, block, dtype) for dtype in SHORT for name, wide, block in (
        ("layer-16x64x112x112", (16, 64, 112, 112), 2), ("patches-8x3x224x224", (8, 3, 224, 224), 16),
        ("odd-8x33x99x99", (8, 33, 99, 99), 3))]


def beyond_int32(op):
    """More than 2**31 elements, made and checked on the GPU by `check_beyond_int32`."""
    return [Blocks(op, "2**31-i8", (65, 64, 1024, 512), 2, "int8"), Blocks(op, "2**31-bf16", (129, 16, 1024, 1026), 2, "bfloat16")]


def check_beyond_int32(case, algo, allow):
    """Every element compared with torch's, an image at a time."""
    import torch
    x = random_bytes(torch, case.shapes[0], case.dtype)
    y = torch.full(case.shapes[1], 101, dtype=x.dtype, device="cuda")
    case.call({"x": x}, y, algo=algo, allow=allow)
    (_, c, h, w), b = case.wide, case.block
    deep, wide = (x, y) if case.op == "depth_to_space" else (y, x)
    for n in range(len(x)):
        want = deep[n].view(b, b, c, h // b, w // b).permute(2, 3, 0, 4, 1).reshape(c, h, w)
        assert torch.equal(wide[n], want), f"{case.id}, {algo}: wrong in image {n}"
