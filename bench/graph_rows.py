"""Graphs of reductions among pointwise nodes: softmax and the norms spelled out of nodes, beside the family's own kernel; chains of 3, 6
and 10 functions that end in a reduction; rows scaled by their largest magnitude and cast.

``python -m dnnkern bench graph --only reduction``
"""
import functools
import math
from dataclasses import dataclass

from dnnkern.host.dtypes import ITEMSIZE

from .graph_build import Making

EPSILON = 1e-5


# ---- what is computed, of tensors of a graph or of PyTorch

def softmax(do, x):
    e = do("exp", do("sub", x, do.row("MAX", x)))
    return do("div", e, do.row("ADD", e))


def rms_norm(do, x, gamma):
    rstd = do("rsqrt", do("add", do.row("AVG", do("mul", x, x)), do.number(EPSILON)))
    return do("mul", do("mul", x, rstd), gamma)


def layer_norm(do, x, gamma, beta):
    d = do("sub", x, do.row("AVG", x))
    rstd = do("rsqrt", do("add", do.row("AVG", do("mul", d, d)), do.number(EPSILON)))
    return do("add", do("mul", do("mul", d, rstd), gamma), beta)


def scaled(do, x):
    return do("div", do("mul", x, do.number(448.0)), do.row("AMAX", x))


def _three(do, x, a, b):
    return do("relu", do("add", do("mul", x, a), b))


def _six(do, x, a, b):
    y = do("mul", do("gelu", do("add", do("mul", x, a), b)), do.number(0.5))
    return do("sigmoid", do("add", y, b))


def _ten(do, x, a, b):
    y = do("add", do("mul", do("relu", do("add", do("mul", x, a), b)), b), do.number(0.5))
    return do("sqrt", do("abs", do("add", do("mul", do("swish", y), do.number(0.25)), b)))


def _summed(chain, do, x, a, b):
    return do.row("ADD", chain(do, x, a, b))


def _centred(chain, do, x, a, b):
    y = chain(do, x, a, b)
    return do("sub", y, do.row("AVG", y))


FORMULAS = {"softmax": softmax, "rms_norm": rms_norm, "layer_norm": layer_norm, "scaled": scaled,
            **{f"chain of {n} {name}": functools.partial(end, chain) for n, chain in ((3, _three), (6, _six), (10, _ten))
               for name, end in (("summed", _summed), ("centred", _centred))}}
OWN = "softmax", "rms_norm", "layer_norm"
"""Those of which a family has a kernel of its own."""


class _Torch:
    """The functions, of PyTorch's tensors."""

    def __call__(self, mode, *values):
        import torch
        import torch.nn.functional as F
        return ({"gelu": F.gelu, "swish": F.silu}.get(mode) or getattr(torch, mode))(*values)

    def row(self, mode, v):
        return {"MAX": lambda: v.amax(-1, True), "ADD": lambda: v.sum(-1, True), "AVG": lambda: v.mean(-1, True),
                "AMAX": lambda: v.abs().amax(-1, True)}[mode]()

    def number(self, value):
        return value


class OfGraph:
    """The same, of tensors of a graph."""

    def __init__(self, graph, rows):
        import dnnkern.graph as cudnn
        self.graph, self.rows, self.cudnn = graph, rows, cudnn

    def __call__(self, mode, *values):
        return getattr(self.graph, mode)(*values)

    def row(self, mode, v):
        return self.graph.reduction(v, self.cudnn.reduction_mode[mode]).set_dim([1, self.rows, 1]).set_stride([self.rows, 1, 1])

    def number(self, value):
        return self.graph.tensor_scalar(value, self.cudnn.scalar_type.COMPILE_TIME_CONST)


@dataclass(frozen=True)
class Case:
    """A graph of (rows, length) elements, as `graph.Case`; `dtype` is the result's, `io` the operands'."""
    name: str
    rows: int
    length: int
    io: str
    dtype: str

    @property
    def anchor(self):
        """The family's own operation, if there is one: what `graph` makes of it `alone`."""
        return self.name if self.name in OWN else ""

    @functools.cached_property
    def shapes(self):
        """{name: dims}; the result is "y"."""
        whole, vector = (1, self.rows, self.length), (1, 1, self.length)
        operands = {"rms_norm": (vector,), "layer_norm": (vector, vector)}.get(self.name, (vector, whole) * ("chain" in self.name))
        result = (1, self.rows, 1) if self.name.endswith("summed") else whole
        return {"x": whole, **{f"o{k}": shape for k, shape in enumerate(operands)}, "y": result}

    @property
    def bytes(self):
        """Read and written once each."""
        return sum(math.prod(shape) * ITEMSIZE[self.dtype if name == "y" else self.io] for name, shape in self.shapes.items())

    def arrays(self, device):
        """{name: a new tensor of random values}"""
        import torch
        return {name: torch.randn(shape, device=device, dtype=torch.float32).to(getattr(torch, self.dtype if name == "y" else self.io))
                for name, shape in self.shapes.items()}

    def eager(self):
        """A function that computes the case on {name: tensor} by PyTorch's own kernels; of softmax and the norms by its one function."""
        import torch
        import torch.nn.functional as F
        shape, formula = (self.length,), FORMULAS[self.name]
        own = {"softmax": lambda t: torch.softmax(t["x"], -1), "rms_norm": lambda t: F.rms_norm(t["x"], shape, t["o0"].flatten(), EPSILON),
               "layer_norm": lambda t: F.layer_norm(t["x"], shape, t["o0"].flatten(), t["o1"].flatten(), EPSILON)}
        result = torch.float32 if self.io == "float32" else getattr(torch, self.dtype)

        def run(t):
            y = formula(_Torch(), *(t[name] for name in t if name != "y"))
            return y if y.dtype == torch.float32 else y.to(result)
        return own.get(self.name, run)

    def graph(self, arrays, handle=None, alone=False):
        """(the graph, built, {tensor: name of its array}); `alone`: of the family's own operation."""
        making = Making(self, self.io, arrays, handle)
        operands, graph = [making.tensor(name) for name in arrays if name != "y"], making.graph
        making.result(self._own(graph, making.cudnn, *operands) if alone else FORMULAS[self.name](OfGraph(graph, self.rows), *operands))
        return making.built()

    def _own(self, graph, cudnn, x, *weights):
        if self.name == "softmax":
            return graph.softmax(x, axis=2)
        epsilon = graph.tensor_scalar(EPSILON, cudnn.scalar_type.COMPILE_TIME_CONST)
        method = getattr(graph, self.name.replace("_", ""))
        y, *_ = method(cudnn.norm_forward_phase.INFERENCE, x, *weights, epsilon=epsilon)
        return y

    def __str__(self):
        to = f" to {self.dtype}" * (self.dtype != self.io)
        return f"{self.name} {self.rows}x{self.length} {self.io}{to}"


def cases(dtypes, small=False):
    """Spelled-out operations at 8192 x 4096, chains from 64 MB to 1 GB of operands, casts of 8192 x 8192."""
    rows, length, tall, square = (32, 64, (32, 64), 64) if small else (8192, 4096, (8192, 65536), 8192)
    chains = [name for name in FORMULAS if name.startswith("chain")]
    return [Case(*what, dtype, to or dtype) for dtype in dtypes for what, to in (
        *(((name, rows, length), None) for name in OWN), *(((name, m, length), None) for m in tall for name in chains),
        (("scaled", square, square), None if small else "float8_e4m3fn"), (("scaled", square, square), None))]
