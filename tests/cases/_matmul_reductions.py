"""Cases of products with reductions of their results, in one kernel; each with its definition."""
from dataclasses import dataclass, replace

from . import ROUNDOFF, rounding_error
from ._matmul_prologues import MadeMatmul
from ._programs import _program, _step
from ._reductions import reduced
from .matmul import Matmul

AXES = {"rows": (-2,), "columns": (-1,), "all": (-2, -1)}


class _Reduced:
    """A product with (mode, over, whether of all matrices, dtype) of its results; they are rounded first with `rounds`."""

    @property
    def _plain(self):
        return super(_Reduced, replace(self, reductions=()))

    @property
    def exact(self):
        return all(mode not in ("norm2", "avg") for mode, *_ in self.reductions) and super().exact

    def _axes(self, over, of_all):
        return (*range(-2 - len(self.batch), -2), *AXES[over]) if of_all else AXES[over]

    def outputs(self):
        places = super().outputs()
        for k, (_, over, of_all, dtype) in enumerate(self.reductions, 1):
            shape, gone = self._y_shape(), self._axes(over, of_all)
            places[f"y{k}"] = self._lay(f"y{k}", tuple(1 if d - len(shape) in gone else n for d, n in enumerate(shape)), dtype)
        return places

    def problem(self):
        from dnnkern.device.program import Program
        from dnnkern.host.tensor import Tensor
        plain = self._plain.problem()
        places = [place for name, place in self.outputs().items() if name != "y"]
        compute = "float64" if self.dtype == "float64" else "float32"
        program = _program((), (_step("identity", 0, compute=compute),))
        steps = [replace(program.steps[0], round_to=self.y_dtype if self.rounds else None)]
        reductions = [(1, mode, over, dtype) for mode, over, _, dtype in self.reductions]
        return replace(plain, program=Program((), steps, (), None, 1, reductions),
                       extras=tuple(Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in places))

    def call(self, arrays, out=None, **tail):
        return self.call_problem(arrays, out, (self.alpha, self.beta), tail)

    def reference(self, values, tensor_cores=False):
        results, tolerance = self._plain.reference(values, tensor_cores)
        for k, (mode, over, of_all, dtype) in enumerate(self.reductions, 1):
            roundoff = ROUNDOFF["float64" if dtype == "float64" else "float32"]
            y, bound = reduced(results["y"], tolerance["y"], mode, self._axes(over, of_all), roundoff)
            results[f"y{k}"], tolerance[f"y{k}"] = y, bound + rounding_error(y, dtype)
        return results, tolerance


@dataclass(frozen=True)
class ReducedMatmul(_Reduced, Matmul):
    """See `_Reduced`."""
    reductions: tuple = ()
    rounds: bool = True


@dataclass(frozen=True)
class ReducedMadeMatmul(_Reduced, MadeMatmul):
    """The same of an operand that is made."""
    reductions: tuple = ()
    rounds: bool = True


GENSTATS = ("add", "rows", False, "float32"), ("sum_square", "rows", False, "float32")
SEVERAL = (("amax", "all", True, "float32"), ("max", "columns", False, "float32"), ("min", "rows", True, "float16"),
           ("norm1", "columns", False, "float32"))
ROUNDING = ("norm2", "rows", False, "float32"), ("avg", "all", False, "float32"), ("norm2", "all", True, "float32")


def reductions():
    """The cases."""
    def case(name, m, n, k, dtype="float16", of=GENSTATS, **more):
        kind = ReducedMadeMatmul if "made_a" in more or "made_b" in more else ReducedMatmul
        return kind(f"reduced-{name}-{m}x{n}x{k}", m, n, k, dtype, reductions=of, **more)
    # tiles reach over both edges, and there are several of them
    yield case("genstats-nt", 70, 45, 24, tb=True)
    yield case("genstats-tn", 70, 133, 8, "bfloat16", ta=True)
    yield case("genstats-whole-tiles", 128, 64, 32)
    yield case("genstats-skinny", 5, 140, 40)
    yield case("genstats-one-row", 1, 67, 24)
    yield case("several-batch3", 70, 13, 16, batch_a=(3,), batch_b=(3,), of=SEVERAL, out_dtype="float32", bias="column")
    yield case("several-batch2x3", 17, 30, 16, "bfloat16", batch_a=(2, 3), batch_b=(3,), of=SEVERAL)
    yield case("several-by-columns", 66, 34, 16, of=SEVERAL, layout={"y": {"order": (1, 0)}})
    yield case("rounding", 40, 75, 32, "bfloat16", of=ROUNDING, out_dtype="float32", rounds=False)
    yield case("strided", 33, 26, 16, of=SEVERAL, layout={"y1": {"gap": 3}, "y2": {"step": 2, "flip": (0,)}, "y3": {"misaligned": 1}})
    yield case("float64", 37, 41, 16, "float64", of=tuple((mode, over, of_all, "float64") for mode, over, of_all, _ in SEVERAL))
    yield case("int8", 40, 33, 32, "int8", of=(("amax", "all", False, "float32"),), out_dtype="float32", tb=True)
    yield case("fp8-amax", 33, 40, 32, of=(("amax", "all", False, "float32"),), out_dtype="float32")
    yield case("made-a", 70, 72, 40, "bfloat16", made_a="scale-bias-relu", tb=True)
    yield case("made-b-several", 40, 70, 24, made_b="scale-bias-relu", of=SEVERAL)
    yield case("tf32", 34, 24, 40, "float32", math="tf32")
