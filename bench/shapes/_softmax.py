"""Rows to take a softmax of: cases written in the words of the command line."""
from dnnkern.host.products import FLOATS
from dnnkern.softmax._parse import parse_problem

from . import _words

SETS = {
    "rows": tuple(f"{2 ** 27 // n}x{n} {{}}" for n in (1024, 2048, 4096, 8192, 16384, 32768, 65536)),
    "odd": ("134217x1000 {}", "65536x1023 {}", "4096x32001 {}", "2048x50257 {}  # a vocabulary"),
    "short": ("2097152x64 {}", "1048576x128 {}", "4194304x10 {}", "524288x197 {}"),
    "long": ("1024x131072 {}", "512x256000 {}", "16x4194304 {}", "1x67108864 {}"),
    "log": ("32768x4096 {} --log", "4096x32000 {} --log"),
    "sizes": tuple(f"{4 ** k}x4096 {{}}" for k in range(2, 9)),
    "axes": ("64x256x56x56 {} --axis 1", "16x21x512x512 {} --axis 1", "8192x8192 {} --axis 0", "64x1024x1024 {} --axis 1"),
}


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        p = self.problem
        if self.op == "softmax_fwd":
            return dnnkern.softmax_fwd(arrays["x"], axis=p.axis, log=p.log, out=arrays["y"], **keywords)
        return dnnkern.softmax_bwd(arrays["dy"], arrays["y"], axis=p.axis, log=p.log, out=arrays["dx"], **keywords)


def shapes(op):
    """The sets of an operation."""
    return _words.Shapes(op, SETS, FLOATS, "8192x4096 {}", case=Case)
