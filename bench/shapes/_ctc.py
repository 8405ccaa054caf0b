"""Sequences to measure the CTC loss on: cases written in the words of the command line."""
from dnnkern.host.products import FLOATS
from dnnkern.loss._parse import parse_problem

from . import _words

SETS = {
    "speech": ("512x32x128 {} 64 --targets int32", "1000x16x32 {} 200 --targets int32  # characters",
               "250x64x1024 {} 40 --targets int32  # word pieces", "2000x8x64 {} 400 --targets int32"),
    "handwriting": ("128x128x96 {} 32 --targets int32",),
}


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        p, a = self.problem, arrays
        keywords.update(blank=p.blank, zero_infinity=p.zero_infinity, normalized=p.normalized)
        sequences = a["logits"], a["targets"], a["input_lengths"], a["target_lengths"]
        if self.op == "ctc_loss_fwd":
            return dnnkern.ctc_loss_fwd(*sequences, out=(a["loss"], a["saved"]), **keywords)
        return dnnkern.ctc_loss_bwd(a["dloss"], *sequences, a["saved"], out=a["dlogits"], **keywords)


def shapes(op):
    """The sets of an operation."""
    return _words.Shapes(op, SETS, FLOATS, "512x32x128 {} 64", case=Case)
