"""Cases of sdpa_dropout_mask: zeros and ones that are a function of seed, offset and indices."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import Case, lay
from ._dropout import SHORT
from ._sdpa import keeps


@dataclass(frozen=True)
class DropoutMask(Case):
    """One call; `layout` are keywords of `lay` for the array; `same` is "" where the result is another array, which lies so too; `read` are
    which of seed and offset are in memory."""
    id: str
    shape: tuple
    dtype: str = "float32"
    p: float = 0.25
    seed: int = 20
    offset: int = 0
    same: str = "x"
    layout: dict = field(default_factory=dict, hash=False)
    read: tuple = ()
    op, exact = "sdpa_dropout_mask", True

    @property
    def trivial(self):
        return True

    def inputs(self):
        return {"x": lay(self.shape, self.dtype, **self.layout), **{name: lay((1,), "int64") for name in self.read}}

    def outputs(self):
        return {"y": lay(self.shape, self.dtype, **self.layout)}

    def in_place(self):
        return {"y": self.same} if self.same else {}

    @property
    def work(self):
        return 40 * math.prod(self.shape)

    def problem(self):
        from dnnkern.attention.dropout_mask._problem import make_dropout_mask
        from dnnkern.host.tensor import Tensor
        x, y = (Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (self.inputs()["x"], self.outputs()["y"]))
        arrays = (Tensor.packed((1,), "int64") if name in self.read else None for name in ("seed", "offset"))
        return make_dropout_mask((x, *arrays), y, frozenset({self.same} - {""}))

    def call(self, arrays, out=None, **tail):
        from dnnkern import sdpa_dropout_mask
        return sdpa_dropout_mask(arrays["x"], self.p, arrays.get("seed", self.seed), offset=arrays.get("offset", self.offset),
                                 out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        return {"x": np.full(self.shape, 3.0), **{name: np.array([getattr(self, name)], float) for name in self.read}}

    def reference(self, values, tensor_cores=False):
        """From the definition: as the cases of attention drop probabilities."""
        batch, *shape = self.shape
        y = np.array([keeps(tuple(shape), b, self.p, self.seed, self.offset) for b in range(batch)], float).reshape(self.shape)
        return {"y": y}, {"y": 0 * y}


def _cases():
    def case(name, shape, dtype="float32", **more):
        found.append(DropoutMask(f"{name}-{SHORT[dtype]}", shape, dtype, **more))

    found = []
    for dtype in SHORT:
        case("2x3x5x21", (2, 3, 5, 21), dtype)
    for keys in (0, 1, 7, 8, 9):
        case(f"keys-{keys}", (1, 2, 3, keys), ("bfloat16", "float32")[keys % 2], seed=keys)
    case("no-rows", (2, 1, 0, 8))
    case("elsewhere", (1, 2, 4, 16), same="")
    case("all-kept", (1, 1, 3, 40), p=0.0)
    case("hardly-any", (1, 1, 3, 40), p=0.99999)
    case("offset", (2, 2, 3, 16), offset=7)
    case("negative-seed", (1, 2, 3, 16), "float16", seed=-3, offset=-1)
    case("large-seed", (1, 2, 3, 16), seed=2 ** 63 + 12345, offset=2 ** 40 + 7)
    case("seed-read", (1, 2, 5, 16), seed=-9, offset=4, read=("seed",))
    case("both-read", (2, 1, 5, 9), "float64", offset=5, read=("seed", "offset"))
    case("transposed", (2, 3, 4, 10), "bfloat16", layout={"order": (3, 2, 1, 0)})
    case("backwards", (1, 2, 6, 18), layout={"flip": (0, 1, 2, 3)})
    return found


CASES = _cases()

LARGE = [DropoutMask("2x4x129x1003-bf16", (2, 4, 129, 1003), "bfloat16"), DropoutMask("2x4x129x1003-f32", (2, 4, 129, 1003))]
