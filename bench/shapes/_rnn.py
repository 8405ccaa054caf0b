"""Recurrent networks to measure: cases written in the words of the command line."""
from dataclasses import replace

from dnnkern.host.products import FLOATS
from dnnkern.rnn._parse import parse_problem

from . import _words

_SIZES = ("128x64 512x512 {cell} {{}}", "256x64 1024x1024 {cell} {{}}", "50x16 256x256 {cell} {{}} --layers 2 --bidirectional")
SETS = {
    "lstm": tuple(text.format(cell="lstm") for text in _SIZES),
    "gru": tuple(text.format(cell="gru") for text in _SIZES),
    "plain": tuple(f"128x64 512x512 {cell} {{}}" for cell in ("relu", "tanh")),
    "streaming": ("100x1 512x512 lstm {}", "100x1 512x512 gru {}", "1x1 1024x1024 gru {}"),
    "long": ("1000x32 256x256 lstm {}", "1000x32 256x256 gru {}"),
    "lengths": ("128x64 512x512 lstm {} --lengths", "128x64 512x512 gru {} --lengths"),
    "layers": ("100x1 512x512 lstm {} --layers 4", "50x16 256x256 lstm {} --layers 2", "128x64 512x512 gru {} --layers 2"),
    "projection": ("128x64 512x512 lstm {} --projection 128",),
}


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        p, a = self.problem, arrays
        keywords.update(lengths=a["lengths"], layout=p.layout)
        out = tuple(a[name] for name in p.results if getattr(p, name) is not None)
        if self.op == "rnn_fwd":
            return dnnkern.rnn_fwd(p.spec, a["x"], a["h0"], a["c0"], a["weights"], training=p.training, out=out, **keywords)
        if self.op == "rnn_bwd_data":
            return dnnkern.rnn_bwd_data(p.spec, a["dy"], a["dhn"], a["dcn"], a["x"], a["h0"], a["c0"], a["y"], a["weights"], a["reserve"],
                                        out=out, **keywords)
        return dnnkern.rnn_bwd_weights(p.spec, a["x"], a["h0"], a["y"], a["reserve"], out=out[0], **keywords)


class Shapes(_words.Shapes):
    """Networks, whose words say whether products of float32 are in TF32."""

    def cases(self, name, dtypes=("float32",), layouts=(), math=None):
        return self._with_math(super().cases(name, dtypes, layouts), math)

    def parse(self, text, dtypes=("float32",), layouts=(), math=None):
        return self._with_math(super().parse(text, dtypes, layouts), math)

    @staticmethod
    def _with_math(cases, math):
        return [replace(case, words=f"{case.words} --math {math}") if math and case.problem.dtype == "float32" else case for case in cases]


def shapes(op):
    """The sets of an operation; "training" are forward passes before the gradients of all others."""
    training = {"training": tuple(f"{text} --training" for some in SETS.values() for text in some)} if op == "rnn_fwd" else {}
    return Shapes(op, {**SETS, **training}, FLOATS, "128x64 512x512 lstm {}", case=Case)
