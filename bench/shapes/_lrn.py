"""Images for local response normalisation: cases written in the words of the command line."""
from dnnkern.host.products import FLOATS
from dnnkern.norm._parse import parse_problem

from . import _words

SETS = {"networks": ("128x96x55x55 {}  # AlexNet", "128x256x27x27 {}  # AlexNet", "64x64x56x56 {}  # GoogLeNet",
                     "64x192x56x56 {}  # GoogLeNet"),
        "others": ("32x250x31x31 {}  # odd", "64x192x56x56 {} 9")}


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        named = [name for name, _ in self.problem.arrays]
        return getattr(dnnkern, self.op)(*(arrays[name] for name in named[:-1]), size=self.problem.size, layout=self.problem.layout,
                                         out=arrays[named[-1]], **keywords)


def shapes(op):
    """The sets of an operation."""
    return _words.Shapes(op, SETS, FLOATS, "64x192x56x56 {} 5", ("nhwc", "nchw"), case=Case)
