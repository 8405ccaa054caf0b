"""Attention of 8-bit operands as graphs: ``python -m dnnkern bench graph --only attention_fp8``.

q, k, v and the result are e4m3 with factors, probabilities have a factor and its inverse, and the largest probability and the largest
result are kept for the next step's factors: cuDNN's `sdpa_fp8`. `plain` is our attention of 16-bit operands of the same sizes.
"""
import functools
import math
from dataclasses import dataclass

from .graph_build import Making

E4M3, LARGEST = "float8_e4m3fn", 448.0
SIZES = (4, 16, 4096, 128), (4, 32, 4096, 64), (4, 16, 2048, 256)
FACTORS = {"descale_q": 0.5, "descale_k": 0.5, "descale_v": 0.25, "descale_s": 1 / 256, "scale_s": 256.0, "scale_o": 64.0}
RESULTS = "y", "amax_s", "amax_o"


@dataclass(frozen=True)
class AttentionFp8Case:
    """As `graph.Case`: attention of (batch, heads, rows and keys, elements); `io` is the type of `plain`."""
    sizes: tuple
    causal: bool
    io: str
    anchor, dtype, results = "sdpa", E4M3, RESULTS

    @functools.cached_property
    def shapes(self):
        """{name: (dims, dtype)}; those with 16 are of the plain attention."""
        of_rows = {"q": E4M3, "k": E4M3, "v": E4M3, "y": E4M3, **dict.fromkeys(("q16", "k16", "v16", "plain"), self.io)}
        ones = dict.fromkeys((*FACTORS, "amax_s", "amax_o"), ((1, 1, 1, 1), "float32"))
        return {**{name: (self.sizes, dtype) for name, dtype in of_rows.items()}, **ones}

    @property
    def slack(self):
        """The first rows of a causal mask are many times as large as the others, and so are their errors beside the size of all."""
        return 4 if self.causal else 1

    @property
    def bytes(self):
        """Read and written once each."""
        return 4 * math.prod(self.sizes)

    def arrays(self, device):
        """{name: a new tensor}; operands are normal numbers times 2, or times 4, as their factors undo."""
        import torch
        found = {}
        for name, (dims, dtype) in self.shapes.items():
            factor = FACTORS.get(name) or 1 / FACTORS.get(f"descale_{name}", 1)
            t = torch.full(dims, factor, device=device) if name in FACTORS else torch.randn(dims, device=device) * factor
            found[name] = t.to(getattr(torch, dtype))
        return found

    def eager(self):
        """A function that computes (y, amax_s, amax_o) on {name: tensor}, head by head, from the definition."""
        import torch

        def run(t):
            q, k, v = (t[name] * t[f"descale_{name}"] for name in "qkv")
            y, largest = torch.empty_like(q), q.new_zeros(1)
            hidden = torch.ones(q.shape[2], k.shape[2], device=q.device, dtype=torch.bool).triu(1) if self.causal else None
            for at in ((b, h) for b in range(q.shape[0]) for h in range(q.shape[1])):
                x = q[at] @ k[at].mT * self.sizes[3] ** -0.5
                p = torch.softmax(x if hidden is None else x.masked_fill(hidden, -math.inf), -1)
                largest, y[at] = torch.maximum(largest, p.max()), p @ v[at]
            return (y * t["scale_o"]).clamp(-LARGEST, LARGEST), largest.reshape(1, 1, 1, 1), y.abs().amax().reshape(1, 1, 1, 1)
        return run

    peers = ()

    def graph(self, arrays, handle=None, alone=False):
        """(the graph, built, {tensor: name of its array}); `alone`: of 16 bits."""
        making = Making(self, self.io if alone else E4M3, arrays, handle)
        options = {"attn_scale": self.sizes[3] ** -0.5, "use_causal_mask": self.causal}
        if alone:
            o, _ = making.graph.sdpa(*map(making.tensor, ("q16", "k16", "v16")), is_inference=True, **options)
            making.result(o, "plain")
            return making.built()
        y, _, amax_s, amax_o = making.graph.sdpa_fp8(*map(making.tensor, "qkv"), **{name: making.tensor(name) for name in FACTORS},
                                                     generate_stats=False, **options)
        for name, t in zip(RESULTS, (y, amax_s, amax_o)):
            making.result(t, name)
        return making.built()

    def __str__(self):
        b, h, s, d = self.sizes
        return f"sdpa_fp8 b{b} h{h} s{s} d{d}{' causal' * self.causal} e4m3 scales amax"


def attention_fp8_cases(dtypes, small=False):
    """Each size, without a mask and causal, beside attention of the last of the types."""
    return [AttentionFp8Case(sizes, causal, dtypes[-1]) for sizes in (((1, 2, 40, 32),) if small else SIZES) for causal in (False, True)]
