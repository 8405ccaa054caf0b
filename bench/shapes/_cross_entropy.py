"""Classes to measure losses on: cases written in the words of the command line."""
from dnnkern.host.products import FLOATS
from dnnkern.loss._parse import parse_problem

from . import _words

SETS = {
    "vocabularies": ("8192x50257 {}  # GPT-2", "4096x128256 {}  # Llama 3", "8192x32000 {}", "2048x151936 {}"),
    "smooth": ("8192x50257 {} --smoothing 0.1", "8192x32768 {} --smoothing 0.1 --weight"),
    "networks": ("1024x1000 {}  # ImageNet", "65536x10 {}", "1048576x128 {}"),
    "pixels": ("16x21x512x512 {}  # VOC", "8x150x512x512 {}  # ADE20K", "8x19x512x1024 {} --weight  # Cityscapes"),
    "soft": ("8192x32000 {} --targets soft", "1024x1000 {} --targets soft --smoothing 0.1"),
    "few": ("1x1048576 {}", "64x256000 {}"),
}


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        p, a = self.problem, arrays
        keywords.update(weight=a.get("weight"), ignore_index=p.ignore_index, reduction=p.reduction)
        if self.op == "nll_loss_fwd":
            return dnnkern.nll_loss_fwd(a["logp"], a["targets"], out=a["loss"], **keywords)
        if self.op == "nll_loss_bwd":
            return dnnkern.nll_loss_bwd(a["dloss"], a["logp"], a["targets"], out=a["dlogp"], **keywords)
        keywords["label_smoothing"] = p.label_smoothing
        if p.is_forward:
            return dnnkern.cross_entropy_fwd(a["logits"], a["targets"], out=(a["loss"], a["lse"]), **keywords)
        return dnnkern.cross_entropy_bwd(a["dloss"], a["logits"], a["targets"], a["lse"], out=a["dlogits"], **keywords)


def shapes(op):
    """The sets of an operation; those of nll_loss without smoothing and probabilities."""
    sets = SETS if op.startswith("cross") else {name: SETS[name] for name in ("vocabularies", "networks", "pixels", "few")}
    return _words.Shapes(op, sets, FLOATS, "8192x50257 {}", case=Case)
