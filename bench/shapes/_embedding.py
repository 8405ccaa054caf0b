"""Embeddings to measure: cases written in the words of the command line."""
from dnnkern.embedding._parse import parse_problem
from dnnkern.host.products import FLOATS as DTYPES

from . import _words

SETS = {
    "language": ("50257x768 {} 16x1024  # GPT-2 small", "32000x4096 {} 4x4096  # Llama", "30522x1024 {} 32x512  # BERT",
                 "128256x4096 {} 8192"),
    "recommendation": ("1000000x64 {} 65536", "100000x128 {} 8192x26  # DLRM"),
    "few": ("1024x768 {} 16x1024  # places", "2x1024 {} 32x512  # segments"),
    "small": ("50257x768 {} 32", "1000x64 {} 512")}


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        a, p = arrays, self.problem
        if p.is_forward:
            return dnnkern.embedding_fwd(a["weight"], a["indices"], out=a["y"], **keywords)
        return dnnkern.embedding_bwd(a["dy"], a["indices"], p.table.shape[0], padding_idx=p.padding_idx if p.padding_idx >= 0 else None,
                                     scale_grad_by_freq=p.scale_grad_by_freq, out=a["dweight"], **keywords)


def shapes(op):
    """The sets of an operation."""
    return _words.Shapes(op, SETS, DTYPES, "50257x768 {} 16x1024", case=Case)
