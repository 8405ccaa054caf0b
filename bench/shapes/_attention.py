"""Attention to measure: cases written in the words of the command line."""
from dnnkern.attention._parse import parse_problem
from dnnkern.host.products import FLOATS, FP8

from . import _words

SETS = {
    "training": ("4x16x4096x128 {}", "4x16x4096x128 {} --causal", "2x16x8192x128 {} --causal", "4x32x4096x64 {}",
                 "4x32x4096x64 {} --causal", "32x16x512x64 {}"),
    "widths": ("4x16x2048x80 {} --causal", "4x16x2048x96 {} --causal", "4x16x2048x160 {} --causal", "4x16x2048x192 {} --causal",
               "4x16x2048x256 {} --causal", "4x16x2048x192 {} --value-size 128 --causal  # DeepSeek V3"),
    "lengths": ("4x16x1000x128 {}", "4x16x4095x128 {} --causal", "8x16x1024x128 {} --layout thd --causal"),
    "grouped": ("1x64x4096x128 {} --kv-heads 8 --causal  # Llama 3.1", "2x64x4096x64 {} --kv-heads 8 --causal --window=1024,-1"),
    "options": ("4x16x2048x64 {} --bias heads", "4x16x2048x64 {} --mask pairs", "4x16x2048x64 {} --alibi --causal",
                "4x16x2048x64 {} --softcap 30 --causal", "4x16x2048x64 {} --dropout 0.1 --causal"),
    "exact": ("4x16x2048x64 {}", "4x16x2048x64 {} --causal"),
    "small": ("2x4x256x64 {}", "8x12x128x64 {}"),
}


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        p, a = self.problem, arrays
        names = ("bias", "seq_len_q", "seq_len_kv", "cu_seqlens_q", "cu_seqlens_kv", "sink", "mask",
                 *(("scale_q", "scale_k", "scale_v") if p.is_forward else ()))
        keywords.update({name: a.get(name) for name in names}, scale=p.scale, window=(p.left, p.right), align=p.align, alibi=p.alibi,
                        dropout=p.dropout, seed=20, softcap=p.softcap, layout=p.layout)
        if p.is_forward:
            out = a["o"] if p.lse is None else (a["o"], a["lse"])
            return dnnkern.sdpa_fwd(a["q"], a["k"], a["v"], return_lse=p.lse is not None, out=out, **keywords)
        out, keywords["sink_gradient"] = tuple(a[name] for name in p.output_names), p.dsink is not None
        return dnnkern.sdpa_bwd(*(a[name] for name in ("do", "q", "k", "v", "o", "lse")), out=out, **keywords)


def shapes(op):
    """The sets of an operation."""
    return _words.Shapes(op, SETS, (*FLOATS, *FP8) if op == "sdpa_fwd" else FLOATS, "4x16x4096x128 {} --causal", case=Case)
