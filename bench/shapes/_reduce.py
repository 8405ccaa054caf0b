"""Reductions to measure: cases written in the words of the command line."""
import functools
from dataclasses import dataclass

from dnnkern.host.products import FLOATS
from dnnkern.reduce._parse import parse_problem

from . import _transform


@dataclass(frozen=True)
class Case:
    """One problem; `words` are those of ``python -m dnnkern explain``."""
    op: str
    words: str
    label: str = ""

    @functools.cached_property
    def problem(self):
        return parse_problem(self.words.split(), self.op)

    def call(self, arrays, **keywords):
        """The public function on arrays by name, with `out`; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        p = self.problem
        if self.op == "reduce":
            return dnnkern.reduce(arrays["x"], p.mode, axes=p.axes, keepdims=p.keepdims, out=arrays["y"], **keywords)
        return dnnkern.argreduce(arrays["x"], p.mode, axis=p.axis, keepdims=p.keepdims, out=(arrays["value"], arrays["index"]), **keywords)

    def __str__(self):
        return str(self.problem).removeprefix(self.op + " ") + (f" ({self.label})" if self.label else "")


def shapes(op, sets, example):
    """Sets of an operation."""
    return _transform.Shapes(op, sets, FLOATS, example, case=Case)
