"""Rows to normalise: cases written in the words of the command line."""
from dnnkern.host.products import FLOATS
from dnnkern.norm._parse import parse_problem

from . import _words

SETS = {
    "rows": tuple(f"{2 ** 26 // n}x{n} {{}}" for n in (128, 1024, 4096, 8192, 16384, 65536)),
    "hidden": ("16384x768 {}", "16384x5120 {}", "4096x12288 {}", "8192x1000 {}  # odd", "4096x4095 {}  # odd"),
}


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        named = [name for name, _, _ in self.problem.arrays]
        operands, outs = named[:-self.problem.results], named[-self.problem.results:]
        return getattr(dnnkern, self.op)(*(arrays.get(name) for name in operands), axis=self.problem.axis,
                                         out=tuple(arrays[name] for name in outs), **keywords)


def shapes(op):
    """The sets of an operation."""
    return _words.Shapes(op, SETS, FLOATS, "8192x4096 {}", case=Case)
