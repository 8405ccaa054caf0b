"""Arrays to drop elements of: cases written in the words of the command line."""
from dnnkern.dropout._parse import parse_problem
from dnnkern.host.products import FLOATS

from . import _words

SETS = {"large": ("16384x16384 {}",), "transformer": ("8192x4096 {}", "8192x16384 {}", "32x2048x768 {}"),
        "odd": ("9999991 {}", "4099x4097 {}"), "in-place": ("16384x16384 {} --in-place",), "small": ("64x4096 {}", "1024x1024 {}")}


class Case(_words.Case):
    """A problem of the family, with p = 1/2."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        if self.op == "dropout_fwd":
            return dnnkern.dropout_fwd(arrays["x"], 0.5, 20, out=(arrays["y"], arrays["mask"]), **keywords)
        return dnnkern.dropout_bwd(arrays["dy"], arrays["mask"], 0.5, out=arrays["dx"], **keywords)


def shapes(op):
    """The sets of an operation."""
    return _words.Shapes(op, SETS, FLOATS, "8192x4096 {}", case=Case)
