"""Cases of pooling with a program of its result."""
from dataclasses import dataclass, replace

import numpy as np

from . import lay, rounding_error
from ._pool import Pool
from ._programs import PROGRAMS
from .transpose import SHORT


@dataclass(frozen=True)
class Programmed(Pool):
    """One problem, which no public function makes; columns are the channels. `to`: the result's dtype where it is another."""
    program: str = "chain"
    to: str = None

    @property
    def fused(self):
        return PROGRAMS[self.program]

    @property
    def wide(self):
        return "float64" if self.dtype == "float64" else "float32"

    @property
    def exact(self):
        return self.fused.exact and super().exact

    def _extras(self):
        shape = self._ordered(self.y_sizes)
        column = self._ordered((1, self.shape[1], *(1,) * self.dims))
        row = tuple(1 if m > 1 else n for n, m in zip(shape, column))
        places = self.fused.places(self.to or self.dtype, {"scalar": (1,), "column": column, "matrix": shape, "row": row}.get)
        return {name: lay(tuple(of), dtype, **self.place.get(name, {})) for name, (dtype, of) in places.items()}

    def _places(self):
        places = super()._places()
        if self.to:
            places["y"] = lay(places["y"].shape, self.to, **self.place.get("y", {}))
        return places

    def inputs(self):
        return super().inputs() | self._extras()

    def outputs(self):
        sides = {f"y{k}": lay(self._ordered(self.y_sizes), self.fused.side_dtype(self.wide)) for k in range(1, self.fused.sides + 1)}
        return super().outputs() | sides

    def problem(self):
        from dnnkern.host.tensor import Tensor

        def tensor(p):
            return Tensor(p.shape, p.strides, p.dtype, p.alignment)
        plain = replace(self, to=None).plain_problem()
        tensors = {name: tensor(p) for name, p in self._extras().items()}
        sides = [tensor(p) for name, p in self.outputs().items() if name[1:].isdecimal()]
        program, extras = self.fused.problem_parts(self.wide, self.to or self.dtype, tensors, sides, plain.y.shape)
        return replace(plain, y=tensor(self.outputs()["y"]), program=program, extras=extras)

    def plain_problem(self):
        """Without the program."""
        return Pool.problem(self)

    def call(self, arrays, out=None, **tail):
        return self.call_problem(arrays, out, self.fused.numbers, tail)

    def values(self, mode):
        rng = np.random.default_rng([9, *self.id.encode()])
        more = (self.fused.exact_values if mode == "exact" else self.fused.float_values)(rng, self._extras())
        return super().values(mode) | more

    def reference(self, values, tensor_cores=False):
        unit, dtype = 2.0 ** -53 if self.dtype == "float64" else 2.0 ** -24, self.to or self.dtype
        found, bounds = super().reference(values)
        acc = found["y"]
        bound = bounds["y"] - (0 if self.is_max else rounding_error(acc, self.dtype)) + unit * np.abs(acc)  # rounded after the program
        (y, bound), sides = self.fused.reference(acc, bound, values, unit)
        found["y"], bounds["y"] = y, bound + rounding_error(y, dtype)
        for k, (value, error) in enumerate(sides, 1):
            found[f"y{k}"], bounds[f"y{k}"] = value, error + rounding_error(value, self.fused.side_dtype(self.wide))
        return found, bounds


def program_cases(op):
    """Of a forward operation."""
    def case(name, program, shape, window, dtype="float32", **more):
        for layout in ("NCHW", "NHWC"):
            found.append(Programmed(op, f"program-{program}-{name}-{layout}-{SHORT[dtype]}", shape, window, dtype, layout=layout,
                                    program=program, **more))

    found = []
    for k, program in enumerate(("bias-gelu", "two-inputs", "chain")):
        case("3x3-s2-p1", program, (2, 16, 7, 6), 3, ("bfloat16", "float16", "float32")[k], stride=2, padding=1)
        case("2x2", program, (2, 3, 5, 4), 2, "float32", index=None if k else "int32")
    case("f64", "two-inputs", (2, 6, 6, 8), 2, "float64")
    case("to-f32", "chain", (1, 8, 4, 6), 2, "bfloat16", to="float32")
    case("3d", "chain", (1, 8, 3, 4, 5), 2, "bfloat16", stride=1)
    case("misaligned", "two-inputs", (1, 16, 4, 6), 2, "bfloat16", place={x: {"misaligned": 1} for x in ("x", "y", "x0", "x1")})
    return found
