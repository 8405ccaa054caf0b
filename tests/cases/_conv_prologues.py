"""Cases of convolutions whose kernels make their image: programs of what lies in memory, padding zero after them."""
from dataclasses import dataclass, fields, replace

import numpy as np

from . import RANGE, coherent, lay, rounded
from ._conv import Conv
from ._prologues import PROLOGUES


@dataclass(frozen=True)
class MadeConv(Conv):
    """A convolution of an image that is made: `made` is a name of `PROLOGUES`, whose columns are channels."""
    made: str = "cast"

    exact = False

    def values(self, mode):
        return super().values("float")

    @property
    def prologue(self):
        return PROLOGUES[self.made]

    @property
    def made_names(self):
        return self.prologue.names("a")

    def inputs(self):
        places, shape, last = super().inputs(), self.shape("x"), self.layout == "NHWC"
        channels = (shape[-1],) if last else (shape[1], *(1,) * self.dims)
        row = (*shape[:-1], 1) if last else (shape[0], 1, *shape[2:])
        shapes = {"scalar": (1,), "column": channels, "row": row, "matrix": shape}
        places["x"] = lay(shape, self.prologue.source, **self.lay.get("x", {}))
        for name, (dtype, by) in zip(self.made_names, self.prologue.operands):
            places[name] = lay(shapes[by], dtype, **self.lay.get(name, {}))
        return places

    def problem(self):
        from dnnkern.engine.prologues import Prologue
        from dnnkern.host.tensor import Tensor
        places = self.inputs()
        plain = Conv(**{f.name: getattr(self, f.name) for f in fields(Conv)}).problem()
        x, *extras = (Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in (places[name] for name in ("x", *self.made_names)))
        program = self.prologue.make([dtype for dtype, _ in self.prologue.operands])
        return replace(plain, x=x, prologue_a=Prologue(program, self.dtype, extras))

    def call(self, arrays, out=None, **tail):
        return self.call_problem(arrays, out, (self.alpha, self.beta, *(self.fused.numbers if self.fused else ())), tail)

    def _float_values(self, rng):
        values, places = super()._float_values(rng), self.inputs()
        for name, (_, by) in zip(self.made_names, self.prologue.operands):
            is_factor = by != "matrix" and name.endswith("0")  # a power of two, so that only the addition rounds
            x = 2.0 ** rng.integers(-1, 2, places[name].shape) if is_factor else rng.standard_normal(places[name].shape)
            values[name] = coherent(rounded(x, places[name].dtype), places[name])
        if self.prologue.source in RANGE:
            values["x"] = np.clip(values["x"], -40, 40)
        return values

    def reference(self, values, tensor_cores=False):
        made = self.prologue.value(values["x"], [values[name] for name in self.made_names])
        return super().reference({**values, "x": rounded(made.astype(np.float64), self.dtype)}, tensor_cores)


def prologues_of_filters():
    """The cases of conv_bwd_filter."""
    def case(name, size, k, filter, dtype="bfloat16", layout="NHWC", **more):
        text = f"prologue-{name}-{layout.lower()}-{'x'.join(map(str, size))}-k{k}-{'x'.join(map(str, filter))}"
        return MadeConv(text, "conv_bwd_filter", size, k, filter, dtype, layout, **more)
    # pixels of two images share a stage, and the last ends within one
    yield case("scale-bias-relu", (3, 8, 5, 6), 8, (3, 3), padding=1, made="scale-bias-relu", out_dtype="float32")
    yield case("scale-bias-relu", (1, 72, 3, 4), 8, (3, 2), padding=((1, 0), (2, 1)), made="scale-bias-relu", beta=1.0)
    yield case("scale-bias-relu-strided", (1, 16, 9, 6), 8, (3, 2), padding=(1, 2), stride=(2, 1), dilation=(1, 2), made="scale-bias-relu")
    yield case("scale-bias-relu", (2, 32, 7, 9), 8, (1, 1), "float16", made="scale-bias-relu")
    yield case("scale-bias-relu", (1, 8, 3, 4, 3), 8, (2, 3, 2), padding=1, made="scale-bias-relu")
    yield case("scale-bias-relu", (1, 24, 9), 8, (3,), padding=2, made="scale-bias-relu")
    yield case("scale-bias-relu-flipped", (1, 16, 5, 5), 8, (3, 3), padding=1, mode="convolution", made="scale-bias-relu")
    yield case("scale-bias-relu", (1, 8, 4, 5), 8, (3, 3), layout="NCHW", padding=1, made="scale-bias-relu")
    yield case("scale-bias-relu-odd", (1, 13, 4, 4), 8, (3, 3), padding=1, made="scale-bias-relu", out_dtype="float32")
    yield case("scale-bias-relu-groups2", (1, 16, 4, 4), 8, (3, 3), padding=1, groups=2, made="scale-bias-relu")
    yield case("matrix-rows", (1, 8, 4, 4), 8, (3, 3), padding=1, made="matrix-rows", out_dtype="float32")


def prologues():
    """The cases of conv_fwd."""
    def case(name, size, k, filter, dtype="bfloat16", layout="NHWC", **more):
        text = f"prologue-{name}-{layout.lower()}-{'x'.join(map(str, size))}-k{k}-{'x'.join(map(str, filter))}"
        return MadeConv(text, "conv_fwd", size, k, filter, dtype, layout, **more)
    # scale, bias, ReLU of zero is not zero: padding tells
    yield case("scale-bias-relu", (2, 16, 5, 6), 24, (3, 3), padding=1, made="scale-bias-relu")
    yield case("scale-bias-relu", (1, 72, 4, 5), 16, (3, 3), padding=((1, 0), (2, 1)), made="scale-bias-relu", out_dtype="float32")
    yield case("scale-bias-relu-strided", (1, 64, 7, 6), 8, (3, 2), padding=(1, 2), stride=(2, 1), dilation=(1, 2), made="scale-bias-relu")
    yield case("scale-bias-relu", (2, 32, 4, 4), 16, (1, 1), made="scale-bias-relu", bias=True, activation="relu")
    yield case("scale-bias-relu", (1, 8, 3, 4, 3), 8, (2, 3, 2), padding=1, made="scale-bias-relu")
    yield case("scale-bias-relu", (1, 24, 9), 8, (3,), padding=2, made="scale-bias-relu")
    yield case("scale-bias-relu", (1, 8, 4, 5), 8, (3, 3), layout="NCHW", padding=1, made="scale-bias-relu")
    yield case("scale-bias-relu-program", (2, 16, 4, 4), 16, (3, 3), padding=1, made="scale-bias-relu", program="chain")
    yield case("scale-bias-relu-odd", (1, 13, 4, 4), 8, (3, 3), padding=1, made="scale-bias-relu", out_dtype="float32")
    yield case("cast", (1, 64, 4, 4), 16, (3, 3), "float16", padding=1, made="cast")
    yield case("scale-bias-relu-groups2", (1, 16, 4, 4), 8, (3, 3), padding=1, groups=2, made="scale-bias-relu")
    yield case("matrix-rows", (1, 8, 4, 4), 8, (3, 3), padding=1, made="matrix-rows", out_dtype="float32")
