"""Cases of concat: ``y = numpy.concatenate(arrays, axis)``."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import Case, lay
from .transpose import SHORT, moved_values, random_bytes


@dataclass(frozen=True)
class Concat(Case):
    """One call; `sizes` are the extents along the axis, layouts keywords of `lay` for "x0", "x1", ..., "y"."""
    id: str
    shape: tuple
    axis: int
    sizes: tuple
    dtype: str = "float32"
    layout: dict = field(default_factory=dict, hash=False)
    op = "concat"

    def _of(self, size):
        return tuple(size if k == self.axis % len(self.shape) else n for k, n in enumerate(self.shape))

    def inputs(self):
        names = [f"x{k}" for k in range(len(self.sizes))]
        return {name: lay(self._of(n), self.dtype, **self.layout.get(name, {})) for name, n in zip(names, self.sizes)}

    def outputs(self):
        return {"y": lay(self._of(sum(self.sizes)), self.dtype, **self.layout.get("y", {}))}

    @property
    def work(self):
        return math.prod(self.outputs()["y"].shape)

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.transform.layout._concat_problem import make_concat_problem
        *xs, y = (Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (*self.inputs().values(), self.outputs()["y"]))
        return make_concat_problem(tuple(xs), y, len(xs), self.axis, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import concat
        return concat(list(arrays.values()), self.axis, out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        return {name: moved_values(self.id + name, mode, place) for name, place in self.inputs().items()}

    def reference(self, values, tensor_cores=False):
        """Bits are moved: there is no error."""
        y = np.concatenate(list(values.values()), self.axis)
        return {"y": y}, {"y": np.zeros(y.shape)}


def _cases():
    def case(name, shape, axis, sizes, dtype="float32", **more):
        found.append(Concat(f"{name}-{SHORT[dtype]}", shape, axis, sizes, dtype, **more))

    found = []
    for dtype in SHORT:
        case("channels-2x24x5x8", (2, 0, 5, 8), 1, (16, 8), dtype)
        case("channels-last-3x4x56", (3, 4, 0), -1, (16, 8, 32), dtype)
        case("odd-channels-last-4x5x41", (4, 5, 0), 2, (3, 17, 21), dtype)
        case("rows-9x35", (0, 35), 0, (4, 1, 4), dtype)
        case("misaligned-3x90", (3, 0), 1, (41, 49), dtype, layout={"x0": {"misaligned": 1}, "y": {"misaligned": 3}})
    case("one", (3, 0, 4), 1, (5,))
    case("two-vectors", (0,), 0, (1000, 213), "float16")
    case("many", (3, 0), -1, tuple(range(1, 12)), "bfloat16")
    case("with-empty-ones", (4, 0), 1, (0, 9, 0, 8, 0))
    case("all-empty", (4, 0), 1, (0, 0))
    case("of-no-rows", (0, 0), 1, (3, 4))
    case("rank-8", (2, 1, 3, 0, 1, 2, 2, 3), 3, (2, 1), "float16")
    case("transposed-parts", (24, 0), 1, (20, 16), "float16", layout={"x0": {"order": (1, 0)}, "x1": {"order": (1, 0)}})
    case("transposed-result", (24, 0), 1, (20, 16), layout={"y": {"order": (1, 0)}})
    case("strided", (6, 0), 1, (11, 14), layout={"x0": {"step": 2}, "x1": {"gap": 3}, "y": {"gap": 1}})
    case("negative", (6, 0), 1, (11, 30), "float16", layout={"x0": {"flip": (0,)}, "x1": {"flip": (1,)}})
    case("negative-result", (6, 0), 1, (11, 30), "int8", layout={"y": {"flip": (0, 1)}})
    case("broadcast", (6, 0), 1, (12, 20), "bfloat16", layout={"x1": {"expand": (0,)}})
    return found


CASES = _cases()

LARGE = [Concat(f"{name}-{SHORT[dtype]}", shape, axis, sizes, dtype) for dtype in SHORT for name, shape, axis, sizes in (
    ("skip-16x192x56x56", (16, 0, 56, 56), 1, (64, 128)), ("last-16x28x28x200", (16, 28, 28, 0), 3, (72, 128)),
    ("odd-1023x4099", (1023, 0), 1, (1001, 3098)), ("rows-4099x1023", (0, 1023), 0, (1001, 3098)))]

BEYOND_INT32 = [Concat("2**31-bytes-i8", (2 ** 16 + 9, 0), 1, (2 ** 14 + 3, 2 ** 14 + 32), "int8"),
                Concat("2**31-rows-bf16", (0, 257, 130), 0, (2 ** 16 + 5, 7), "bfloat16")]
"""More than 2**31 elements, made and checked on the GPU by `check_beyond_int32`."""


def check_beyond_int32(case, algo, allow):
    """Every element compared, an array and a slice of the output at a time."""
    import torch
    shape = case.outputs()["y"].shape
    source = random_bytes(torch, shape, case.dtype)
    parts = [p.clone() for p in source.split(case.sizes, case.axis)]
    y = torch.full(shape, 101, dtype=source.dtype, device="cuda")
    case.call({f"x{k}": p for k, p in enumerate(parts)}, y, algo=algo, allow=allow)
    step = max(1, (1 << 26) // y[0].numel())
    for first in range(0, len(y), step):
        assert torch.equal(y[first:first + step], source[first:first + step]), f"{case.id}, {algo}: wrong in rows {first} to {first + step}"
