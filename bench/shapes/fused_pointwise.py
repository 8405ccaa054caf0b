"""Pointwise programs to measure: chains of 3, 6 and 10 functions on 2 to 5 arrays, in the words of the command line."""
from dnnkern.fused._parse import parse_problem
from dnnkern.host.products import FLOATS

from . import _words

DTYPES = FLOATS
_THREE = "mul@{operand} add@{array} relu"
_SIX = "mul@{operand} add@{array} gelu mul@0.5 add@{array} sigmoid"
_TEN = "mul@{operand} add@{array} relu mul@{array} add@0.5 swish mul@0.25 add@{array} abs sqrt"


def _chains(shape, operand):
    return tuple(f"{shape} {{}} {chain.format(operand=operand, array=shape)}" for chain in (_THREE, _SIX, _TEN))


SETS = {
    "rows": (*_chains("32768x4096", "4096"), *_chains("524288x256", "256")), "channels": _chains("64x256x56x56", "256x1x1"),
    "run": ("134217728 {} mul@134217728 relu", "134217728 {} mul@0.5 add@134217728 gelu"),
    "odd": ("32768x4095 {} mul@4095 add@32768x4095 gelu",),
    "layers": ("8192x14336 {} mul@8192x14336 swish --keep", "8192x4096 {} add@4096 gelu"),
    "small": ("4096 {} add@4096 gelu", "1048576 {} mul@0.5 add@1048576 relu"),
    "sizes": tuple(
        f"{n} {{}} mul@0.5 add@{n} relu" for n in (2 ** 22, 2 ** 24, 2 ** 26, 2 ** 28))}


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        p = self.problem
        given, out = ([arrays[name] for name in p.names if name[0] == letter] for letter in "xy")
        return dnnkern.fused_pointwise(p.program, given, axes=p.axes, out=out[0] if len(out) == 1 else tuple(out), **keywords)


_SHAPES = _words.Shapes("fused_pointwise", SETS, FLOATS, "4096x4096 {} mul@4096 add@4096x4096 gelu", case=Case)
cases, parse = _SHAPES.cases, _SHAPES.parse
