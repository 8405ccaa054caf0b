"""SwiGLU of a transformer: a product with both weights as one, and ``silu(gate) * value`` of the two halves of its columns, as one graph.

``python -m dnnkern bench graph --only swiglu``, beside the product of all columns alone (x plain), the product and then a kernel of the
gate (x apart), PyTorch, and `torch.compile`.
"""
import math
from dataclasses import dataclass

from dnnkern.host.dtypes import ITEMSIZE

from .graph_build import Making


@dataclass(frozen=True)
class Case:
    """As `graph.Case`. `sizes` are m, n, k, n the columns of the result; `stored`: the product is a result too, as training needs it."""
    sizes: tuple
    stored: bool
    dtype: str
    anchor = "matmul"

    @property
    def shapes(self):
        """{name: dims}; the weight has the gate's columns, then the value's."""
        m, n, k = self.sizes
        return {"a": (1, m, k), "w": (1, k, 2 * n), "both": (1, m, 2 * n), "y": (1, m, n)}

    @property
    def results(self):
        """Names of what is compared."""
        return ("both",) * self.stored + ("y",)

    @property
    def bytes(self):
        """Read and written once each."""
        return sum(math.prod(dims) for name, dims in self.shapes.items() if name != "both" or self.stored) * ITEMSIZE[self.dtype]

    def arrays(self, device):
        """{name: a new tensor of random values}; the weight is (2n, k), as a module has it."""
        import torch
        found = {name: torch.randn(dims, device=device, dtype=torch.float32) for name, dims in self.shapes.items()}
        found["w"] = (found["w"] * self.sizes[2] ** -0.5).mT.contiguous().mT
        return {name: t.to(getattr(torch, self.dtype)) for name, t in found.items()}

    def eager(self):
        """A function that computes the results on {name: tensor} by PyTorch's own kernels, as a module would call them."""
        import torch.nn.functional as F
        stored = self.stored

        def run(t):
            both = F.linear(t["a"][0], t["w"][0].mT)[None]
            gate, value = both.chunk(2, -1)
            y = F.silu(gate) * value
            return (both, y) if stored else (y,)
        return run

    def graph(self, arrays, handle=None, alone=False, apart=False):
        """(the graph, built, {tensor: name of its array}); `alone`: of the product; `apart`: as cuts without pairs of products have it."""
        making, (m, n, _) = Making(self, self.dtype, arrays, handle), self.sizes
        graph, tensor = making.graph, making.tensor
        both = graph.matmul(tensor("a"), tensor("w"))
        if alone:
            making.result(both, "both")
            return making.built()
        if self.stored:
            making.result(both, "both")
        else:
            both.set_data_type(making.cudnn.data_type.FLOAT if not apart else arrays["y"].dtype)
        gate, value = (graph.slice(both, [slice(0, 1), slice(0, m), columns]) for columns in (slice(0, n), slice(n, 2 * n)))
        making.result(graph.mul(graph.swish(gate), value))
        return making.apart(lambda steps: len(steps) > 1) if apart else making.built()

    def apart(self, arrays, handle=None):
        """The same, the product and the gate apart."""
        return self.graph(arrays, handle, apart=True)

    def __str__(self):
        return f"swiglu {'x'.join(map(str, self.sizes))}{' both stored' * self.stored} {self.dtype}"


def cases(dtypes, small=False):
    """Llama-2 7B's first half of an MLP, of a prompt and of 512 and 32 tokens."""
    sizes = [(64, 40, 48), (8, 64, 32)] if small else [(4096, 11008, 4096), (512, 11008, 4096), (32, 11008, 4096)]
    return [Case(s, stored, dtype) for dtype in dtypes for s in sizes for stored in (False, True) if not stored or s == sizes[0]]
