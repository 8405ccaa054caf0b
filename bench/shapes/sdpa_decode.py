"""Attention to caches to measure: cases written in the words of the command line."""
from dnnkern.attention._parse import parse_problem
from dnnkern.host.products import FLOATS

from . import _words

DTYPES = FLOATS
SETS = {
    "batch": ("64x32x1024x128 {} --kv-heads 8", "64x32x8192x128 {} --kv-heads 8", "16x32x32768x128 {} --kv-heads 8"),
    "paged": ("64x32x1024x128 {} --kv-heads 8 --page 64", "64x32x8192x128 {} --kv-heads 8 --page 64",
              "64x32x8192x128 {} --kv-heads 8 --page 16"),
    "few": ("1x32x8192x128 {} --kv-heads 8", "4x32x8192x128 {} --kv-heads 8", "8x32x32768x128 {} --kv-heads 8",
            "1x32x131072x128 {} --kv-heads 8"),
    "models": ("64x64x4096x64 {} --kv-heads 8 --window 128 --sink", "32x16x8192x128 {}",
               "32x128x4096x576 {} --kv-heads 1 --value-size 512"),
    "latent": ("1x128x4096x576 {} --kv-heads 1 --value-size 512", "128x16x4096x576 {} --kv-heads 1 --value-size 512",
               "32x128x4096x576 {} --kv-heads 1 --value-size 512 --page 64",
               "32x64x4096x576 {} --kv-heads 1 --value-size 512 --rows 2"),
    "tall": ("32x64x8192x128 {} --kv-heads 1", "16x32x8192x128 {} --kv-heads 8 --rows 8", "32x64x4096x256 {} --kv-heads 2"),
    "small": ("2x8x512x64 {} --kv-heads 2",),
}


class Case(_words.Case):
    """A problem of the operation."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        p, a = self.problem, arrays
        return dnnkern.sdpa_decode(a["q"], a["k_cache"], a["v_cache"], a["seq_len_kv"], page_table=a.get("page_table"), scale=p.scale,
                                   window=(p.left, -1), softcap=p.softcap, sink=a.get("sink"), layout=p.layout,
                                   bias=a.get("bias"), cu_seqlens_q=a.get("cu_seqlens_q"), scale_k=a.get("scale_k"),
                                   scale_v=a.get("scale_v"), return_lse=p.lse is not None,
                                   out=a["o"] if p.lse is None else (a["o"], a["lse"]), **keywords)


_SHAPES = _words.Shapes("sdpa_decode", SETS, FLOATS, "64x32x8192x128 {} --kv-heads 8", case=Case)
cases, parse = _SHAPES.cases, _SHAPES.parse
