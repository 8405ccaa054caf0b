"""The problem of a slice: every so many elements of x, from one on, along each dimension."""
import functools
import operator
from dataclasses import dataclass

from ...host.canonical import Canonical, canonical, check_output
from ...host.tensor import Tensor
from .._problem import Moves, check_moved


@dataclass(frozen=True)
class SliceProblem(Moves):
    """``y[i0, i1, ...] = x[starts[0] + i0 * steps[0], starts[1] + i1 * steps[1], ...]``: all but the addresses.

    Attributes
    ----------
    x, y : Tensor
    starts, steps : tuple of int
        One entry a dimension; starts are counted from 0.
    """
    x: Tensor
    y: Tensor
    starts: tuple
    steps: tuple
    op = "strided_slice"

    def __post_init__(self):
        check_moved(self.op, self.x)
        sizes = zip(self.y.shape, self.x.shape, self.starts, self.steps)
        if not len(self.x.shape) == len(self.y.shape) == len(self.starts) == len(self.steps) or not all(
                step and (m == 0 or 0 <= start < n and 0 <= start + (m - 1) * step < n) for m, n, start, step in sizes):
            raise ValueError(f"strided_slice: starts {self.starts} and steps {self.steps} do not take {self.y.shape} out of x's "
                             f"{self.x.shape}")
        check_output(self.op, self.y, self.y.shape, self.x.dtype)

    @functools.cached_property
    def canonical(self) -> Canonical:
        """The elements as they are."""
        strides = tuple(s * step for s, step in zip(self.x.strides, self.steps))
        first = sum(s * start for s, start in zip(self.x.strides, self.starts))
        return canonical(self.y.shape, strides, self.y.strides, self.x.itemsize, first)

    @property
    def stops(self):
        """As the public function takes them."""
        ends = (start + m * step for m, start, step in zip(self.y.shape, self.starts, self.steps))
        return tuple(end if end >= 0 else None for end in ends)

    @property
    def words(self):
        """In the words of the command line."""
        found = []
        for n, m, start, stop, step in zip(self.x.shape, self.y.shape, self.starts, self.stops, self.steps):
            first = "" if start == (0 if step > 0 else n - 1) else start
            last = "" if stop is None or stop >= n else stop
            found.append((f"{first}:{last}" if m else "0:0") + (f":{step}" if step != 1 else ""))
        return ",".join(found)


def make_slice_problem(tensors, out, starts, stops, steps, aliases):
    """`SliceProblem` of a call."""
    (x,) = tensors
    check_moved("strided_slice", x)
    steps = (1,) * x.ndim if steps is None else steps
    bounds = [_entries(name, given, x.ndim) for name, given in (("starts", starts), ("stops", stops), ("steps", steps))]
    firsts, shape, strides = [], [], []
    for n, start, stop, step in zip(x.shape, *bounds):
        step = 1 if step is None else step
        if step == 0:
            raise ValueError(f"strided_slice: steps={steps!r} has a 0")
        taken = range(*slice(start, stop, step).indices(n))
        firsts.append(taken.start if taken else 0)
        shape.append(len(taken))
        strides.append(step)
    shape = tuple(shape)
    if out is not None:
        check_output("strided_slice", out, shape, x.dtype)
    return SliceProblem(x, out if out is not None else Tensor.packed(shape, x.dtype), tuple(firsts), tuple(strides))


def _entries(name, given, ndim):
    """An int or None for each dimension."""
    try:
        found = tuple(v if v is None else operator.index(v) for v in given)
    except TypeError:
        raise TypeError(f"strided_slice: {name}={given!r}; expected an int, or None, for each of {ndim} dimensions") from None
    if len(found) != ndim:
        raise ValueError(f"strided_slice: {name}={given!r} has {len(found)} entries, x has {ndim} dimensions")
    return found
