"""Graphs of reductions over outer axes, and of a whole tensor, beside results of elements: a chain with the sums of its channels, the
gradients of a bias and of what ReLU was given, a tensor scaled by its largest magnitude and cast.

``python -m dnnkern bench graph --only reduction``
"""
import functools
import math
from dataclasses import dataclass

from dnnkern.host.dtypes import ITEMSIZE

from .graph_build import Making

SUMS, GRADIENT, SCALED = "chain with sums of channels", "bias gradient with relu's", "scaled by all's largest"


@dataclass(frozen=True)
class Case:
    """A graph on tensors of these dims, as `graph.Case`: channels last where there are four. `dtype` is the result's, `io` the
    operands'."""
    name: str
    dims: tuple
    io: str
    dtype: str
    anchor = ""

    @functools.cached_property
    def shapes(self):
        """{name: dims}"""
        whole = self.dims
        if self.name == SUMS:
            channels = (1, whole[1], 1, 1)
            return {"x": whole, "scale": channels, "bias": channels, "y": whole, "sum": channels, "squares": channels}
        if self.name == GRADIENT:
            return {"dy": whole, "h": whole, "y": whole, "sum": (1, 1, whole[2])}
        return {"x": whole, "y": whole}

    @property
    def results(self):
        """Names of what is compared."""
        return tuple(name for name in self.shapes if name in ("y", "sum", "squares"))

    def _dtype(self, name):
        return {"y": self.dtype, "sum": "float32", "squares": "float32"}.get(name, self.io)

    @property
    def bytes(self):
        """Read and written once each."""
        return sum(math.prod(shape) * ITEMSIZE[self._dtype(name)] for name, shape in self.shapes.items())

    def arrays(self, device):
        """{name: a new tensor of random values}"""
        import torch
        found = {name: torch.randn(shape, device=device, dtype=torch.float32).to(getattr(torch, self._dtype(name)))
                 for name, shape in self.shapes.items()}
        return {name: t.contiguous(memory_format=torch.channels_last) if t.ndim == 4 else t for name, t in found.items()}

    def eager(self):
        """A function that computes the results on {name: tensor} by PyTorch's own kernels."""
        import torch

        def sums(t):
            y = torch.relu(t["x"] * t["scale"] + t["bias"])
            total = functools.partial(torch.sum, dim=(0, 2, 3), keepdim=True, dtype=torch.float32)
            return y, total(y), total(y.float().square())

        def gradient(t):
            y = torch.where(t["h"] > 0, t["dy"], 0)
            return y, torch.sum(y, 1, True, dtype=torch.float32)

        def scaled(t):
            y = t["x"] * 448.0 / t["x"].abs().max()
            return (y if y.dtype == torch.float32 else y.to(getattr(torch, self.dtype)),)
        return {SUMS: sums, GRADIENT: gradient, SCALED: scaled}[self.name]

    def graph(self, arrays, handle=None, alone=False):
        """(the graph, built, {tensor: name of its array})"""
        making = Making(self, self.io, arrays, handle)
        operands = [making.tensor(name) for name in arrays if name not in self.results]
        for t, name in zip(self._nodes(making.graph, making.cudnn, *operands), self.results):
            making.result(t, name)
        return making.built()

    def _nodes(self, graph, cudnn, x, *others):
        mode = cudnn.reduction_mode
        if self.name == SUMS:
            y = graph.relu(graph.add(graph.mul(x, others[0]), others[1]))
            return y, *graph.genstats(y)
        if self.name == GRADIENT:
            y = graph.relu_backward(x, others[0])
            return y, graph.reduction(y, mode.ADD).set_dim(self.shapes["sum"])
        largest = graph.reduction(x, mode.AMAX).set_dim([1] * len(self.dims)).set_stride([1] * len(self.dims))
        top = graph.tensor_scalar(448.0, cudnn.scalar_type.COMPILE_TIME_CONST)
        return graph.div(graph.mul(x, top), largest),

    def __str__(self):
        to = f" to {self.dtype}" * (self.dtype != self.io)
        return f"{self.name} {'x'.join(map(str, self.dims))} {self.io}{to}"


def cases(dtypes, small=False):
    """Channels of ResNet-50's second stage, a layer's bias, casts of 8192 x 8192."""
    image, rows, square = ((4, 16, 6, 6), (1, 64, 48), (1, 64, 64)) if small else ((64, 256, 56, 56), (1, 16384, 4096), (1, 8192, 8192))
    return [Case(*what, dtype, to or dtype) for dtype in dtypes for what, to in (
        ((SUMS, image), None), ((GRADIENT, rows), None), ((SCALED, square), None if small else "float8_e4m3fn"))]
