"""The problems of gradients as a whole: their norm, and what clips them to one."""
import functools
import re
from dataclasses import dataclass

from ..device.rows import Dim, merged
from ..host.products import FLOATS
from ..host.tensor import Tensor

OPS = ("grad_norm", "clip_grad_norm")
SINGLES = ("out", "grad_scale", "found_inf")


@dataclass(frozen=True)
class NormProblem:
    """``norm = sqrt(sum((grads / grad_scale)**2))`` over all arrays of a list: all but addresses and numbers.

    Attributes
    ----------
    op : "grad_norm" or "clip_grad_norm"
        The latter scales the arrays in place.
    grads : tuple of Tensor
    out : Tensor
        Of one element, the norm.
    grad_scale, found_inf : Tensor or None
    """
    op: str
    grads: tuple
    out: Tensor
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None
    flops = 0
    outputs = ()
    is_empty = False  # the norm of nothing is 0
    flags = ()

    def __post_init__(self):
        for k, t in enumerate(self.grads):
            if t.dtype not in FLOATS:
                raise TypeError(f"{self.op}: grads[{k}] is {t.dtype}; expected one of {', '.join(FLOATS)}")
            if self.clips:
                t.check_addresses(self.op, f"grads[{k}]")
        for name, dtype in (("out", self.norm_dtype), ("grad_scale", "float32"), ("found_inf", "float32")):
            t = getattr(self, name)
            if t is not None and t.dtype != dtype:
                raise TypeError(f"{self.op}: {name} is {t}; expected one {dtype} number")
            if t is not None and t.size != 1:
                raise ValueError(f"{self.op}: {name} is {t}; expected one {dtype} number")

    @property
    def clips(self):
        return self.op == "clip_grad_norm"

    @property
    def norm_dtype(self):
        """float32, or float64 where the first array is."""
        return norm_dtype(self.grads[0].dtype)

    @property
    def count(self):
        return len(self.grads)

    @property
    def given(self):
        """Names of the lists and numbers that are not missing."""
        return ("grads", *(name for name in SINGLES if getattr(self, name) is not None))

    def __getattr__(self, name):
        """The arrays are the operands grads0, grads1, ..."""
        found = re.fullmatch(r"grads(\d+)", name)
        if found and int(found[1]) < len(self.grads):
            return self.grads[int(found[1])]
        raise AttributeError(name)

    def dims(self, k):
        """Dimensions of array k, merged where they are one."""
        return merged(Dim(n, (s,)) for n, s in zip(self.grads[k].shape, self.grads[k].strides))

    @functools.cached_property
    def filled(self):
        """Numbers of the arrays that have elements."""
        return tuple(k for k, t in enumerate(self.grads) if t.size)

    @functools.cached_property
    def flat(self):
        """Numbers of those that lie in memory without gaps."""
        return tuple(k for k in self.filled if len(self.dims(k)) < 2 and all(d.strides == (1,) for d in self.dims(k)))

    @property
    def compute(self):
        """Type of squares and sums: float64 where an array is."""
        return "float64" if any(t.dtype == "float64" for t in self.grads) else "float32"

    @property
    def scalar_type(self):
        return self.compute

    @property
    def bytes(self):
        """Bytes that must move: each element read, and where there is something to clip read again and written."""
        return sum(t.nbytes for t in self.grads) * (3 if self.clips else 1)

    def operand_values(self, name):
        """What to measure on: nothing is scaled; None for other operands."""
        import numpy as np
        return np.float32(1) if name == "grad_scale" else None

    def __str__(self):
        more = [name for name in SINGLES[1:] if getattr(self, name) is not None]
        return (f"{self.op} {self.count} arrays of {sum(t.size for t in self.grads)} elements "
                f"{', '.join(sorted({t.dtype for t in self.grads}))}" + (f" + {', '.join(more)}" if more else ""))


def norm_dtype(dtype):
    """dtype of the norm of arrays of which the first has this dtype."""
    return "float64" if dtype == "float64" else "float32"


def make_norm(op, lists, singles):
    """`NormProblem` of a call."""
    return NormProblem(op, lists["grads"], **singles)
