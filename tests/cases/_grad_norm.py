"""Cases of the norm of gradients, and of clipping to one."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import ROUNDOFF, Case, coherent, lay, rounded, rounding_error

SHORT = {"float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


@dataclass(frozen=True)
class Norm(Case):
    """One call; layouts are keywords of `lay` by operand."""
    id: str
    op: str
    shapes: tuple
    dtypes: tuple = ("float32",)
    max_norm: float = 1.5
    scale: float | None = None
    reports: bool = False
    layout: dict = field(default_factory=dict, hash=False)
    exact = False

    @property
    def trivial(self):
        return not self.max_norm

    @property
    def clips(self):
        return self.op == "clip_grad_norm"

    def dtype(self, k):
        return self.dtypes[k % len(self.dtypes)]

    @property
    def norm_dtype(self):
        return "float64" if self.dtype(0) == "float64" else "float32"

    def places(self):
        return {f"grads{k}": lay(shape, self.dtype(k), **self.layout.get(f"grads{k}", {})) for k, shape in enumerate(self.shapes)}

    def inputs(self):
        return {**self.places(), **({"grad_scale": lay((1,), "float32")} if self.scale else {})}

    def outputs(self):
        return {"norm": lay((), self.norm_dtype), **({"found_inf": lay((1,), "float32")} if self.reports else {}),
                **({f"new_{name}": place for name, place in self.places().items()} if self.clips else {})}

    def in_place(self):
        return {f"new_{name}": name for name in self.places()} if self.clips else {}

    @property
    def work(self):
        """What a thread does, for each of the results: it has sixteen elements and more, however few results there are."""
        return 400 * sum(p.size for p in self.outputs().values())

    def problem(self):
        from dnnkern.host.tensor import Tensor
        from dnnkern.optim._norm_problem import make_norm
        tensors = {name: Tensor(p.shape, p.strides, p.dtype, p.alignment) for name, p in (*self.inputs().items(), *self.outputs().items())}
        singles = {"out": tensors["norm"], "grad_scale": tensors.get("grad_scale"), "found_inf": tensors.get("found_inf")}
        return make_norm(self.op, {"grads": tuple(tensors[name] for name in self.places())}, singles)

    def call(self, arrays, out=None, **tail):
        import dnnkern
        given, results = [arrays[name] for name in self.places()], out if isinstance(out, tuple) else (out,)
        more = {"grad_scale": arrays.get("grad_scale"), "found_inf": results[1] if self.reports else None, "out": results[0], **tail}
        if self.clips:
            dnnkern.clip_grad_norm(given, self.max_norm, **more)
        else:
            dnnkern.grad_norm(given, **more)
        return out

    def values(self, mode):
        found = {}
        for name, place in self.places().items():
            rng = np.random.default_rng([*self.id.encode(), *name.encode()])
            x = rng.integers(-4, 5, place.shape) if mode == "exact" else rounded(rng.standard_normal(place.shape) + 0.25, place.dtype)
            found[name] = coherent(np.asarray(x, np.float64), place)
        return {**found, **({"grad_scale": np.full(1, self.scale)} if self.scale else {})}

    def reference(self, values, tensor_cores=False):
        """The bound of a sum of squares holds for any order; not a number is written where one is expected."""
        grads = [values[name] / (self.scale or 1) for name in self.places()]
        unit = ROUNDOFF["float64" if "float64" in self.dtypes else "float32"]
        count = sum(g.size for g in grads)
        norm = np.sqrt(sum((g ** 2).sum() for g in grads))
        part = 1.0 if norm + 1e-6 <= self.max_norm else self.max_norm / (norm + 1e-6)
        error = (min(count, 8 * count ** 0.5 + 8) + 16) * unit + ROUNDOFF[self.norm_dtype]
        reference = {"norm": np.asarray(norm, np.float64)}
        bound = {"norm": error * norm + rounding_error(reference["norm"], self.norm_dtype)}
        if self.reports:
            reference["found_inf"] = bound["found_inf"] = np.zeros(1)
        if self.clips:
            for name, g in zip(self.places(), grads):
                reference[f"new_{name}"] = part * g
                bound[f"new_{name}"] = error * np.abs(part * g) + rounding_error(part * g, self.places()[name].dtype)
        return reference, bound


def table(op):
    """The cases of an operation."""
    def case(name, shapes, dtypes="float32", **more):
        dtypes = (dtypes,) if isinstance(dtypes, str) else dtypes
        found.append(Norm(f"{name}-{SHORT[dtypes[0]]}", op, shapes, dtypes, **more))

    found, sizes = [], ((5, 7), (4200,), (1,), (0,), (2, 3, 4), (64,))
    for dtype in SHORT:
        case("lists", sizes, dtype)
        case("misaligned", ((33,), (6, 8), (5000,)), dtype, layout={"grads0": {"misaligned": 1}, "grads2": {"misaligned": 3}})
        case("scaled", ((40,), (4096,)), dtype, scale=4.0, reports=True)
    case("mixed", ((40,), (33,), (4097,), (17,), (8,)), ("float32", "bfloat16", "float16", "float32"), reports=True)
    case("mixed-with-double", ((40,), (33,), (20,)), ("float32", "float64", "bfloat16"))
    case("chunks", ((4095,), (4096,), (4097,)))
    case("within", ((50,), (9,)), max_norm=100.0)
    case("within-scaled", ((50,), (9,)), "bfloat16", max_norm=math.inf, scale=8.0, reports=True)
    case("to-nothing", ((50,), (9,)), max_norm=0.0)
    case("scalars", ((), (1,), ()))
    case("nothing", ((0,), (4, 0)), reports=True)
    case("transposed", ((12, 20), (30,)), layout={"grads0": {"order": (1, 0)}})
    case("strided", ((6, 18), (50,)), "bfloat16", layout={"grads0": {"gap": 3}, "grads1": {"step": 2}})
    case("backwards", ((6, 18), (5,)), layout={"grads0": {"flip": (0, 1)}})
    if op == "grad_norm":
        case("broadcast", ((6, 18), (30,)), layout={"grads0": {"expand": (0,)}})
    return found


def large(op):
    """GPU: lists as networks have them."""
    sizes = ((64, 3, 7, 7), (64,), (256, 64), (512, 512, 3, 3), (1000, 2048), (1000,), (100003,)) + ((128,), (128, 128)) * 40
    return [Norm(f"network-{SHORT[d]}", op, sizes, (d,), scale=2.0, reports=True) for d in ("float32", "bfloat16")]


def beyond(op):
    """GPU: an array of more than 2**31 elements."""
    return [Norm("2**31-bf16", op, ((2 ** 31 + 4096, ), (7,)), ("bfloat16",))]


def check_beyond_int32(case, algo, allow):
    """All elements are alike."""
    import torch
    arrays = {name: torch.full(place.shape, 2.0, dtype=torch.bfloat16, device="cuda") for name, place in case.places().items()}
    norm = torch.empty((), device="cuda")
    case.call(arrays, norm, algo=algo, allow=allow)
    want = 2 * sum(a.numel() for a in arrays.values()) ** 0.5
    assert abs(float(norm) / want - 1) < 1e-4, f"{case.id}, {algo}: {float(norm)}, expected {want}"
    if case.clips:
        expected = torch.tensor(2.0 * case.max_norm / want).to(torch.bfloat16).item()
        for name, a in arrays.items():
            assert bool((a == a[0]).all()) and abs(a[0].item() / expected - 1) < 0.02, f"{case.id}, {algo}: {name}"
