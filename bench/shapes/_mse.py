"""Arrays to measure squared differences of: cases written in the words of the command line."""
from dnnkern.host.products import FLOATS
from dnnkern.loss._parse import parse_problem

from . import _words

SETS = {
    "large": ("268435456 {}", "16777216 {}", "64x3x512x512 {}  # images"),
    "none": ("134217728 {} --reduction none", "134217728 {} --reduction none --short  # losses of the operands' dtype"),
    "small": ("1048576 {}", "4096 {}"),
}


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        a, how = arrays, self.problem.reduction
        if self.op == "mse_loss_fwd":
            return dnnkern.mse_loss_fwd(a["x"], a["target"], reduction=how, out=a["loss"], **keywords)
        return dnnkern.mse_loss_bwd(a["dloss"], a["x"], a["target"], reduction=how, out=a["dx"], **keywords)


def shapes(op):
    """The sets of an operation."""
    return _words.Shapes(op, SETS, FLOATS, "16777216 {}", case=Case)
