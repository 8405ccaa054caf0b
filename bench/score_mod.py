"""Attention with a `score_mod` beside attention without one and PyTorch's `flex_attention`: ``bench graph --only score_mod``.

A case is a modifier forward or backward: a soft cap with a causal mask, ALiBi by hand with a causal mask, documents. `plain` is our
attention with what is built in of that: causal, causal with ALiBi, no mask.
"""
import functools
import math
from dataclasses import dataclass

from dnnkern.host.dtypes import ITEMSIZE

from .graph_build import Making

CAP, PIECES = 20.0, 8
MODS = "capped causal", "alibi causal", "documents"
GRADIENTS = "dq", "dk", "dv"


def score_mod_cases(dtypes, small=False):
    """Every modifier in both directions."""
    sizes = (1, 2, 48, 16) if small else (4, 16, 4096, 128)
    return [ScoreModCase(mod, sizes, backward, dtype) for dtype in dtypes for mod in MODS for backward in (False, True)]


@dataclass(frozen=True)
class ScoreModCase:
    """Attention of (batch, heads, rows and keys, elements)."""
    mod: str
    sizes: tuple
    backward: bool
    dtype: str
    anchor = "sdpa"

    @property
    def is_causal(self):
        return "causal" in self.mod

    @property
    def shapes(self):
        """{name: dims} of everything but the result."""
        b, h, s, d = self.sizes
        found = dict.fromkeys(("q", "k", "v", *(("do", "o") if self.backward else ())), self.sizes)
        if self.mod == "documents":
            found.update(of_rows=(b, 1, s, 1), of_keys=(b, 1, 1, s))
        elif self.mod.startswith("alibi"):
            found["slopes"] = (1, h, 1, 1)
        return found

    @property
    def bytes(self):
        """Read and written once each."""
        return (sum(map(math.prod, self.shapes.values())) + math.prod(self.sizes) * (3 if self.backward else 1)) * ITEMSIZE[self.dtype]

    def arrays(self, device):
        """{name: a new tensor}; the gradients are parts of the result. Backward o and the statistics are those of our forward graph."""
        import torch
        b, h, s, _ = self.sizes
        dtype = getattr(torch, self.dtype)
        found = {name: torch.randn(dims, device=device).to(dtype) for name, dims in self.shapes.items() if len(set(dims)) > 1}
        if self.mod == "documents":
            ids = (torch.arange(s, device=device, dtype=torch.int32) * PIECES // s).expand(b, s)
            found.update(of_rows=ids.reshape(b, 1, s, 1).contiguous(), of_keys=ids.reshape(b, 1, 1, s).contiguous())
        elif self.mod.startswith("alibi"):
            found["slopes"] = torch.exp2(-8.0 * torch.arange(1, h + 1, device=device) / h).reshape(1, h, 1, 1)
        if not self.backward:
            return {**found, "y": torch.empty(self.sizes, device=device, dtype=dtype)}
        result = torch.empty((3, *self.sizes), device=device, dtype=dtype)
        found.update(zip(GRADIENTS, result), y=result, o=torch.empty(self.sizes, device=device, dtype=dtype),
                     stats=torch.empty((b, h, s, 1), device=device))
        if result.is_meta:
            return found
        forward, given = self._forward({**found, "y": found["o"]}, None, False, True)
        workspace = torch.empty(forward.get_workspace_size(), dtype=torch.uint8, device=device)
        forward.execute({t: {**found, "y": found["o"]}[name] for t, name in given.items()}, workspace)
        if result.is_cuda:  # other streams read it
            torch.cuda.synchronize()
        return found

    # ---- by PyTorch

    def modified(self, t, batch=slice(None)):
        """A function of the scores (batch, heads, rows, keys) of some images, by the definition."""
        import torch

        def run(x):
            rows, keys = torch.arange(x.shape[2], device=x.device)[:, None], torch.arange(x.shape[3], device=x.device)
            if self.mod == "documents":
                return x.masked_fill(t["of_rows"][batch] != t["of_keys"][batch], -math.inf)
            x = CAP * torch.tanh(x / CAP) if self.mod.startswith("capped") else x + t["slopes"] * (keys - rows)
            return x.masked_fill(keys > rows, -math.inf)
        return run

    def eager(self):
        """A function that computes the case on {name: tensor}, image by image, from the definition."""
        return lambda t: self._by_images(t, self._image)

    def magnitudes(self, t):
        """Of each element of the result the sum of its terms' absolute values, which its rounding goes by, from {name: tensor}. The first
        rows of a causal mask are many times as large as the last, so that the size of all says nothing of them."""
        return self._by_images(t, self._magnitudes_of_image)

    def _by_images(self, t, function):
        import torch
        parts = [function(t, slice(b, b + 1)) for b in range(self.sizes[0])]
        return torch.cat(parts, 1 if self.backward else 0)

    def _image(self, t, at):
        import torch
        q, k, v = (t[name][at].detach().requires_grad_(self.backward) for name in "qkv")
        o = torch.softmax(self.modified(t, at)(q @ k.mT * self.sizes[3] ** -0.5), -1) @ v
        return torch.stack(torch.autograd.grad(o, (q, k, v), t["do"][at])) if self.backward else o

    def _magnitudes_of_image(self, t, at):
        """ds is p (dp - delta), whose derivative by the product is at most 1 with these modifiers."""
        import torch
        q, k, v = (t[name][at].detach() for name in "qkv")
        scale = self.sizes[3] ** -0.5
        p = torch.softmax(self.modified(t, at)(q @ k.mT * scale), -1)
        o = p @ v.abs()
        if not self.backward:
            return o
        do = t["do"][at]
        ds = scale * p * ((do @ v.mT).abs() + (do * (p @ v)).abs().sum(-1, keepdim=True))
        return torch.stack((ds @ k.abs(), ds.mT @ q.abs(), p.mT @ do.abs()))

    @property
    def peers(self):
        """Of this case."""
        return [Flex]

    # ---- by graphs

    def graph(self, arrays, handle=None, alone=False):
        """(the graph, built, {tensor: name of its array}); `alone`: without a modifier."""
        return self._forward(arrays, handle, alone, False) if not self.backward else self._backward(arrays, handle, alone)

    def _forward(self, arrays, handle, alone, with_stats):
        making = Making(self, self.dtype, arrays, handle)
        o, stats = making.graph.sdpa(*map(making.tensor, "qkv"), generate_stats=with_stats, **self._options(making.tensor, alone))
        making.result(o)
        if stats is not None:
            making.result(stats, "stats")
        return making.built()

    def _backward(self, arrays, handle, alone):
        making = Making(self, self.dtype, arrays, handle)
        options = self._options(making.tensor, alone)
        if not alone and self.mod.startswith("capped"):
            options["score_mod_bprop"] = self._uncapped
        results = making.graph.sdpa_backward(*map(making.tensor, ("q", "k", "v", "o", "do", "stats")), **options)
        for t, name in zip(results, GRADIENTS):
            making.result(t, name)
        return making.built()

    def _options(self, tensor, alone):
        found = {"attn_scale": self.sizes[3] ** -0.5}
        if alone:
            return {**found, "use_causal_mask": self.is_causal, "use_alibi_mask": self.mod.startswith("alibi")}
        operands = {name: tensor(name) for name in ("of_rows", "of_keys", "slopes") if name in self.shapes}
        return {**found, "score_mod": functools.partial(self._modify, **operands)}

    def _modify(self, graph, scores, of_rows=None, of_keys=None, slopes=None):
        import dnnkern.graph as cudnn

        def number(value):
            return graph.tensor_scalar(value, cudnn.scalar_type.COMPILE_TIME_CONST)
        if self.mod == "documents":
            same = graph.cmp_eq(of_rows, of_keys).set_data_type(cudnn.data_type.BOOLEAN)
            return graph.binary_select(scores, number(-math.inf), same)
        rows, keys = (graph.gen_index(scores, axis).set_data_type(cudnn.data_type.INT32) for axis in (2, 3))
        causal = graph.cmp_ge(rows, keys).set_data_type(cudnn.data_type.BOOLEAN)
        if slopes is None:
            scores = graph.mul(graph.tanh(graph.mul(scores, number(1 / CAP))), number(CAP))
        else:
            distance = graph.sub(keys, rows).set_data_type(cudnn.data_type.INT32)
            scores = graph.add(scores, graph.mul(distance, slopes))
        return graph.binary_select(scores, number(-math.inf), causal)

    @staticmethod
    def _uncapped(graph, gradient):
        import dnnkern.graph as cudnn
        scores = next(t for t in graph.tensors if t.get_name().endswith("::Score"))
        factor = graph.tensor_scalar(1 / CAP, cudnn.scalar_type.COMPILE_TIME_CONST)
        return graph.tanh_backward(gradient, graph.mul(scores, factor))

    def __str__(self):
        b, h, s, d = self.sizes
        return f"sdpa {'backward' if self.backward else 'forward'} b{b} h{h} s{s} d{d} {self.mod} {self.dtype}"


class Flex:
    """PyTorch's flex_attention, compiled, its mask as blocks of which it skips the empty ones; backward the gradients alone."""
    NAME = "torch.compile"

    @staticmethod
    def make(case, sets, clock):
        """(contender, function of a set), as the peers of `bench.peers` have it."""
        import torch
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        from .torch_arrays import TorchContender, on_clock
        torch._dynamo.reset()
        compiled, (b, _, s, d) = torch.compile(flex_attention, dynamic=False), case.sizes
        slopes, ids = (sets[0][name].flatten() if name in sets[0] else None for name in ("slopes", "of_keys"))
        if ids is not None:
            ids = ids.reshape(b, s)

        def modify(score, b, h, i, j):
            return CAP * torch.tanh(score / CAP) if slopes is None else score + slopes[h] * (j - i)

        def same_document(b, h, i, j):
            return ids[b, i] == ids[b, j]

        def causal(b, h, i, j):
            return i >= j
        mask = create_block_mask(causal if case.is_causal else same_document, None if case.is_causal else b, None, s, s,
                                 device=sets[0]["q"].device)
        attend = functools.partial(compiled, score_mod=modify if case.is_causal else None, block_mask=mask, scale=d ** -0.5)
        if not case.backward:
            def function(t):
                return attend(t["q"], t["k"], t["v"])
            return TorchContender(Flex.NAME, [lambda t=t: function(t) for t in sets], clock), function
        saved = {}
        with on_clock(clock):  # autograd computes gradients on the stream of what they are of
            for t in sets:
                leaves = [t[name].detach().requires_grad_(True) for name in "qkv"]
                saved[id(t)] = attend(*leaves), leaves

        def gradients(t):
            o, leaves = saved[id(t)]
            return torch.autograd.grad(o, leaves, t["do"], retain_graph=True)
        # from a thread of autograd's own, which a capture does not know; the kernels take far longer than the host
        contender = TorchContender(Flex.NAME, [lambda t=t: gradients(t) for t in sets], clock, captured=False)
        return contender, lambda t: torch.stack(gradients(t))
