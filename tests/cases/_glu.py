"""Cases of gated linear units."""
import math
from dataclasses import dataclass

import numpy as np
from activations import ACTIVATIONS, SLOPES

from ._pointwise import FLOATS, SHORT, Pointwise, tail_error


@dataclass(frozen=True)
class Glu(Pointwise):
    """`shape` is x's, `mode` the gate."""
    axis: int = -1
    op: str = "glu_fwd"
    exact = False

    @property
    def half(self):
        axis = self.axis % len(self.shape)
        return tuple(n // 2 if k == axis else n for k, n in enumerate(self.shape))

    def problem(self):
        from dnnkern.act._glu import make_glu
        tensors, out = self.tensors()
        return make_glu(self.op, tensors, out, self.axis, self.mode, frozenset())

    def values(self, mode):
        return {name: self.random(mode, name, p) for name, p in self.inputs().items()}

    def call(self, arrays, out=None, **tail):
        import dnnkern
        return getattr(dnnkern, self.op)(*arrays.values(), axis=self.axis, gate=self.mode, out=out, **tail)

    def halves(self, x):
        """The two halves of an array of x's shape."""
        return np.split(x, 2, self.axis)


class Forward(Glu):
    """``y = value * f(gate)``"""

    @property
    def result(self):
        return "y", self.half, self.dtype

    def inputs(self):
        return {"x": self.place("x", self.shape, self.dtype)}

    def reference(self, values, tensor_cores=False):
        value, gate = self.halves(values["x"])
        y = value * ACTIVATIONS[self.mode][0](gate)
        tail = np.minimum(np.abs(gate), 1e4) * tail_error(self.mode, self.dtype, gate)
        return self.bounded(y, np.abs(value) * (16 * (1 + np.abs(gate)) + tail) + 2 * np.abs(y))


class Backward(Glu):
    """dx"""

    @property
    def result(self):
        return "dx", self.shape, self.dtype

    def inputs(self):
        return {"dy": self.place("dy", self.half, self.dtype), "x": self.place("x", self.shape, self.dtype)}

    def reference(self, values, tensor_cores=False):
        dy, (value, gate) = values["dy"], self.halves(values["x"])
        dx = np.concatenate((dy * ACTIVATIONS[self.mode][0](gate), dy * value * SLOPES[self.mode](gate)), self.axis)
        tail = tail_error(self.mode, self.dtype, gate, gradient=True)
        error = np.concatenate((np.abs(dy) * (32 + 32 * np.abs(gate) + tail * np.minimum(np.abs(gate), 1e4)),
                                np.abs(dy * value) * (64 + 32 * np.abs(gate) + tail)), self.axis)
        return self.bounded(dx, error + 2 * np.abs(dx))

    def gradient(self, values):
        """Against central differences of the forward's definition."""
        dy, (value, gate), step = values["dy"], self.halves(values["x"]), 1e-6
        function = ACTIVATIONS[self.mode][0]

        def forward(v, g):
            return v * function(g)
        numeric = np.concatenate((dy * (forward(value + step, gate) - forward(value - step, gate)) / (2 * step),
                                  dy * (forward(value, gate + step) - forward(value, gate - step)) / (2 * step)), self.axis)
        analytic = self.reference(values)[0]["dx"]
        return [(analytic, numeric, 1e-7 * (1 + np.abs(numeric)))]


def cases(kind, op):
    """All cases of one direction."""
    def case(name, shape, dtype, gate, **more):
        found.append(kind(f"{name}-{gate}-{SHORT[dtype]}", shape, dtype, gate, op=op, **more))

    found = []
    for k, (name, shape, axis, layout) in enumerate((
            ("rows-6x48", (6, 48), -1, {}), ("rows-odd-5x38", (5, 38), 1, {}), ("vector-102", (102,), 0, {}),
            ("first-4x24", (4, 24), 0, {}), ("first-odd-6x7", (6, 7), 0, {}), ("channels-2x6x20", (2, 6, 20), 1, {}),
            ("channels-odd-2x6x9", (2, 6, 9), -2, {}),
            ("two-5x2", (5, 2), -1, {}), ("strided-4x20", (4, 20), -1, {"x": {"gap": 4}, "y": {"gap": 2}}),
            ("step-4x12", (4, 12), -1, {"x": {"step": 2}}), ("negative-4x12", (4, 12), -1, {"x": {"flip": (0, 1)}, "y": {"flip": (0,)}}),
            ("misaligned-4x32", (4, 32), -1, {"x": {"misaligned": 1}, "dy": {"misaligned": 3}, "y": {"misaligned": 1}}),
            ("transposed-8x12", (8, 12), -1, {"x": {"order": (1, 0)}}),
            ("alike-8x12", (8, 12), 1, {n: {"order": (1, 0)} for n in ("x", "dy", "y", "dx")}),
            ("long-2x512", (2, 512), -1, {}))):
        layout = {**layout, "dx": layout["y"]} if "y" in layout and op == "glu_bwd" else layout
        for j, gate in enumerate(("sigmoid", "swish", "gelu")[k % 3:][:2] or ("sigmoid",)):
            case(name, shape, FLOATS[(k + j) % 4], gate, axis=axis, layout=layout)
        case(name, shape, "bfloat16" if k % 2 else "float32", "swish", axis=axis, layout=layout)
    case("empty-0x6", (0, 6), "float32", "gelu")
    case("empty-4x0", (4, 0), "float32", "swish")
    return list({c.id: c for c in found}.values())


def large(kind, op):
    """For a GPU."""
    return [kind(f"{name}-{gate}-{SHORT[dtype]}", shape, dtype, gate, op=op, axis=axis)
            for name, shape, axis in (("1000x2056", (1000, 2056), -1), ("64x128x777", (64, 128, 777), 1))
            for gate, dtype in (("sigmoid", "float32"), ("swish", "bfloat16"), ("gelu", "float16")) if math.prod(shape)]
