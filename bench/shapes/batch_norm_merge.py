"""Statistics to merge, of as many parts as devices."""
from dnnkern.norm._parse import parse_problem

from . import _words

SETS = {"devices": ("8x2048 {}", "8x64 {} --running float32", "2x512 {}", "64x2048 {} --running float32")}
DTYPES = ("float32", "float64")


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        a = arrays
        return dnnkern.batch_norm_merge(a["means"], a["rstds"], a["counts"], a.get("running_mean"), a.get("running_var"),
                                        out=(a["mean"], a["var"], a["rstd"]), **keywords)


_SHAPES = _words.Shapes("batch_norm_merge", SETS, DTYPES, "8x2048 {}", case=Case)
cases, parse = _SHAPES.cases, _SHAPES.parse
