"""Cases of arrays times a number, and added to others, in place."""
from dataclasses import dataclass

import numpy as np

from ._elementwise import BROADCASTS
from ._pointwise import EMPTY, FLOATS, LAYOUTS, SHORT, Pointwise, over

INTEGERS = ("int8", "uint8", "int32")


@dataclass(frozen=True)
class Scale(Pointwise):
    """``x *= alpha``; with `same` None the result is another array."""
    mode: str = "scale"
    alpha: float = -2.0
    same: str | None = "x"
    op = "scale_tensor"

    def inputs(self):
        return {"x": self.place("x", self.shape, self.dtype)}

    def problem(self):
        from dnnkern.act._scaled import make_scale
        tensors, out = self.tensors()
        return make_scale(tensors, out, self.aliases)

    def values(self, mode):
        return {"x": self.random(mode, "x", self.inputs()["x"])}

    def call(self, arrays, out=None, **tail):
        from dnnkern import scale_tensor
        return scale_tensor(arrays["x"], self.alpha, out=out, **tail)

    @property
    def trivial(self):
        return self.dtype == "uint8"

    def reference(self, values, tensor_cores=False):
        y = self.alpha * values["x"]
        return self.bounded(y, 0 if self.alpha == round(self.alpha) else np.abs(y))


@dataclass(frozen=True)
class Add(Pointwise):
    """``c = alpha * a + beta * c``; `a` is its shape if it is not c's."""
    mode: str = "add"
    a: tuple | None = None
    alpha: float = 2.0
    beta: float = -3.0
    same: str | None = "c"
    op = "add_tensor"

    def inputs(self):
        return {"a": self.place("a", self.shape if self.a is None else self.a, self.dtype), "c": self.place("c", self.shape, self.dtype)}

    def problem(self):
        from dnnkern.act._scaled import make_add
        tensors, out = self.tensors()
        return make_add(tensors, out, self.beta != 0, self.aliases)

    def values(self, mode):
        return {name: self.random(mode, name, place) for name, place in self.inputs().items()}

    def call(self, arrays, out=None, **tail):
        from dnnkern import add_tensor
        return add_tensor(arrays["a"], arrays["c"], alpha=self.alpha, beta=self.beta, out=out, **tail)

    @property
    def trivial(self):
        return self.dtype == "uint8"

    def reference(self, values, tensor_cores=False):
        a, c = self.alpha * np.broadcast_to(values["a"], self.shape), self.beta * values["c"]
        return self.bounded(a + c, 2 * (np.abs(a) + np.abs(c)))


def scale_cases():
    """All cases of scale_tensor."""
    def case(name, shape, dtype, **more):
        found.append(Scale(f"{name}-{SHORT[dtype]}", shape, dtype, **more))

    found = []
    for name, shape, layout, dtype in over(LAYOUTS, FLOATS):
        if not any("expand" in some for some in layout.values()):
            case(name, shape, dtype, layout=layout)
    for dtype in (*FLOATS, *INTEGERS):
        case("vector-101", (101,), dtype, alpha=2.0 if dtype in INTEGERS else 3.0)
        case("elsewhere-7x18", (7, 18), dtype, same=None, layout={"x": {"gap": 1}})
    case("saturating-7x34", (7, 34), "int8", alpha=60.0)
    case("broadcast-elsewhere-6x20", (6, 20), "float32", same=None, layout={"x": {"expand": (0,)}})
    for name, (shape, layout) in EMPTY.items():
        case(name, shape, "float32")
    return list({c.id: c for c in found}.values())


def add_cases():
    """All cases of add_tensor."""
    def case(name, shape, dtype, **more):
        found.append(Add(f"{name}-{SHORT[dtype]}", shape, dtype, **more))

    found = []
    for k, (name, (shape, _, b, layout)) in enumerate(BROADCASTS.items()):
        layout = {{"b": "a", "a": "c"}.get(n, n): how for n, how in layout.items()}
        for j in range(2):
            case(f"{name}-{('', 'elsewhere-')[j]}{k}", shape, FLOATS[(k + 2 * j) % 4], a=b, layout=layout, same=(None if j else "c"))
    for dtype in (*FLOATS, *INTEGERS):
        case("vector-101", (101,), dtype)
        case("overwrite-5x24", (5, 24), dtype, a=(24,), beta=0.0)
        case("column-6x37", (6, 37), dtype, a=(6, 1), alpha=1.0, beta=1.0)
    for name, shape, layout, dtype in over(LAYOUTS, FLOATS):
        if not any("expand" in some for some in layout.values()):
            case(f"layout-{name}", shape, dtype, layout={{"x": "a"}.get(n, n): how for n, how in layout.items() if n != "dy"})
    for name, (shape, layout) in EMPTY.items():
        case(name, shape, "float32", a=(1,))
    return list({c.id: c for c in found}.values())


LARGE_SCALE = [Scale(f"{name}-{SHORT[dtype]}", shape, dtype) for dtype in ("bfloat16", "float32", "float64", "int8")
               for name, shape in (("1000003", (1000003,)), ("1023x1025", (1023, 1025)))]
LARGE_ADD = [Add(f"{name}-{SHORT[dtype]}", shape, dtype, a=a) for dtype in ("bfloat16", "float32", "float16")
             for name, shape, a in (("1000003", (1000003,), None), ("row-1023x1025", (1023, 1025), (1025,)),
                                    ("channels-16x64x3136", (16, 64, 3136), (64, 1)), ("channels-16x64x49", (16, 64, 49), (64, 1)))]
