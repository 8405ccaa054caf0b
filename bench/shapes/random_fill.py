"""Arrays to fill with random numbers."""
from dnnkern.dropout._parse import parse_problem
from dnnkern.host.products import FLOATS

from . import _words


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        return dnnkern.random_fill(arrays["x"], self.problem.distribution, 20, low=1.0, high=2.0, mean=1.0, p=1.0, out=arrays["y"],
                                   **keywords)


DTYPES = FLOATS
_SHAPES = _words.Shapes("random_fill", {"large": ("268435456 {} uniform", "268435456 {} normal"), "odd": ("9999991 {} normal",),
                                        "small": ("64x4096 {} uniform",)}, FLOATS, "8192x4096 {} normal", case=Case)
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
