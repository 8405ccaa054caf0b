"""What the cases of embedding and of its gradient share."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import EXACT, ROUNDOFF, Case, coherent, lay, rounded, rounding_error
from ._cross_entropy import SHORT


@dataclass(frozen=True)
class _Embedding(Case):
    """One call on a table of `rows` by `columns`; layouts are keywords of `lay` by operand. `picked`: "any" row, backward with some out
    of range, "few" of the rows, or "one" of them throughout."""
    id: str
    rows: int
    columns: int
    positions: tuple
    dtype: str = "float32"
    index: str = "int64"
    picked: str = "any"
    padding: int = None
    by_frequency: bool = False
    layout: dict = field(default_factory=dict, hash=False)

    def place(self, name, shape, dtype):
        return lay(shape, dtype, **self.layout.get(name, {}))

    @property
    def each_shape(self):
        return (*self.positions, self.columns)

    def indices(self):
        rng = np.random.default_rng([5, *self.id.encode()])
        place = self.place("indices", self.positions, self.index)
        beyond = int(self.op.endswith("bwd"))  # without effect there; forward NaN, which is no result to compare
        low, high = {"any": (-beyond, self.rows + beyond), "few": (0, min(3, self.rows)), "one": (self.rows - 1, self.rows)}[self.picked]
        found = rng.integers(low, max(high, low + 1), self.positions)
        return coherent(found, place) if self.positions else found

    def tensors(self):
        """Descriptors of operands and results by name."""
        from dnnkern.host.tensor import Tensor
        return {name: Tensor(p.shape, p.strides, p.dtype, p.alignment) for name, p in {**self.inputs(), **self.outputs()}.items()}


class Forward(_Embedding):
    """Rows by index."""
    op = "embedding_fwd"

    @property
    def work(self):
        return 4 * math.prod(self.each_shape)

    def inputs(self):
        return {"weight": self.place("weight", (self.rows, self.columns), self.dtype),
                "indices": self.place("indices", self.positions, self.index)}

    def outputs(self):
        return {"y": self.place("y", self.each_shape, self.dtype)}

    def problem(self):
        from dnnkern.embedding._problem import make_forward
        t = self.tensors()
        return make_forward((t["weight"], t["indices"]), t["y"], frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import embedding_fwd
        return embedding_fwd(arrays["weight"], arrays["indices"], out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        rng, place = np.random.default_rng(list(self.id.encode())), self.inputs()["weight"]
        weight = rng.integers(-9, 10, place.shape) if mode == "exact" else rng.standard_normal(place.shape)
        return {"weight": coherent(rounded(weight, self.dtype), place), "indices": self.indices()}

    def reference(self, values, tensor_cores=False):
        y = values["weight"][values["indices"].astype(int)]
        return {"y": y}, {"y": np.zeros(y.shape)}


class Backward(_Embedding):
    """The gradient of the table."""
    op = "embedding_bwd"

    @property
    def work(self):
        return 2 * self.rows * self.columns * (2 + math.prod(self.positions))

    @property
    def trivial(self):
        return not math.prod(self.each_shape) or self.padding is not None or self.picked == "one" or self.rows > math.prod(self.positions)

    @property
    def exact(self):
        """Quotients are not."""
        return not self.by_frequency

    def inputs(self):
        return {"dy": self.place("dy", self.each_shape, self.dtype), "indices": self.place("indices", self.positions, self.index)}

    def outputs(self):
        return {"dweight": self.place("dweight", (self.rows, self.columns), self.dtype)}

    def problem(self):
        from dnnkern.embedding._problem import make_backward
        t = self.tensors()
        return make_backward((t["dy"], t["indices"]), t["dweight"], self.rows, self.padding, self.by_frequency, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import embedding_bwd
        return embedding_bwd(arrays["dy"], arrays["indices"], self.rows, padding_idx=self.padding, scale_grad_by_freq=self.by_frequency,
                             out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        rng, place = np.random.default_rng(list(self.id.encode())), self.inputs()["dy"]
        if mode == "exact":
            bound = max(1, min(9, EXACT[self.dtype] // max(1, math.prod(self.positions))))
            dy = rng.integers(-bound, bound + 1, place.shape).astype(np.float64)
        else:
            dy = rounded(rng.standard_normal(place.shape) + 0.25, self.dtype)
        return {"dy": coherent(dy, place), "indices": self.indices()}

    def sums(self, indices, dy):
        """The gradient of the table."""
        dweight, counts = np.zeros((self.rows, self.columns)), np.zeros(self.rows)
        for at in np.ndindex(*self.positions):
            row = int(indices[at])
            if 0 <= row < self.rows and (self.padding is None or row != self.padding % self.rows):
                dweight[row] += dy[at]
                counts[row] += 1
        return (dweight / np.maximum(counts, 1)[:, None] if self.by_frequency else dweight), counts

    def reference(self, values, tensor_cores=False):
        unit = ROUNDOFF["float64" if self.dtype == "float64" else "float32"]
        dweight, counts = self.sums(values["indices"], values["dy"])
        size, _ = self.sums(values["indices"], np.abs(values["dy"]))
        return {"dweight": dweight}, {"dweight": (counts[:, None] + 4) * unit * size + rounding_error(dweight, self.dtype)}

    @property
    def gradient(self):
        simple = 0 < math.prod(self.each_shape) <= 400 and self.padding is None and not self.by_frequency
        return self._differences if simple else None

    def _differences(self, values):
        """The forward is linear: sum(dy * y) along random directions of the table."""
        rng, indices = np.random.default_rng(3), values["indices"].astype(int)
        inside = (indices >= 0) & (indices < self.rows)
        dweight, _ = self.sums(indices, values["dy"])
        for _ in range(3):
            v = rng.uniform(-1, 1, dweight.shape)
            y = np.zeros(self.each_shape)
            y[inside] = v[indices[inside]]
            sides = (dweight * v).sum(), (values["dy"] * y).sum(), 1e-10 * (1 + np.abs(values["dy"]).sum())
            yield tuple(map(np.asarray, sides))


def table(kind):
    """The cases of a direction."""
    def case(name, rows, columns, positions, dtype="float32", **more):
        word = "x".join(map(str, positions)) or "scalar"
        found.append(kind(f"{name}-{rows}x{columns}-{word}-{SHORT[dtype]}", rows, columns, positions, dtype, **more))

    found = []
    for dtype in SHORT:
        case("chunks", 7, 16, (3, 5), dtype)
        case("int32", 9, 24, (11,), dtype, index="int32")
        case("misaligned", 5, 8, (6,), dtype, layout={name: {"misaligned": 1} for name in ("weight", "dy", "y", "dweight")})
        case("odd", 6, 5, (2, 3, 2), dtype)
        case("gaps", 5, 8, (7,), dtype, layout={name: {"gap": 8} for name in ("weight", "dy", "y", "dweight")})
        case("long", 4, 8, (130,), dtype, picked="few")
    case("one-row", 1, 8, (70,), picked="one")
    case("last-row-only", 20, 16, (100,), "bfloat16", picked="one")
    case("one-column", 8, 1, (9,))
    case("two-columns", 8, 2, (9,), "float16")
    case("six-columns", 8, 6, (9,), "bfloat16")
    case("scalar", 4, 8, (), picked="few")
    case("no-positions", 4, 8, (0, 3))
    case("no-columns", 4, 0, (3,), "float16")
    case("strided-indices", 6, 8, (10,), "bfloat16", layout={"indices": {"step": 3}})
    case("backwards-indices", 6, 8, (10,), layout={"indices": {"flip": (0,)}, "dy": {"flip": (0,)}, "y": {"flip": (0,)}})
    case("transposed-indices", 6, 8, (4, 5), layout={"indices": {"order": (1, 0)}})
    case("transposed-table", 6, 8, (4, 5), "float16", layout={"weight": {"order": (1, 0)}, "dweight": {"order": (1, 0)}})
    case("rows-upside-down", 6, 8, (9,), layout={"weight": {"flip": (0,)}, "dweight": {"flip": (0,)}})
    case("broadcast-indices", 6, 8, (4, 5), layout={"indices": {"expand": (0,)}})
    case("several-slices", 3, 8, (330,), "float16", picked="few", index="int32")
    case("more-rows-than-a-block", 700, 4, (60,))
    if kind is Backward:
        for dtype in SHORT:
            case("padding", 6, 8, (40,), dtype, padding=2)
            case("by-frequency", 5, 8, (40,), dtype, by_frequency=True)
        case("padding-from-the-end", 6, 8, (20,), padding=-1, by_frequency=True)
        case("long-by-frequency", 2, 8, (100,), picked="few", by_frequency=True)
        case("broadcast-gradient", 6, 8, (9,), layout={"dy": {"expand": (0,)}})
    else:
        case("broadcast-row", 6, 8, (9,), layout={"weight": {"expand": (0,)}})
        case("several-turns", 30, 64, (40, 7), "bfloat16")
    return found


def large(kind):
    """Cases for a GPU."""
    found = [(dtype, *numbers) for dtype in SHORT for numbers in (
        (997, 96, (13, 211), "any"), (4, 128, (5000,), "few"), (5001, 33, (70, 11), "any"))]
    found += [("float32", 40, 4, (300000,), "any"), ("bfloat16", 50021, 8, (9000,), "any"), ("float16", 50257, 768, (32,), "any")]
    return [kind(f"{rows}x{columns}-{'x'.join(map(str, positions))}-{SHORT[dtype]}", rows, columns, positions, dtype, picked=picked)
            for dtype, rows, columns, positions, picked in found]
