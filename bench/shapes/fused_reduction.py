"""Programs with reductions to measure, in the words of the command line: softmax and a norm spelled out, chains of 3, 6 and 10 functions
with sums, scaled casts."""
from dnnkern.fused._parse import parse_problem
from dnnkern.host.products import FLOATS

from . import _words

DTYPES = FLOATS
_SOFTMAX, _NORM = "sub@row-max exp div@row-add", "sub@row-avg div@row-norm2 mul@{n} add@{n}"
_THREE = "mul@{n} add@{m}x{n} relu --rows add"
_SIX = "mul@{n} add@{m}x{n} gelu mul@0.5 add@{m}x{n} sigmoid --rows add,amax"
_TEN = "mul@{n} add@{m}x{n} relu mul@{m}x{n} add@0.5 swish mul@0.25 add@{m}x{n} abs sqrt --rows add,norm2"


def _rows(m, n, *chains):
    return tuple(f"{m}x{n} {{}} {chain.format(m=m, n=n)}" for chain in chains)


SETS = {
    "rows": (*_rows(8192, 4096, _SOFTMAX, _NORM), *_rows(65536, 256, _SOFTMAX, _NORM), *_rows(8192, 16384, _SOFTMAX)),
    "chains": (*_rows(8192, 4096, _THREE, _SIX, _TEN), *_rows(32768, 4096, _THREE, _SIX, _TEN)),
    "odd": (*_rows(8192, 4095, _SOFTMAX, _NORM), *_rows(8192, 5000, _SOFTMAX)),
    "scaled": ("8192x8192 {} div@row-amax mul@0.5", "8192x8192 {} abs --rows amax --only-rows"),
    "small": _rows(64, 1024, _SOFTMAX, _THREE)}


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        p = self.problem
        given, out = ([arrays[name] for name in p.names if name[0] == letter] for letter in "xy")
        return dnnkern.fused_reduction(p.program, given, axes=p.axes, index_axes=p.index_axes, out=out[0] if len(out) == 1 else tuple(out),
                                       **keywords)


_SHAPES = _words.Shapes("fused_reduction", SETS, FLOATS, "4096x4096 {} sub@row-max exp div@row-add", case=Case)
cases, parse = _SHAPES.cases, _SHAPES.parse
