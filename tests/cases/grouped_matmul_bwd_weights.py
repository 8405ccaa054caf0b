"""Cases of grouped_matmul_bwd_weights: ``db[g] = a[rows].T @ dy[rows]`` for each group's rows."""
from dataclasses import dataclass, field

import numpy as np

from . import EXACT, ROUNDOFF, Case, coherent, lay, rounded, rounding_error
from .matmul import SHORT

DTYPES = ("float64", "float32", "float16", "bfloat16")


@dataclass(frozen=True)
class Weights(Case):
    """One call; `sizes` are the rows of the groups, the first of which begins at `first`; `spare` more belong to none. Layouts are keywords
    of `lay` by operand."""
    id: str
    sizes: tuple
    k: int
    n: int
    dtype: str = "float32"
    out_dtype: str | None = None
    math: str | None = None
    first: int = 0
    spare: int = 0
    layout: dict = field(default_factory=dict, hash=False)
    op = "grouped_matmul_bwd_weights"

    @property
    def rows(self):
        return self.first + sum(self.sizes) + self.spare

    def inputs(self):
        shapes = {"a": (self.rows, self.k), "dy": (self.rows, self.n), "group_offsets": (len(self.sizes) + 1,)}
        return {name: lay(shape, "int32" if name == "group_offsets" else self.dtype, **self.layout.get(name, {}))
                for name, shape in shapes.items()}

    def outputs(self):
        return {"db": lay((len(self.sizes), self.k, self.n), self.out_dtype or self.dtype, **self.layout.get("db", {}))}

    @property
    def work(self):
        return len(self.sizes) * self.k * self.n * (max(self.sizes, default=0) + 8)

    @property
    def trivial(self):
        return not any(self.sizes)

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.matmul._grouped_weights_problem import make_weights
        *tensors, db = (Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (*self.inputs().values(), self.outputs()["db"]))
        return make_weights(tuple(tensors), db, self.math, self.out_dtype, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import grouped_matmul_bwd_weights
        return grouped_matmul_bwd_weights(arrays["a"], arrays["dy"], arrays["group_offsets"], math=self.math, out_dtype=self.out_dtype,
                                          out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        """Integers so small that sums are exact in the result; or normal numbers."""
        rng, found = np.random.default_rng(list(self.id.encode())), {}
        most = max(self.sizes, default=1) or 1
        top = max([t for t in (1, 2, 3) if t * t * most <= min(EXACT[self.out_dtype or self.dtype], 2 ** 20)], default=1)
        for name, place in self.inputs().items():
            if name == "group_offsets":
                found[name] = np.cumsum([self.first, *self.sizes]).astype(float)
            elif mode == "exact":
                found[name] = rng.integers(-top, top + 1, place.shape).astype(float)
            else:
                found[name] = rounded((rng.standard_normal(place.shape) + 0.25) / most ** 0.25, self.dtype)
        return {name: coherent(found[name], place) for name, place in self.inputs().items()}

    def reference(self, values, tensor_cores=False):
        offsets, u = values["group_offsets"].astype(int), ROUNDOFF["float64" if self.dtype == "float64" else "float32"]
        db, bound = (np.zeros((len(self.sizes), self.k, self.n)) for _ in range(2))
        for g, rows in enumerate(map(slice, offsets[:-1], offsets[1:])):
            a, dy = values["a"][rows], values["dy"][rows]
            db[g] = a.T @ dy
            error = u * min(len(a), 8 * len(a) ** 0.5) + (2 * ROUNDOFF["tf32"] if self.math == "tf32" else 0)
            bound[g] = error * (np.abs(a).T @ np.abs(dy))
        return {"db": db}, {"db": bound + rounding_error(db, self.out_dtype or self.dtype)}


def _cases():
    def case(name, sizes, k, n, dtype="float32", **more):
        found.append(Weights(f"{name}-{SHORT[dtype]}", sizes, k, n, dtype, **more))

    found = []
    for dtype in DTYPES:
        case("ragged-3-0-17-1-30x19x21", (3, 0, 17, 1, 30), 19, 21, dtype)
        case("even-32x32x40", (32, 32), 32, 40, dtype)
        case("misaligned-9-7x16x16", (9, 7), 16, 16, dtype, layout={x: {"misaligned": 1} for x in ("a", "dy", "db")})
    case("some-rows-of-none-5-6x8x12", (5, 6), 8, 12, "bfloat16", first=3, spare=4)
    case("long-70-1-65x40x48", (70, 1, 65), 40, 48, "float16")
    case("tf32-20-20x24x16", (20, 20), 24, 16, math="tf32")
    case("strided-9-14x15x16", (9, 14), 15, 16, layout={"a": {"gap": 5}, "dy": {"step": 2}, "db": {"gap": 3}})
    case("column-major-9-14x16x8", (9, 14), 16, 8, "bfloat16", layout={"a": {"order": (1, 0)}, "dy": {"order": (1, 0)},
                                                                       "db": {"order": (0, 2, 1)}})
    case("negative-9-14x15x16", (9, 14), 15, 16, layout={"a": {"flip": (0,)}, "dy": {"flip": (0, 1)}, "db": {"flip": (0, 2)},
                                                         "group_offsets": {"flip": (0,), "step": 3}})
    case("to-float32-6-3x24x16", (6, 3), 24, 16, "bfloat16", out_dtype="float32")
    case("one-1x1x1", (1,), 1, 1)
    case("no-rows", (0, 0), 5, 6)
    case("no-groups", (), 5, 6)
    return found


CASES = _cases()

LARGE = [Weights(f"{name}-{SHORT[dtype]}", sizes, k, n, dtype) for dtype in DTYPES for name, sizes, k, n in (
    ("ragged-257-0-1-511-64x511x257", (257, 0, 1, 511, 64), 511, 257),
    ("16-groups-512x512", tuple(37 * g % 101 for g in range(16)), 512, 512))]
