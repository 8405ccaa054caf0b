"""Cases of batch_norm_merge."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import ROUNDOFF, Case, coherent, lay, rounded, rounding_error


@dataclass(frozen=True)
class Merge(Case):
    """One call on `shape` (parts, channels); `missing` are running statistics that are left out."""
    id: str
    shape: tuple
    dtype: str = "float32"
    count: str = "int32"
    running: str = "float32"
    missing: tuple = ()
    places: dict = field(default_factory=dict, hash=False)
    eps: float = 1e-3
    momentum: float = 0.25
    op, exact = "batch_norm_merge", False

    @property
    def work(self):
        return 40 * math.prod(self.shape)

    @property
    def trivial(self):
        return not math.prod(self.shape)

    def inputs(self):
        def place(name, shape, dtype):
            return None if name in self.missing else lay(shape, dtype, **self.places.get(name, {}))
        channels = self.shape[1:]
        return {"means": place("means", self.shape, self.dtype), "rstds": place("rstds", self.shape, self.dtype),
                "counts": place("counts", self.shape[:1], self.count), "running_mean": place("running_mean", channels, self.running),
                "running_var": place("running_var", channels, self.running)}

    def outputs(self):
        found = {name: lay(self.shape[1:], self.dtype, **self.places.get(name, {})) for name in ("mean", "var", "rstd")}
        return {**found, **{name: self.inputs()[name.removeprefix("next_")] for name in self.in_place()}}

    def in_place(self):
        return {f"next_{name}": name for name in ("running_mean", "running_var") if name not in self.missing}

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.norm._parts_problem import make_merge

        def tensor(p):
            return None if p is None else Tensor(p.shape, p.strides, p.dtype, p.alignment)
        outs = tuple(tensor(p) for name, p in self.outputs().items() if not name.startswith("next"))
        return make_merge(tuple(map(tensor, self.inputs().values())), outs, frozenset())

    def call(self, arrays, out=None, **tail):
        import dnnkern
        operands = [arrays[name] for name in self.inputs()]
        out = out[:3] if isinstance(out, tuple) else out
        return dnnkern.batch_norm_merge(*operands, eps=self.eps, momentum=self.momentum, out=out, **tail)

    def values(self, mode):
        rng, places = np.random.default_rng(list(self.id.encode())), self.inputs()
        found = {"means": rng.standard_normal(self.shape) + 0.5, "rstds": rng.uniform(0.5, 2, self.shape),
                 "counts": rng.integers(0, 50, self.shape[:1]).astype(float), "running_mean": rng.standard_normal(self.shape[1:]),
                 "running_var": rng.uniform(0.5, 2, self.shape[1:])}
        found["counts"][-1] += 2
        if mode == "exact":
            found = {name: np.ceil(np.abs(v)) for name, v in found.items()}
            found["rstds"] = np.ones(self.shape)
        return {name: coherent(rounded(v, places[name].dtype), places[name]) for name, v in found.items() if places[name] is not None}

    def reference(self, values, tensor_cores=False):
        u, counts = ROUNDOFF[self.dtype], values["counts"][:, None]
        total, parts = counts.sum(), self.shape[0]
        mean = (values["means"] * counts).sum(0) / total
        distances = values["rstds"] ** -2.0 - self.eps
        var = ((distances + (values["means"] - mean) ** 2) * counts).sum(0) / total
        shift = (4 * parts + 8) * u * (np.abs(values["means"]) * counts).sum(0) / total
        wide = (8 * parts + 32) * u * ((values["rstds"] ** -2.0 + values["means"] ** 2) * counts).sum(0) / total
        rstd = 1 / np.sqrt(var + self.eps)
        found, errors = {"mean": mean, "var": var, "rstd": rstd}, {"mean": shift, "var": wide, "rstd": wide * rstd ** 3 + 8 * u * rstd}
        now, off = {"mean": mean, "var": var * total / max(1, total - 1)}, {"mean": shift, "var": 2 * wide}
        for end in ("mean", "var"):
            if f"running_{end}" in values:
                old, name = values[f"running_{end}"], f"next_running_{end}"
                found[name] = (1 - self.momentum) * old + self.momentum * now[end]
                errors[name] = off[end] + 8 * u * (np.abs(old) + np.abs(now[end]))
        return found, {name: errors[name] + rounding_error(v, self.outputs()[name].dtype) for name, v in found.items()}


BOTH = ("running_mean", "running_var")
CASES = [Merge("two-parts", (2, 40)), Merge("eight-parts", (8, 33), count="int64"), Merge("double", (3, 20), "float64", running="float64"),
         Merge("float-counts", (4, 17), count="float32"), Merge("nothing-runs", (5, 24), missing=BOTH), Merge("one-part", (1, 16)),
         Merge("mean-runs", (3, 21), missing=BOTH[1:], running="bfloat16"), Merge("halves-run", (3, 130), running="float16"),
         Merge("strided", (4, 16), places={"means": {"order": (1, 0)}, "rstds": {"gap": 3}, "counts": {"step": 2}, "mean": {"step": 2},
                                           "rstd": {"flip": (0,)}, "running_var": {"step": 3}}),
         Merge("double-counts", (2, 18), "float64", count="float64", missing=BOTH), Merge("no-channels", (2, 0))]
LARGE = [Merge("64x4096", (64, 4096)), Merge("8x2048", (8, 2048), "float64", running="float64")]
