"""Cases of argreduce: the extreme along an axis, and the first place where it is."""
import math
from dataclasses import dataclass

import numpy as np

from . import coherent, lay, rounded
from .reduce import INTEGERS, NAMES, SHORT, Reduce


@dataclass(frozen=True)
class ArgReduce(Reduce):
    """One call; layouts are keywords of `lay` for "x", "value" and "index"; `axes` is one axis."""
    mode: str = "max"
    op = "argreduce"
    exact = True
    trivial = False

    def outputs(self):
        return {"value": lay(self.result_shape, self.dtype, **self.layout.get("value", {})),
                "index": lay(self.result_shape, "int32", **self.layout.get("index", {}))}

    def problem(self):
        from dnnkern.reduce._problem import make_arg_problem
        t = self._tensors()
        return make_arg_problem((t["x"],), (t["value"], t["index"]), self.mode, self.axes, self.keepdims, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import argreduce
        return argreduce(arrays["x"], self.mode, axis=self.axes, keepdims=self.keepdims, out=out, **tail)

    def values(self, mode):
        """In exact mode integers of which many are the same, the extremes among them; else normal numbers."""
        rng, place = np.random.default_rng(list(self.id.encode())), self.inputs()["x"]
        if self.dtype in INTEGERS:
            x = self._integers(rng, self.length)
        elif mode == "exact":
            top = min(100, max(3, self.length // 2))
            most = rng.integers(top // 2, top + 1, tuple(1 if k == self.axes % len(self.shape) else n for k, n in enumerate(self.shape)))
            x = np.clip(rng.integers(-top, top + 1, self.shape), -most, most)
        else:
            x = rounded(rng.standard_normal(self.shape), self.dtype)
        return {"x": coherent(np.asarray(x, np.float64), place)}

    def reference(self, values, tensor_cores=False):
        x = values["x"]
        index = (np.argmin if self.mode == "min" else np.argmax)(x, axis=self.axes)
        value = np.take_along_axis(x, np.expand_dims(index, self.axes), self.axes).reshape(self.result_shape)
        found = {"value": value, "index": index.reshape(self.result_shape).astype(np.float64)}
        return found, {name: np.zeros(self.result_shape) for name in found}


def _cases():
    def case(name, shape, axis, mode="max", dtype="float32", **more):
        found.append(ArgReduce(f"{name}-{'x'.join(map(str, shape))}-{axis}-{mode}-{NAMES[dtype]}", shape, axis, mode, dtype, **more))

    found = []
    for j, dtype in enumerate(SHORT):
        for k, mode in enumerate(("min", "max")):
            case("rows", (30, 96), 1, mode, dtype)
            case("columns", (24, 40), 0, mode, dtype)
            case("long" if (j + k) % 2 else "long-columns", (1, 4200) if (j + k) % 2 else (4100, 3), (j + k) % 2, mode, dtype)
        case("ragged", (3, 531), 1, "max", dtype, layout={"x": {"misaligned": 3}, "value": {"misaligned": 1}})
        case("ragged-apart", (5, 5, 77), 2, "min", dtype, layout={"x": {"gap": 5}}, keepdims=True)
        case("middle", (3, 10, 16), 1, "max", dtype, layout={"index": {"order": (1, 0)}})
        case("strided", (6, 40), 1, "min", dtype, layout={"x": {"step": 2}, "value": {"step": 2}, "index": {"step": 3}})
        case("negative", (6, 40), 1, "max", dtype, layout={"x": {"flip": (0, 1)}, "value": {"flip": (0,)}})
        case("negative-columns", (40, 8), 0, "max", dtype, layout={"x": {"flip": (0, 1)}, "index": {"flip": (0,)}})
    for n in (1, 2, 3, 7, 8, 31, 33, 64, 257, 1030):
        case("edge", (3, n), 1, "max", "float32" if n % 2 else "bfloat16")
        case("edge", (n, 3), -2, "min", "float16" if n % 2 else "float32")
    case("no-results", (0, 5), 1)
    case("broadcast", (6, 12), 0, "max", "float16", layout={"x": {"expand": (0,)}})
    case("rank-5", (2, 3, 4, 3, 5), 2, "min", "bfloat16", keepdims=True)
    case("wide-columns", (5, 1100), 0, "max", "float32")
    case("long-batches", (2, 4100, 4), 1, "max", "float16")
    case("ragged-long", (2, 4099), 1, "min", "bfloat16")
    for j, dtype in enumerate(INTEGERS):
        for k, mode in enumerate(("min", "max")):
            name, shape, axis = (("rows", (5, 96), 1), ("columns", (24, 48), 0), ("ragged", (3, 67), 1))[(k + j) % 3]
            case(name, shape, axis, mode, dtype)
        case("long", (2, 4200), 1, ("min", "max")[j % 2], dtype)
    return found


CASES = _cases()
LARGE = [ArgReduce(f"{name}-{mode}-{SHORT[dtype]}", shape, axis, mode, dtype)
         for dtype in SHORT for name, shape, axis, mode in (
             ("rows-1025x50257", (1025, 50257), 1, "max"), ("rows-100003x70", (100003, 70), 1, "min"),
             ("columns-5003x4096", (5003, 4096), 0, "max"), ("all-7000003", (7000003,), 0, "min"))]
BEYOND_INT32 = [ArgReduce("2**31-rows-max-bf16", (4097, 2 ** 19 + 1), 1, "max", "bfloat16"),
                ArgReduce("2**31-columns-max-bf16", (2 ** 19 + 1, 4097), 0, "max", "bfloat16")]
"""x has more than 2**31 elements."""


def check_beyond_int32(case, algo, allow):
    """Zeros but for a 1 in each row or column and a later one, which does not count."""
    import torch
    generator, n = torch.Generator("cuda").manual_seed(7), math.prod(case.result_shape)
    x = torch.zeros(case.shape, dtype=torch.bfloat16, device="cuda")
    at = torch.randint(0, case.length - 1, (n,), generator=generator, device="cuda")
    for index in (at, torch.full_like(at, case.length - 1)):
        x.scatter_(case.axes, index.unsqueeze(case.axes), 1)
    value = torch.full((n,), 99, dtype=torch.bfloat16, device="cuda")
    index = torch.full((n,), -1, dtype=torch.int32, device="cuda")
    case.call({"x": x}, (value, index), algo=algo, allow=allow)
    assert bool((value == 1).all()) and torch.equal(index.long(), at), f"{case.id}, {algo}: wrong"
