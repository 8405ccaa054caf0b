"""Reductions to measure: cases written in the words of the command line."""
from dnnkern.host.products import FLOATS
from dnnkern.reduce._parse import parse_problem

from . import _words


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        p = self.problem
        if self.op == "reduce":
            return dnnkern.reduce(arrays["x"], p.mode, axes=p.axes, keepdims=p.keepdims, out=arrays["y"], **keywords)
        return dnnkern.argreduce(arrays["x"], p.mode, axis=p.axis, keepdims=p.keepdims, out=(arrays["value"], arrays["index"]), **keywords)


def shapes(op, sets, example):
    """Sets of an operation."""
    return _words.Shapes(op, sets, FLOATS, example, case=Case)
