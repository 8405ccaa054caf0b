"""Cases of move_rows: rows that are gathered, scattered, or both."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import Case, lay
from .transpose import SHORT, moved_values


@dataclass(frozen=True)
class Rows(Case):
    """One call: `count` rows of an array of `shape` become `rows`; `by` names the arrays of numbers; layouts are keywords of `lay`."""
    id: str
    shape: tuple
    dtype: str = "float32"
    count: int = 0
    rows: int = 0
    by: tuple = ("source",)
    layout: dict = field(default_factory=dict, hash=False)
    op = "move_rows"

    def place(self, name):
        shape = {"x": self.shape, "y": (self.rows, self.shape[1])}.get(name, (self.count,))
        return lay(shape, self.dtype if name in "xy" else "int32", **self.layout.get(name, {}))

    def inputs(self):
        return {"x": self.place("x"), **{name: self.place(name) if name in self.by else None for name in ("source", "target")}}

    def outputs(self):
        return {"y": self.place("y")}

    @property
    def work(self):
        return 4 * math.prod(self.shape)

    @property
    def trivial(self):
        return self.dtype == "int8"

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.transform.rows._rows_problem import make_rows

        def tensor(p):
            return None if p is None else Tensor(p.shape, p.strides, p.dtype, p.alignment)
        return make_rows(tuple(map(tensor, self.inputs().values())), tensor(self.place("y")), None, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import move_rows
        return move_rows(arrays["x"], arrays["source"], arrays["target"], out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        """Every row of y is named once."""
        rng, found = np.random.default_rng(list(self.id.encode())), {"x": moved_values(self.id, mode, self.place("x"))}
        if "source" in self.by:
            found["source"] = rng.integers(0, self.shape[0], self.count).astype(float)
        if "target" in self.by:
            found["target"] = rng.permutation(self.rows).astype(float)
        return found

    def reference(self, values, tensor_cores=False):
        y = np.zeros((self.rows, self.shape[1]))
        source = values["source"].astype(int) if "source" in self.by else np.arange(self.count)
        target = values["target"].astype(int) if "target" in self.by else np.arange(self.count)
        y[target] = values["x"][source]
        return {"y": y}, {"y": np.zeros(y.shape)}


def _cases():
    def case(name, shape, dtype="float32", count=None, by=("source",), **more):
        count = shape[0] if count is None else count
        found.append(Rows(f"{name}-{'x'.join(map(str, shape))}-{SHORT[dtype]}", shape, dtype, count, count, by, **more))

    found = []
    for dtype in SHORT:
        case("gather", (9, 32), dtype, 20)
        case("scatter", (21, 40), dtype, by=("target",))
    case("both", (7, 24), "bfloat16", 12, by=("source", "target"))
    case("copy", (6, 19), by=())
    case("fewer", (30, 12), "float16", 4)
    case("odd", (9, 33), "bfloat16", 20)
    case("bytes", (8, 7), "int8", 5)
    case("apart", (9, 24), "float16", 20, layout={"x": {"gap": 8}, "y": {"gap": 3}})
    case("misaligned", (9, 24), "float32", 20, layout={"x": {"misaligned": 1}, "y": {"misaligned": 1}})
    case("transposed", (9, 24), "float32", 20, layout={"x": {"order": (1, 0)}})
    case("strided", (9, 12), "float64", 11, by=("source", "target"), layout={"y": {"step": 2, "flip": (0,)}, "source": {"step": 2},
                                                                             "target": {"flip": (0,)}})
    case("nothing", (4, 8), count=0)
    return found


CASES = _cases()

LARGE = [Rows(f"{name}-{SHORT[dtype]}", (8191, 1024), dtype, count, count, by) for dtype in ("bfloat16", "float32")
         for name, count, by in (("gather", 16384, ("source",)), ("scatter", 8191, ("target",)))]
