"""A product, and softmax or a norm of the rows of its result, as one graph: scores, routers, small hidden sizes.

``python -m dnnkern bench graph --only product_rows``, beside the product alone (x plain), the product and then a kernel of the rows
(x apart), PyTorch, and `torch.compile`.
"""
import math
from dataclasses import dataclass

from dnnkern.host.dtypes import ITEMSIZE

from .graph_build import Making
from .graph_rows import EPSILON, FORMULAS, OfGraph


@dataclass(frozen=True)
class Case:
    """As `graph.Case`. `name` is softmax, rms_norm or layer_norm; `sizes` are m, n, k."""
    name: str
    sizes: tuple
    dtype: str
    anchor = "matmul"

    @property
    def shapes(self):
        """{name: dims}; weights have n elements, the result is "y"."""
        m, n, k = self.sizes
        weights = {"softmax": 0, "rms_norm": 1, "layer_norm": 2}[self.name]
        return {"a": (1, m, k), "b": (1, k, n), **{f"o{w}": (1, 1, n) for w in range(weights)}, "y": (1, m, n)}

    @property
    def bytes(self):
        """Read and written once each."""
        return sum(map(math.prod, self.shapes.values())) * ITEMSIZE[self.dtype]

    def arrays(self, device):
        """{name: a new tensor of random values}; b is (n, k), as a module has it."""
        import torch
        found = {name: torch.randn(dims, device=device, dtype=torch.float32) for name, dims in self.shapes.items()}
        found["b"] = (found["b"] * self.sizes[2] ** -0.5).mT.contiguous().mT
        return {name: t.to(getattr(torch, self.dtype)) for name, t in found.items()}

    def eager(self):
        """A function that computes the result on {name: tensor} by PyTorch's own kernels, as a module would call them."""
        import torch
        import torch.nn.functional as F
        of, shape = self.name, self.sizes[1:2]

        def run(t):
            x = F.linear(t["a"][0], t["b"][0].mT)[None]
            weights = [t[name].flatten() for name in t if name[0] == "o"]
            return torch.softmax(x, -1) if of == "softmax" else getattr(F, of)(x, shape, *weights, EPSILON)
        return run

    def graph(self, arrays, handle=None, alone=False, apart=False):
        """(the graph, built, {tensor: name of its array}); `alone`: of the product; `apart`: the product, rounded, and a kernel of rows."""
        making = Making(self, self.dtype, arrays, handle)
        x = making.graph.matmul(making.tensor("a"), making.tensor("b"))
        if not alone:
            if apart:
                x.set_data_type(arrays["y"].dtype)
            weights = [making.tensor(name) for name in arrays if name[0] == "o"]
            x = FORMULAS[self.name](OfGraph(making.graph, self.sizes[0]), x, *weights)
        making.result(x)
        return making.apart(lambda steps: len(steps) > 1) if apart else making.built()

    def apart(self, arrays, handle=None):
        """The same, the product and its rows apart."""
        return self.graph(arrays, handle, apart=True)

    def __str__(self):
        return f"product {self.name} {'x'.join(map(str, self.sizes))} {self.dtype}"


def cases(dtypes, small=False):
    """A row in one tile: 256 and 128 columns."""
    sizes = [(64, 40, 48)] if small else [(16384, 256, 1024), (65536, 128, 512)]
    return [Case(name, s, dtype) for dtype in dtypes for s in sizes for name in ("softmax", "layer_norm", "rms_norm")]
