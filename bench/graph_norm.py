"""Normalizations with the pointwise nodes around them: ``python -m dnnkern bench graph --only norm``.

Forward, batch normalization with an addition and ReLU, with ReLU's mask beside the result or without; its gradients after that mask or
ReLU's gradient, with the gradient of what was added beside DX; rows with an addition after layer or RMS normalization, a cast to fp8 by a
scale, zero-centred weights, and adaptive layer normalization with GELU. `plain` is the normalization, or its gradient, by itself.
"""
import functools
import math
from dataclasses import dataclass

from dnnkern.host.dtypes import ITEMSIZE

from .graph_build import Making

EPSILON, SCALE = 1e-3, 16.0
CHANNELS = "batchnorm add relu", "batchnorm add relu mask", "mul batchnorm_backward", "relu_backward batchnorm_backward"
ROWS = "layernorm add", "rmsnorm add", "rmsnorm scale cast", "layernorm 1+gamma", "adalayernorm gelu"


def norm_cases(dtypes, small=False):
    """Images channels last, and rows."""
    image, rows = ((2, 16, 5, 6), ((24, 64),)) if small else ((64, 256, 56, 56), ((16384, 4096), (2048, 8192), (200000, 128)))
    return [NormCase(form, shape, dtype, "float8_e4m3fn" if form.endswith("cast") and not small else dtype) for dtype in dtypes
            for forms, shapes in ((CHANNELS, (image,)), (ROWS, rows)) for shape in shapes for form in forms]


@dataclass(frozen=True)
class NormCase:
    """A graph of an image (N, C, H, W), or of rows, as `graph.Case`; `dtype` is the result's, `io` the operands'."""
    form: str
    shape: tuple
    io: str
    dtype: str
    anchor = "normalization"

    @property
    def is_gradient(self):
        return self.form.endswith("backward")

    @property
    def slack(self):
        """By how much a gradient, of sums of products of rounded numbers, may be off by more than a result."""
        return 4 if self.is_gradient else 1

    @property
    def dims(self):
        """Of the graph's tensors; adaptive normalization has eight samples."""
        if self.form.startswith("ada"):
            return 8, self.shape[0] // 8, self.shape[1]
        return self.shape if len(self.shape) == 4 else (*self.shape, 1, 1)

    @functools.cached_property
    def shapes(self):
        """{name: (dims, dtype)} of everything; the result is "y", what else is written has a name that begins with "y"."""
        whole, of_weight = (self.dims, self.io), (8, 1, self.dims[2]) if self.form.startswith("ada") else (1, self.dims[1], 1, 1)
        weight = of_weight, "float32"
        found = {"x": whole, "gamma": weight, "y": (self.dims, self.dtype)}
        if self.is_gradient:
            other = (self.dims, "bool") if self.form.startswith("mul") else whole
            return {**found, "dy": whole, "other": other, "mean": weight, "rstd": weight, "y_other": whole, "y_gamma": weight,
                    "y_beta": weight}
        if not self.form.startswith("rms"):
            found["beta"] = weight
        if "add" in self.form:
            found["other"] = whole
        if self.form.endswith("mask"):
            found["y_mask"] = (self.dims, "bool")
        if self.dtype != self.io:  # of the normalization by itself
            found["y_plain"] = whole
        return found

    @property
    def bytes(self):
        """Read and written once each."""
        return self._bytes_of(set(self.shapes) - {"y_plain"})

    @property
    def moved(self):
        """What has to be: sums over a batch are complete before what they are of is read again."""
        again = {"y_other", "x"} if self.is_gradient else {"x"} if self.form.startswith("batch") else ()
        return self.bytes + self._bytes_of(again)

    @property
    def results(self):
        """Names of what is compared."""
        return ("y", "y_other", "y_gamma", "y_beta") if self.is_gradient else ("y", "y_mask") if self.form.endswith("mask") else ("y",)

    def _bytes_of(self, names):
        return sum(math.prod(dims) * ITEMSIZE[dtype] for name, (dims, dtype) in self.shapes.items() if name in names)

    def arrays(self, device):
        """{name: a new tensor}; images lie channels last."""
        import torch
        found = {}
        for name, (dims, dtype) in self.shapes.items():
            t = torch.randn(dims, device=device)
            t = t.abs() + 0.5 if name == "rstd" else t.relu() if name == "other" and self.form.startswith("relu") else t
            t = t > 0 if dtype == "bool" else t.to(getattr(torch, dtype))
            found[name] = t.to(memory_format=torch.channels_last) if len(self.shape) == 4 else t
        return found

    def eager(self):
        """A function that computes the result on {name: tensor} by PyTorch's own kernels."""
        import torch
        import torch.nn.functional as F
        form, shape = self.form, self.shape

        def run(t):
            x, gamma = t["x"], t["gamma"].flatten()
            if form.endswith("backward"):
                keep = t["other"] if form.startswith("mul") else t["other"] > 0
                dz = t["dy"] * keep
                dx, *sums = torch.ops.aten.native_batch_norm_backward(dz, x, gamma, None, None, t["mean"].flatten(), t["rstd"].flatten(),
                                                                      True, EPSILON, [True, True, True])
                return dx, dz, *(total.reshape(t["gamma"].shape) for total in sums)
            if form.startswith("batch"):
                y = F.batch_norm(x, None, None, gamma, t["beta"].flatten(), True, 0.0, EPSILON) + t["other"]
                return (y.relu(), y > 0) if form.endswith("mask") else (y.relu(),)
            if form.startswith("ada"):
                return (F.gelu(F.layer_norm(x, x.shape[2:], eps=EPSILON) * t["gamma"] + t["beta"]).to(x.dtype),)
            rows, gamma = x.reshape(shape), gamma.to(x.dtype)
            if form.endswith("1+gamma"):
                gamma = 1 + gamma
            if form.startswith("layer"):
                y = F.layer_norm(rows, shape[1:], gamma, t["beta"].flatten().to(x.dtype), EPSILON)
            else:
                y = F.rms_norm(rows, shape[1:], gamma, EPSILON)
            y = y.reshape(x.shape)
            if form.endswith("add"):
                y = y + t["other"]
            if form.endswith("cast"):
                y = y * SCALE
                y = y if y.dtype == torch.float32 else y.to(getattr(torch, self.dtype))
            return (y,)
        return run

    def graph(self, arrays, handle=None, alone=False):
        """(the graph, built, {tensor: name of its array}); `alone`: the normalization or its gradient by itself."""
        making = Making(self, self.io, arrays, handle)
        graph, tensor, result = making.graph, making.tensor, making.result
        if self.is_gradient:
            dy = tensor("dy")
            if not alone:
                dy = getattr(graph, self.form.split()[0])(dy, tensor("other"))
                result(dy, "y_other")
            results = graph.batchnorm_backward(dy, *map(tensor, ("x", "gamma", "mean", "rstd")))
            for t, name in zip(results, ("y", "y_gamma", "y_beta")):
                result(t, name)
        else:
            self._forward(making, alone)
        return making.built()

    def _forward(self, making, alone):
        graph, tensor, result, number, inference = (making.graph, making.tensor, making.result, making.number,
                                                    making.cudnn.norm_forward_phase.INFERENCE)
        x, gamma, epsilon = tensor("x"), tensor("gamma"), number(EPSILON)
        if self.form.startswith("batch"):
            y, *_ = graph.batchnorm(x, gamma, tensor("beta"), epsilon=epsilon)
        elif self.form.startswith("ada"):
            y, *_ = graph.adalayernorm(inference, x, gamma, tensor("beta"), epsilon)
        elif self.form.startswith("layer"):
            if self.form.endswith("1+gamma") and not alone:
                gamma = graph.add(gamma, number(1.0))
            y, *_ = graph.layernorm(inference, x, gamma, tensor("beta"), epsilon)
        else:
            y, *_ = graph.rmsnorm(inference, x, gamma, epsilon=epsilon)
        if alone:
            result(y, "y" if self.dtype == self.io else "y_plain")
            return
        if "add" in self.form:
            y = graph.add(y, tensor("other"))
        if "scale" in self.form:
            y = graph.mul(y, number(SCALE))
        if "gelu" in self.form:
            y = graph.gelu(y)
        if self.form.endswith("mask"):
            result(graph.cmp_gt(y, number(0.0)), "y_mask")
        result(graph.relu(y) if "relu" in self.form else y, "y")

    def __str__(self):
        to = f" to {self.dtype}" * (self.dtype != self.io)
        return f"{self.form} {'x'.join(map(str, self.shape))} {self.io}{to}"
