"""Cases of graphs in words: a product, a convolution or nothing, and the pointwise functions after it."""
import functools
import math
from dataclasses import dataclass

from dnnkern.host.dtypes import ITEMSIZE

from .graph_build import Making

_METHODS = {"max": "max", "scale": "mul"}


@dataclass(frozen=True)
class Case:
    """A graph: ``matmul 4096x4096x4096 add@4096 gelu``; operands by shape, aligned at the right, or a number.

    Attributes
    ----------
    anchor : "matmul", "conv" or ""
    sizes : tuple of int
        m, n, k; n, c, h, w, k, r of a convolution with a square filter and as much padding as keeps the image; of a chain its shape.
    chain : str
        Functions, one after the other, as on the command line: "add@4096 gelu mul@0.5"; "keep": what there is then is a result, too.
    dtype : str
    """
    anchor: str
    sizes: tuple
    chain: str
    dtype: str

    @functools.cached_property
    def steps(self):
        """[(function, name of its operand, or a number, or None)]"""
        found = []
        for word in self.chain.split():
            mode, _, operand = word.partition("@")
            found.append((mode, None if not operand else float(operand) if "." in operand else f"o{len(found)}"))
        return found

    @property
    def is_linear(self):
        """Whether the first function adds a product's bias."""
        return self.anchor == "matmul" and self.chain.startswith(f"add@{self.sizes[1]} ")

    @property
    def padding(self):
        """Of a convolution, on all sides."""
        return self.sizes[5] // 2

    @functools.cached_property
    def shapes(self):
        """{name: dims} of everything, the result "y" among it."""
        if self.anchor == "matmul":
            m, n, k = self.sizes
            found = {"a": (1, m, k), "b": (1, k, n), "y": (1, m, n)}
        elif self.anchor == "conv":
            n, c, h, w, k, r = self.sizes
            found = {"x": (n, c, h, w), "w": (k, c, r, r), "y": (n, k, h, w)}
        else:
            found = {"x": self.sizes, "y": self.sizes}
        rank = len(found["y"])
        for (_, name), word in zip(self.steps, self.chain.split()):
            if isinstance(name, str):
                dims = tuple(map(int, word.partition("@")[2].split("x")))
                found[name] = (1,) * (rank - len(dims)) + dims
        if self.keeps:
            found["kept"] = found["y"]
        return found

    @property
    def keeps(self):
        """Whether a value on the way is a result."""
        return "keep" in self.chain.split()

    @property
    def bytes(self):
        """Read and written once each."""
        return sum(map(math.prod, self.shapes.values())) * ITEMSIZE[self.dtype]

    def arrays(self, device):
        """{name: a new tensor of random values}; weights are (n, k), images channels last."""
        import torch
        found = {}
        for name, dims in self.shapes.items():
            t = torch.randn(dims, device=device, dtype=torch.float32)
            if name == "b":
                t = (t * dims[1] ** -0.5).mT.contiguous().mT
            elif self.anchor == "conv" and len(dims) == 4:
                t = (t * math.prod(dims[1:]) ** -0.5 if name == "w" else t).to(memory_format=torch.channels_last)
            found[name] = t.to(getattr(torch, self.dtype))
        return found

    def eager(self):
        """A function that computes the case on {name: tensor} by PyTorch's own kernels, one after another, as a module would call them."""
        import torch
        import torch.nn.functional as F
        known = {"gelu": F.gelu, "swish": F.silu}
        steps, anchor, is_linear, padding = self.steps, self.anchor, self.is_linear, self.anchor == "conv" and self.padding

        def run(t):
            left = steps
            if anchor == "matmul":
                bias, left = (t[steps[0][1]][0, 0], steps[1:]) if is_linear else (None, steps)
                y = F.linear(t["a"][0], t["b"][0].mT, bias)[None]
            elif anchor == "conv":
                y = F.conv2d(t["x"], t["w"], padding=padding)
            else:
                y = t["x"]
            kept = ()
            for mode, operand in left:
                if mode == "keep":
                    kept = (y,)
                    continue
                other = () if operand is None else (t[operand] if isinstance(operand, str) else operand,)
                y = (known.get(mode) or getattr(torch, mode))(y, *other)
            return (y, *kept) if kept else y
        return run

    def graph(self, arrays, handle=None, alone=False, cache=None, takes_shapes=False):
        """(the graph, built, {tensor: name of its array}); `alone`: of the anchor; `takes_shapes`: of other calls."""
        making = Making(self, self.dtype, arrays, handle, kernel_cache=cache, is_override_shape_enabled=takes_shapes)
        graph, tensor = making.graph, making.tensor
        if self.anchor == "matmul":
            y = graph.matmul(tensor("a"), tensor("b"))
        elif self.anchor == "conv":
            y = graph.conv_fprop(tensor("x"), tensor("w"), padding=[self.padding] * 2, stride=[1, 1], dilation=[1, 1])
        else:
            y = tensor("x")
        for mode, operand in () if alone else self.steps:
            if mode == "keep":
                making.result(y, "kept")
                continue
            method = getattr(graph, _METHODS.get(mode, mode))
            if operand is None:
                y = method(y)
            elif isinstance(operand, str):
                y = method(y, tensor(operand))
            else:
                y = method(y, making.number(operand))
        making.result(y)
        return making.built()

    def __str__(self):
        if self.anchor == "conv":
            n, c, h, w, k, r = self.sizes
            return f"conv {n}x{c}x{h}x{w} k{k} {r}x{r} {self.chain} {self.dtype}"
        return f"{self.anchor or 'chain'} {'x'.join(map(str, self.sizes))} {self.chain} {self.dtype}"
