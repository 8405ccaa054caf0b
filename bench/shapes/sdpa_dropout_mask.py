"""Dropout masks of attention to write."""
from dnnkern.attention._parse import parse_problem
from dnnkern.host.products import FLOATS

from . import _words


class Case(_words.Case):
    """A problem of the family."""
    parse = staticmethod(parse_problem)

    def call(self, arrays, **keywords):
        """The public function on arrays by name; keywords are passed on (`algo`, `allow`)."""
        import dnnkern
        return dnnkern.sdpa_dropout_mask(arrays["x"], 0.5, 20, out=arrays["y"], **keywords)


DTYPES = FLOATS
_SHAPES = _words.Shapes("sdpa_dropout_mask", {"large": ("4x16x2048x2048 {}",), "odd": ("3x5x999x1003 {}",), "small": ("2x8x128x128 {}",)},
                        FLOATS, "4x16x1024x1024 {}", case=Case)
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
