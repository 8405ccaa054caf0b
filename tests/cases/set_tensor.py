"""Cases of set_tensor: ``x[...] = value``."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import Case, lay
from .transpose import SHORT, moved_values


@dataclass(frozen=True)
class Set(Case):
    """One call; `layout` are keywords of `lay` for the array; `same` is "" where the result is another array, which lies so too."""
    id: str
    shape: tuple
    dtype: str = "float32"
    value: float = 3.0
    same: str = "x"
    layout: dict = field(default_factory=dict, hash=False)
    op = "set_tensor"
    trivial = True

    def inputs(self):
        return {"x": lay(self.shape, self.dtype, **self.layout)}

    def outputs(self):
        return {"y": lay(self.shape, self.dtype, **self.layout)}

    def in_place(self):
        return {"y": self.same} if self.same else {}

    @property
    def work(self):
        return 2 * math.prod(self.shape)

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.transform.layout._pad_problem import make_set_problem
        x, y = (Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (self.inputs()["x"], self.outputs()["y"]))
        return make_set_problem((x,), y, frozenset({self.same} - {""}))

    def call(self, arrays, out=None, **tail):
        from dnnkern import set_tensor
        return set_tensor(arrays["x"], self.value, out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        return {"x": moved_values(self.id, mode, self.inputs()["x"])}

    def reference(self, values, tensor_cores=False):
        """Values that every dtype has: there is no error."""
        return {"y": np.full(self.shape, float(self.value))}, {"y": np.zeros(self.shape)}


def _cases():
    def case(name, shape, dtype="float32", **more):
        found.append(Set(f"{name}-{SHORT[dtype]}", shape, dtype, **more))

    found = []
    for k, dtype in enumerate(SHORT):
        case("vector-211", (211,), dtype, value=-5.0)
        case("matrix-5x40", (5, 40), dtype, value=0.0)
        case("rows-apart-4x37", (4, 37), dtype, layout={"gap": 3, "misaligned": 1})
        case("elsewhere-6x9", (6, 9), dtype, same="")
    for n in (0, 1, 7, 15, 16, 17, 33):
        case(f"edge-{n}", (n,), ("float16", "int8", "float64")[n % 3], layout={"misaligned": n % 2})
    case("scalar", (), "float16")
    case("transposed", (9, 20), layout={"order": (1, 0)})
    case("backwards", (4, 21), "bfloat16", layout={"flip": (0, 1)})
    case("strided", (4, 21), layout={"step": 2})
    case("rank-8", (2, 1, 3, 2, 1, 2, 2, 3), "float16", layout={"order": (0, 3, 2, 1, 4, 5, 6, 7)})
    return found


CASES = _cases()

LARGE = [Set(f"{name}-{SHORT[dtype]}", shape, dtype, layout=layout) for dtype in SHORT for name, shape, layout in (
    ("1000003", (1000003,), {"misaligned": 1}), ("1023x1025", (1023, 1025), {"gap": 7}))]

BEYOND_INT32 = [Set("2**31-i8", (2 ** 16 + 1, 2 ** 15 + 33), "int8"), Set("2**31-bf16", (2 ** 31 + 17,), "bfloat16", same="")]
"""More than 2**31 elements, checked on the GPU by `check_beyond_int32`."""


def check_beyond_int32(case, algo, allow):
    """Every element, a part at a time."""
    import torch
    y = torch.zeros(case.shape, dtype=getattr(torch, case.dtype), device="cuda")
    assert y.numel() > 2 ** 31
    case.call({"x": y if case.same else torch.zeros(1, dtype=y.dtype, device="cuda").expand(case.shape)}, y, algo=algo, allow=allow)
    for part in y.view(-1).split(1 << 28):
        assert bool((part == case.value).all()), f"{case.id}, {algo}"
