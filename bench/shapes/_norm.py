"""Rows to normalise: cases written in the words of the command line."""
from dnnkern.host.products import FLOATS
from dnnkern.norm._parse import parse_problem

from . import _words

SETS = {
    "rows": tuple(f"{2 ** 26 // n}x{n} {{}}" for n in (128, 1024, 4096, 8192, 16384, 65536)),
    "hidden": ("65536x128 {}", "16384x768 {}", "16384x5120 {}", "4096x12288 {}", "8192x1000 {}  # odd", "4096x4095 {}  # odd"),
    "images": ("64x96x56x56 {} --axis 1",),
    "sizes": tuple(f"{4 ** k}x4096 {{}}" for k in range(2, 9)),
}
RESIDUAL = tuple(f"{n} {{}} --residual" for n in ("65536x1024", "16384x4096", "4096x16384"))
MORE = {"layer_norm_fwd": {"residual": RESIDUAL}, "rms_norm_fwd": {"residual": RESIDUAL},
        "rms_norm_bwd": {"beta": ("16384x4096 {} --has-beta",)}}


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        named = [name for name, _, _ in self.problem.arrays]
        optional = [name for name in ("residual", "dsummed") if name in self.problem.names[0]]
        operands, outs = [name for name in self.problem.names[0] if name not in optional], named[-self.problem.results:]
        keywords.update({name: arrays[name] for name in optional if arrays.get(name) is not None})
        if self.op == "rms_norm_bwd":
            keywords["has_beta"] = self.problem.dbeta is not None
        return getattr(dnnkern, self.op)(*(arrays.get(name) for name in operands), axis=self.problem.axis,
                                         out=tuple(arrays[name] for name in outs), **keywords)


def shapes(op):
    """The sets of an operation."""
    return _words.Shapes(op, SETS | MORE.get(op, {}), FLOATS, "8192x4096 {}", case=Case)
