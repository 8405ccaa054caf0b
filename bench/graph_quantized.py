"""Products and convolutions of 8-bit operands as graphs: ``python -m dnnkern bench graph --only quantized``.

An int8 matrix times one of 16 bits, which is cast as it is loaded; products and convolutions of e4m3, whose result is scaled, whose largest
absolute value is kept for the next step's scale, and which is cast to e4m3. `plain` is our product of 16-bit operands of the same sizes,
and of e4m3 with a result of 16 bits.
"""
import functools
import math
from dataclasses import dataclass

from dnnkern.host.dtypes import ITEMSIZE

from .graph_build import IO, Making

E4M3, LARGEST = "float8_e4m3fn", 448.0
PRODUCTS, LAYERS = ((4096, 4096, 4096), (8192, 4096, 1024)), ((64, 256, 28, 28, 256, 3), (64, 256, 56, 56, 64, 1))


@dataclass(frozen=True)
class QuantizedCase:
    """As `graph.Case`. `form` is "int8", a product, or "e4m3", a product or a convolution; `io` what has 16 bits."""
    form: str
    sizes: tuple
    io: str

    @property
    def anchor(self):
        return "matmul" if len(self.sizes) == 3 else "conv"

    @property
    def dtype(self):
        """The result's."""
        return self.io if self.form == "int8" else E4M3

    @property
    def results(self):
        """Names of what is compared."""
        return ("y",) if self.form == "int8" else ("y", "amax")

    @functools.cached_property
    def shapes(self):
        """{name: (dims, dtype)}; "plain" is the result of the product by itself, `a16` its left operand."""
        if self.anchor == "matmul":
            m, n, k = self.sizes
            a, b, y = (1, m, k), (1, k, n), (1, m, n)
        else:
            n, c, h, w, k, r = self.sizes
            a, b, y = (n, c, h, w), (k, c, r, r), (n, k, h, w)
        if self.form == "int8":
            return {"a": (a, "int8"), "b": (b, self.io), "y": (y, self.io), "a16": (a, self.io)}
        one = (1,) * len(a), "float32"
        return {"a": (a, E4M3), "b": (b, E4M3), "descale": one, "scale": one, "y": (y, E4M3), "amax": one, "plain": (y, self.io)}

    @property
    def bytes(self):
        """Read and written once each."""
        return sum(math.prod(dims) * ITEMSIZE[dtype] for name, (dims, dtype) in self.shapes.items() if name not in ("a16", "plain"))

    def arrays(self, device):
        """{name: a new tensor}; weights lie as (n, k), images channels last."""
        import torch
        found = {}
        for name, (dims, dtype) in self.shapes.items():
            t = torch.randn(dims, device=device)
            if dtype == "int8":
                t = torch.randint(-127, 128, dims, device=device)
            elif name == "descale":
                added_up = math.prod(self.shapes["b"][0]) / self.shapes["y"][0][2 if self.anchor == "matmul" else 1]
                t = torch.full(dims, added_up ** -0.5, device=device)
            elif name == "scale":
                t = torch.full(dims, 32.0, device=device)
            t = t.to(getattr(torch, dtype))
            found[name] = t.to(memory_format=torch.channels_last) if t.dim() == 4 else t.mT.contiguous().mT if name == "b" else t
        return found

    def eager(self):
        """A function that computes the results on {name: tensor} by PyTorch's own kernels; those convolve 16 bits, not 8."""
        import torch
        form, io, padding, matmul = self.form, getattr(torch, self.io), self.sizes[-1] // 2, self.anchor == "matmul"

        def run(t):
            a, b = t["a"], t["b"]
            if form == "int8":
                return (a.to(b.dtype) @ b,)
            if b.dtype == torch.float32:  # what is expected
                y = (a @ b if matmul else torch.nn.functional.conv2d(a, b, padding=padding)) * t["descale"]
            elif matmul:
                one = t["descale"][0, 0, 0]
                y = torch._scaled_mm(a[0], b[0], one, torch.ones_like(one), out_dtype=io)[None]
            else:
                y = torch.nn.functional.conv2d(a.to(io), b.to(io), padding=padding) * t["descale"]
            y = y.float()
            return (y * t["scale"]).clamp(-LARGEST, LARGEST).to(a.dtype), y.abs().amax()
        return run

    def graph(self, arrays, handle=None, alone=False):
        """(the graph, built, {tensor: name of its array}); `alone`: the product or the convolution."""
        making = Making(self, self.io, arrays, handle)
        graph, tensor, data_type = making.graph, making.tensor, making.cudnn.data_type
        a = tensor("a16" if alone and self.form == "int8" else "a")
        if self.form == "int8" and not alone:
            a = graph.identity(a).set_data_type(data_type[IO[self.io]])
        if self.anchor == "matmul":
            y = graph.matmul(a, tensor("b"))
        else:
            y = graph.conv_fprop(a, tensor("b"), padding=[self.sizes[-1] // 2] * 2, stride=[1, 1], dilation=[1, 1])
        if self.form == "int8" or alone:
            making.result(y, "y" if self.form == "int8" else "plain")
            return making.built()
        y = graph.mul(y.set_data_type(data_type.FLOAT), tensor("descale"))
        making.result(graph.reduction(y, making.cudnn.reduction_mode.AMAX), "amax")
        making.result(graph.mul(y, tensor("scale")))
        return making.built()

    def __str__(self):
        sizes = "x".join(map(str, self.sizes))
        if self.anchor == "conv":
            n, c, h, w, k, r = self.sizes
            sizes = f"{n}x{c}x{h}x{w} k{k} {r}x{r}"
        return f"{self.anchor} {sizes} {f'int8 {self.io}' if self.form == 'int8' else 'e4m3 scale amax cast'}"


def quantized_cases(dtypes, small=False):
    """Products, with int8 for each type, and layers of ResNet-50."""
    products, layers = (((48, 32, 64),), ((2, 16, 6, 5, 32, 3),)) if small else (PRODUCTS, LAYERS)
    return [QuantizedCase("int8", sizes, dtype) for dtype in dtypes for sizes in products] + \
           [QuantizedCase("e4m3", sizes, dtypes[-1]) for sizes in products + layers]
