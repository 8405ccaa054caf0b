"""Random numbers: validation, and the elements in the order in which they are numbered."""
import functools
from dataclasses import dataclass

from ..host import seeds
from ..host.canonical import MOST_DIMENSIONS, Dim, check_output, sizes_text
from ..host.choices import one_of
from ..host.products import FLOATS
from ..host.tensor import Tensor

DISTRIBUTIONS = ("uniform", "normal", "bernoulli")
GROUP = 4
"""Elements of one call of Philox."""


@dataclass(frozen=True)
class RandomProblem(seeds.Drawn):
    """``y[...] = random numbers``, y being of x's shape and dtype, and mostly x itself: all but the addresses, the seed and the numbers of
    the distribution.

    Attributes
    ----------
    x, y : Tensor
    distribution : str
    in_place : bool
        x is y.
    seed_array, offset_array : Tensor or None
        Where the seed and the offset are read from; None: they are numbers of the call.
    """
    x: Tensor
    y: Tensor
    distribution: str
    in_place: bool = True
    seed_array: Tensor | None = None
    offset_array: Tensor | None = None
    op, flops, scalar_type = "random_fill", 0, "float32"
    scalar_types = {"seed": "uint64", "offset": "uint64"}

    def __post_init__(self):
        x = self.x
        one_of(self.op, "distribution", self.distribution, DISTRIBUTIONS)
        if x.dtype not in FLOATS:
            raise TypeError(f"{self.op}: x is {x.dtype}; expected one of {', '.join(FLOATS)}")
        if x.ndim > MOST_DIMENSIONS:
            raise ValueError(f"{self.op}: x has {x.ndim} dimensions (shape {x.shape}); expected {MOST_DIMENSIONS} at most")
        check_output(self.op, self.y, x.shape, x.dtype)
        seeds.check(self.op, self.seed_array, self.offset_array)

    @functools.cached_property
    def dims(self) -> tuple:
        """y's dimensions in their order, those that are one merged."""
        found = []
        for n, s in zip(self.y.shape, self.y.strides):
            if n == 1:
                continue
            if found and found[-1].y == s * n:
                found[-1] = Dim(found[-1].size * n, s, s)
            else:
                found.append(Dim(n, s, s))
        return tuple(found) or (Dim(1, 1, 1),)

    @property
    def is_wide(self):
        """Whether an element offset does not fit 32 bits."""
        return any(abs(edge) // self.y.itemsize >= 2 ** 31 - 64 for edge in self.y.extent)

    def __str__(self):
        strided = "" if self.y.is_packed else f" strides {self.y.strides}"
        return f"{self.op} {sizes_text(self.y.shape)} {self.dtype} {self.distribution}{seeds.in_words(self)}{strided}"


def make_random(tensors, out, distribution, aliases):
    """`RandomProblem` of a call; in place where there is no `out`."""
    x, *words = tensors
    if x is None:
        raise TypeError("random_fill: x: got NoneType; expected an array")
    return RandomProblem(x, x if out is None else out, distribution, "x" in aliases, *words)
