"""Scale, bias and ReLU in front of a filter's gradient: ``python -m dnnkern bench graph --only wgrad``, of the layers of `graph_genstats`.

`plain` is the gradient of an image that lies in memory; `apart` the same graph by the plan that is predicted to be the fastest of those
with a kernel for what is in front of it.
"""
import functools
import math
from dataclasses import dataclass

from dnnkern.host.dtypes import ITEMSIZE

from .graph_build import IO, Making
from .graph_genstats import LAYERS


@dataclass(frozen=True)
class WgradCase:
    """A layer as `graph.Case`; the result, "y", is the filter's gradient."""
    sizes: tuple
    dtype: str
    anchor = "conv"
    slack = 2
    """By how much its sums, of up to 200,000 products of rounded numbers, may be off by more than a result."""

    @functools.cached_property
    def shapes(self):
        """{name: dims}"""
        n, c, h, w, k, r = self.sizes
        return {"x": (n, c, h, w), "scale": (1, c, 1, 1), "bias": (1, c, 1, 1), "dy": (n, k, h, w), "y": (k, c, r, r)}

    @property
    def bytes(self):
        """Read and written once each."""
        return sum(math.prod(dims) * ITEMSIZE[self._dtype(name)] for name, dims in self.shapes.items())

    def _dtype(self, name):
        return "float32" if name in ("scale", "bias") else self.dtype

    def arrays(self, device):
        """{name: a new tensor}; all lie channels last."""
        import torch
        n, _, h, w = self.shapes["x"]
        found = {name: torch.randn(dims, device=device) for name, dims in self.shapes.items()}
        found["dy"] *= (n * h * w) ** -0.5
        return {name: t.to(getattr(torch, self._dtype(name))).to(memory_format=torch.channels_last) for name, t in found.items()}

    def eager(self):
        """A function that computes the result on {name: tensor} by PyTorch's own kernels."""
        import torch
        padding = [self.sizes[5] // 2] * 2

        def run(t):
            x = torch.relu(t["x"] * t["scale"] + t["bias"]).to(t["dy"].dtype)
            return torch.ops.aten.convolution_backward(t["dy"], x, t["y"], None, [1, 1], padding, [1, 1], False, [0, 0], 1,
                                                       [False, True, False])[1]
        return run

    def graph(self, arrays, handle=None, alone=False):
        """(the graph, built, {tensor: name of its array}); `alone`: the gradient."""
        return self._made(arrays, handle, alone).built()

    def apart(self, arrays, handle=None):
        """The same by a plan that fuses the functions alone."""
        return self._made(arrays, handle).apart(lambda steps: steps[0].startswith("fused_pointwise"))

    def _made(self, arrays, handle, alone=False):
        making = Making(self, self.dtype, arrays, handle)
        graph, tensor = making.graph, making.tensor
        x = tensor("x")
        if not alone:
            x = graph.relu(graph.bias(graph.scale(x, tensor("scale")), tensor("bias")))
            x.set_data_type(making.cudnn.data_type[IO[self.dtype]])
        making.result(graph.conv_wgrad(x, tensor("dy"), padding=[self.sizes[5] // 2] * 2, stride=[1, 1], dilation=[1, 1]))
        return making

    def __str__(self):
        n, c, h, w, k, r = self.sizes
        return f"scale bias relu wgrad {n}x{c}x{h}x{w} k{k} {r}x{r} {self.dtype}"


def wgrad_cases(dtypes, small=False):
    """The layers in each of the types."""
    return [WgradCase(sizes, dtype) for dtype in dtypes for sizes in (((2, 16, 8, 8, 24, 3), (2, 16, 6, 5, 32, 1)) if small else LAYERS)]
