"""Cases of convolutions with reductions of their results, in one kernel; each with its definition."""
from dataclasses import dataclass, replace

from . import ROUNDOFF, lay, rounding_error
from ._conv import SHORT, Conv
from ._conv_prologues import MadeConv
from ._programs import _program, _step
from ._reductions import reduced


class _Reduced:
    """A convolution with (mode, over, dtype) of its results, over pixels ("rows"), channels ("columns") or both; they are rounded first
    with `rounds`."""

    @property
    def exact(self):
        return all(mode not in ("norm2", "avg") for mode, *_ in self.reductions) and super().exact

    def _axes(self, over):
        rank, channel = self.dims + 2, -1 if self.layout == "NHWC" else 1
        channels = {channel % rank}
        return tuple(sorted({"rows": set(range(rank)) - channels, "columns": channels, "all": set(range(rank))}[over]))

    def outputs(self):
        places = super().outputs()
        for k, (_, over, dtype) in enumerate(self.reductions, 1):
            gone = self._axes(over)
            shape = tuple(1 if d in gone else n for d, n in enumerate(self.shape(self.output)))
            places[f"y{k}"] = lay(shape, dtype, **self.lay.get(f"y{k}", {}))
        return places

    def problem(self):
        from dnnkern.device.program import Program
        from dnnkern.host.tensor import Tensor
        steps = _program((), (_step("identity", 0, compute=self.compute),)).steps
        steps = [replace(steps[0], round_to=self.output_dtype if self.rounds else None)]
        places = [place for name, place in self.outputs().items() if name != self.output]
        return replace(super().problem(), program=Program((), steps, (), None, 1, [(1, *how) for how in self.reductions]),
                       extras=tuple(Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in places))

    def call(self, arrays, out=None, **tail):
        return self.call_problem(arrays, out, (self.alpha, self.beta), tail)

    def reference(self, values, tensor_cores=False):
        plain = replace(self, reductions=())
        results, tolerance = super(_Reduced, plain).reference(values, tensor_cores)
        for k, (mode, over, dtype) in enumerate(self.reductions, 1):
            roundoff = ROUNDOFF["float64" if dtype == "float64" else "float32"]
            y, bound = reduced(results[self.output], tolerance[self.output], mode, self._axes(over), roundoff)
            results[f"y{k}"], tolerance[f"y{k}"] = y, bound + rounding_error(y, dtype)
        return results, tolerance


@dataclass(frozen=True)
class ReducedConv(_Reduced, Conv):
    """See `_Reduced`."""
    reductions: tuple = ()
    rounds: bool = True

    gradient = None


@dataclass(frozen=True)
class ReducedMadeConv(_Reduced, MadeConv):
    """The same of an image that is made."""
    reductions: tuple = ()
    rounds: bool = True


GENSTATS = ("add", "rows", "float32"), ("sum_square", "rows", "float32")
SEVERAL = ("amax", "all", "float32"), ("max", "columns", "float32"), ("min", "rows", "float16"), ("norm1", "columns", "float32")
ROUNDING = ("norm2", "rows", "float32"), ("avg", "all", "float32"), ("avg", "columns", "float32")


def reductions(op):
    """The cases of conv_fwd or conv_bwd_data."""
    def case(name, size, k, filter, dtype="float16", layout="NHWC", of=GENSTATS, **more):
        made = ReducedMadeConv if "made" in more else ReducedConv
        text = f"reduced-{name}-{layout.lower()}-{'x'.join(map(str, size))}-k{k}-{'x'.join(map(str, filter))}-{SHORT[dtype]}"
        return made(text, op, size, k, filter, dtype, layout, reductions=of, **more)
    # pixels and channels that fill no tile
    yield case("genstats", (2, 8, 9, 11), 16, (3, 3), padding=1)
    yield case("several", (2, 8, 7, 9), 24, (3, 3), "bfloat16", padding=1, of=SEVERAL)
    if op == "conv_bwd_data":
        yield case("strided", (1, 16, 7, 8), 8, (3, 3), padding=1, stride=2, of=SEVERAL)
        yield case("planes", (2, 5, 4, 5), 7, (3, 3), "float32", "NCHW", padding=1, of=SEVERAL)
        return
    yield case("genstats-1x1", (2, 16, 5, 7), 136, (1, 1), "bfloat16")
    yield case("genstats-one-pixel", (1, 16, 1, 1), 24, (1, 1))
    yield case("rounding", (1, 72, 3, 4), 72, (3, 3), "bfloat16", padding=1, of=ROUNDING, out_dtype="float32", rounds=False, bias=True)
    yield case("several-1x1-strided", (2, 16, 6, 5), 16, (1, 1), stride=2, of=SEVERAL, bias=True)
    yield case("several-groups2", (2, 128, 4, 5), 32, (3, 3), "bfloat16", groups=2, padding=1, of=SEVERAL)
    yield case("several-groups2-1x1", (2, 16, 3, 4), 8, (1, 1), groups=2, of=SEVERAL)
    yield case("genstats-groups2-1x1-planes", (2, 16, 3, 4), 8, (1, 1), layout="NCHW", groups=2)
    yield case("several-planes", (2, 5, 4, 5), 7, (3, 3), "float32", "NCHW", padding=1, of=SEVERAL,
               lay={"y1": {"misaligned": 1}, "y2": {"gap": 3}})
    yield case("several-1x1-planes", (2, 8, 3, 5), 16, (1, 1), layout="NCHW", of=SEVERAL)
    yield case("3d", (1, 16, 3, 4, 5), 16, (2, 3, 3), padding=1, of=SEVERAL, lay={"y2": {"gap": 2}})
    yield case("1d", (2, 16, 21), 8, (3,), padding=1)
    yield case("gaps", (2, 16, 4, 5), 8, (3, 3), lay={"y": {"gap": 8}}, of=SEVERAL, residual=True)
    yield case("float64", (2, 5, 6, 7), 6, (3, 3), "float64", of=tuple((mode, over, "float64") for mode, over, _ in SEVERAL))
    yield case("int8", (2, 16, 5, 6), 24, (3, 3), "int8", padding=1, of=(("amax", "all", "float32"),), out_dtype="float32")
    for filters in (24, 144):  # of 144, whole boxes of 128 columns
        yield case("float8", (2, 16, 5, 6), filters, (3, 3), "float8_e4m3fn", padding=1, of=(("amax", "all", "float32"),),
                   out_dtype="float8_e4m3fn")
    yield case("odd", (1, 16, 4, 5), 10, (3, 3), "bfloat16", padding=1, of=SEVERAL)
    yield case("made", (1, 16, 9, 11), 24, (3, 3), padding=1, made="scale-bias-relu")
    yield case("made-several", (2, 64, 5, 6), 72, (1, 1), "bfloat16", made="scale-bias-relu", of=SEVERAL)
