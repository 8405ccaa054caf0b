"""Cases of products whose kernels make their operands: each a program of what lies in memory, with its definition."""
from dataclasses import dataclass, fields, replace

import numpy as np

from . import RANGE, coherent, rounded
from ._prologues import PROLOGUES
from .matmul import Matmul


@dataclass(frozen=True)
class MadeMatmul(Matmul):
    """A product of operands that are made: `made_a`, `made_b` are names of `PROLOGUES`."""
    made_a: str | None = None
    made_b: str | None = None

    exact = False

    def values(self, mode):
        return super().values("float")

    @property
    def made(self):
        return {of: PROLOGUES[name] for of, name in (("a", self.made_a), ("b", self.made_b)) if name}

    def inputs(self):
        places = super().inputs()
        for of, made in self.made.items():
            shape, swapped = places[of].shape, self.ta if of == "a" else self.tb
            places[of] = self._lay(of, shape, made.source)
            for name, (dtype, by) in zip(made.names(of), made.operands):
                lead, (m, n) = (1,) * (len(shape) - 2) if by != "matrix" else shape[:-2], shape[-2:][::-1] if swapped else shape[-2:]
                matrix = {"scalar": (1, 1), "row": (m, 1), "column": (1, n), "matrix": (m, n)}.get(by)
                if matrix is not None:
                    places[name] = self._lay(name, (*lead, *(matrix[::-1] if swapped else matrix)), dtype)
        return places

    def problem(self):
        from dnnkern.engine.prologues import Prologue
        from dnnkern.host.tensor import Tensor

        def tensor(p):
            return p and Tensor(p.shape, p.strides, p.dtype, p.alignment)
        places, more = self.inputs(), {}
        plain = Matmul(**{f.name: getattr(self, f.name) for f in fields(Matmul)}).problem()
        for of, made in self.made.items():
            shape, swapped = places[of].shape, self.ta if of == "a" else self.tb
            extras = []
            for name, (dtype, by) in zip(made.names(of), made.operands):
                if by.startswith("index"):
                    axis = -2 if (by == "index 0") != swapped else -1
                    extras.append(Tensor(shape, tuple(int(d == len(shape) + axis) for d in range(len(shape))), dtype))
                else:
                    extras.append(tensor(places[name]))
            program = made.make([dtype for dtype, _ in made.operands])
            more |= {of: tensor(places[of]), f"prologue_{of}": Prologue(program, getattr(plain, of).dtype, extras)}
        return replace(plain, **more)

    def call(self, arrays, out=None, **tail):
        return self.call_problem(arrays, out, (self.alpha, self.beta, *(self.fused.numbers if self.fused else ())), tail)

    def _float_values(self, rng):
        values = super()._float_values(rng)
        for of, made in self.made.items():
            for name, (dtype, by) in zip(made.names(of), made.operands):
                if not by.startswith("index"):
                    lies = self.inputs()[name]
                    is_factor = by != "matrix" and name.endswith("0")  # a power of two, so that only the addition rounds
                    x = 2.0 ** rng.integers(-1, 2, lies.shape) if is_factor else rng.standard_normal(lies.shape)
                    values[name] = coherent(rounded(x, dtype), lies)
            if made.source in RANGE:
                values[of] = np.clip(values[of], -40, 40)
            elif self.dtype in RANGE:
                values[of] = coherent(rounded(rng.integers(-40, 41, values[of].shape) + 0.25, made.source), self.inputs()[of])
        return values

    def _matrices(self, values):
        values = dict(values)
        for of, made in self.made.items():
            swapped = self.ta if of == "a" else self.tb
            x, *operands = (np.swapaxes(values[name], -1, -2) if swapped else values[name]
                            for name in (of, *(n for n in made.names(of) if n in values)))
            found = rounded(made.value(x, operands).astype(np.float64), self.dtype if of == "a" else self.dtype_b or self.dtype)
            values[of] = np.swapaxes(found, -1, -2) if swapped else found
        return super()._matrices(values)


def prologues():
    """The cases."""
    def case(name, m, n, k, dtype="bfloat16", **more):
        return MadeMatmul(f"prologue-{name}-{m}x{n}x{k}", m, n, k, dtype, out_dtype=more.pop("out_dtype", "float32"), **more)
    yield case("cast-a", 33, 40, 64, made_a="cast", tb=True)
    yield case("cast-b", 16, 70, 96, made_b="cast", tb=True)
    yield case("cast-b-columns", 9, 33, 37, made_b="cast", bias="column")
    yield case("cast8-both", 20, 24, 40, "float16", made_a="cast8", made_b="cast8", ta=True)
    for ta in (False, True):
        letters = "tn" if ta else "nn"
        yield case(f"scale-bias-relu-{letters}", 40, 24, 48, made_a="scale-bias-relu", ta=ta)
        yield case(f"scale-bias-relu-b-{letters}", 24, 72, 33, "float16", made_b="scale-bias-relu", ta=ta, out_dtype="float16")
        yield case(f"matrix-rows-{letters}", 21, 19, 50, made_a="matrix-rows", ta=ta, tb=True)
        yield case(f"triangle-{letters}", 30, 16, 30, "float16", made_a="triangle", ta=ta)
    yield case("matrix-rows-both-batch3", 17, 18, 24, made_a="matrix-rows", made_b="matrix-rows", batch_a=(3,), batch_b=(3,))
    yield case("scale-bias-relu-batch2x3", 12, 10, 24, made_a="scale-bias-relu", batch_a=(2, 3), batch_b=(3,))
    yield case("scale-bias-relu-long", 5, 8, 1030, made_a="scale-bias-relu", tb=True)
    yield case("cast-b-skinny", 4, 130, 520, made_b="cast", tb=True)
    yield case("scale-bias-relu-tf32", 34, 24, 40, "float32", made_a="scale-bias-relu", math="tf32")
    yield case("scale-bias-relu-program", 24, 40, 32, made_a="scale-bias-relu", program="chain", out_dtype="bfloat16", tb=True)
    # pairs of aligned elements, where a word of the stage takes four
    yield case("rounded-nt", 20, 18, 34, "int8", made_a="rounded", tb=True, out_dtype="int32")
    yield case("rounded-tn", 34, 18, 20, "int8", made_a="rounded", ta=True, out_dtype="int32")
    yield case("rounded-odd", 9, 10, 33, "int8", made_a="rounded", out_dtype="int32")
    yield case("strided", 18, 22, 26, made_a="matrix-rows", layout={"a": {"gap": 5}, "a1": {"order": (1, 0)}, "b": {"step": 2}})
