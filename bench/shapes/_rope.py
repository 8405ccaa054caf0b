"""Rotary embeddings to measure: cases written in the words of the command line."""
from dnnkern.attention._parse import parse_problem
from dnnkern.host.products import FLOATS

from . import _words

SETS = {"models": ("4x32x4096x128 {}  # Llama", "4x4096x32x128 {} --heads-inside", "8x16x2048x64 {} --interleaved",
                   "2x32x4096x80 {} --pairs 16"),
        "in-place": ("4x32x4096x128 {} --in-place",), "odd": ("4x32x1000x100 {}",), "small": ("2x8x256x64 {}",)}


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        given, result = self.problem.names
        return getattr(dnnkern, self.op)(arrays[given], arrays["cos"], arrays["sin"], interleaved=self.problem.interleaved,
                                         out=arrays[result], **keywords)


def shapes(op):
    """The sets of an operation."""
    return _words.Shapes(op, SETS, FLOATS, "4x32x4096x128 {}", case=Case)
