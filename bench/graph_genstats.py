"""Scale, bias, ReLU, a convolution and the sums of its channels, as batch normalization's training needs them: ``python -m dnnkern bench
graph --only genstats``.

The layers are those of docs/notes/graph.md, "Prologues". `plain` is our convolution by itself; `apart` the same graph by the plan that is
predicted to be the fastest of those with a kernel for what is in front of the convolution, one for it, and steps for the sums.
"""
import functools
import math
from dataclasses import dataclass

from dnnkern.host.dtypes import ITEMSIZE

from .graph_build import IO, Making

LAYERS = ((64, 64, 56, 56, 64, 3), (64, 64, 56, 56, 256, 1), (64, 256, 56, 56, 64, 1), (64, 128, 28, 28, 128, 3), (64, 128, 28, 28, 512, 1),
          (64, 512, 28, 28, 128, 1), (64, 256, 28, 28, 256, 3), (64, 256, 14, 14, 256, 3), (64, 1024, 14, 14, 256, 1))
"""n, c, h, w, k and the size of the filter, of ResNet-50."""


@dataclass(frozen=True)
class GenstatsCase:
    """A layer as `graph.Case`; its results are the convolution, of which there may be a scale and ReLU `after`, and the sums and sums of
    squares of what is stored."""
    sizes: tuple
    dtype: str
    after: bool = False
    anchor = "conv"
    results = "y", "sum", "squares"

    @functools.cached_property
    def shapes(self):
        """{name: dims}"""
        n, c, h, w, k, r = self.sizes
        found = {"x": (n, c, h, w), "scale": (1, c, 1, 1), "bias": (1, c, 1, 1), "w": (k, c, r, r), "y": (n, k, h, w),
                 "sum": (1, k, 1, 1), "squares": (1, k, 1, 1)}
        return {**found, "scale_after": (1, k, 1, 1)} if self.after else found

    @property
    def bytes(self):
        """Read and written once each."""
        return sum(math.prod(dims) * ITEMSIZE[self._dtype(name)] for name, dims in self.shapes.items())

    def _dtype(self, name):
        return self.dtype if name in ("x", "w", "y") else "float32"

    def arrays(self, device):
        """{name: a new tensor}; images and filters lie channels last."""
        import torch
        found = {}
        for name, dims in self.shapes.items():
            t = torch.randn(dims, device=device, dtype=torch.float32)
            t = t * math.prod(dims[1:]) ** -0.5 if name == "w" else t
            found[name] = t.to(getattr(torch, self._dtype(name))).to(memory_format=torch.channels_last)
        return found

    def eager(self):
        """A function that computes the results on {name: tensor} by PyTorch's own kernels."""
        import torch
        padding, after = self.sizes[5] // 2, self.after
        total = functools.partial(torch.sum, dim=(0, 2, 3), keepdim=True, dtype=torch.float32)

        def run(t):
            x = torch.relu(t["x"] * t["scale"] + t["bias"]).to(t["w"].dtype)
            y = torch.nn.functional.conv2d(x, t["w"], padding=padding)
            if after:
                y = torch.relu(y * t["scale_after"]).to(y.dtype)
            return y, total(y), total(y.float().square())
        return run

    def graph(self, arrays, handle=None, alone=False):
        """(the graph, built, {tensor: name of its array}); `alone`: the convolution."""
        return self._made(arrays, handle, alone).built()

    def apart(self, arrays, handle=None):
        """The same by a plan that fuses the functions alone."""
        return self._made(arrays, handle).apart(lambda steps: steps[0].startswith("fused_pointwise") and len(steps) > 2)

    def _made(self, arrays, handle, alone=False):
        making = Making(self, self.dtype, arrays, handle)
        graph, tensor = making.graph, making.tensor
        x = tensor("x")
        if not alone:
            x = graph.relu(graph.bias(graph.scale(x, tensor("scale")), tensor("bias")))
            x.set_data_type(making.cudnn.data_type[IO[self.dtype]])
        y = graph.conv_fprop(x, tensor("w"), padding=[self.sizes[5] // 2] * 2, stride=[1, 1], dilation=[1, 1])
        if self.after and not alone:
            y = graph.relu(graph.scale(y, tensor("scale_after")))
        making.result(y)
        if not alone:
            for t, name in zip(graph.genstats(y), self.results[1:]):
                making.result(t, name)
        return making

    def __str__(self):
        n, c, h, w, k, r = self.sizes
        return f"scale bias relu conv {n}x{c}x{h}x{w} k{k} {r}x{r} {'scale relu ' * self.after}genstats {self.dtype}"


def genstats_cases(dtypes, small=False):
    """The layers in each of the types; one with functions on both sides, whose cuts docs/graph.md has."""
    layers, both = (((2, 16, 8, 8, 24, 3), (2, 16, 6, 5, 32, 1)), (2, 16, 6, 5, 32, 1)) if small else (LAYERS, (64, 512, 28, 28, 128, 1))
    return [GenstatsCase(sizes, dtype) for dtype in dtypes for sizes in layers] + [GenstatsCase(both, dtype, True) for dtype in dtypes]
