"""The problem of an optimiser's step: lists of arrays, validated, and how each parameter's arrays lie."""
import functools
import re
from dataclasses import dataclass

from ..device.rows import Dim, merged
from ..host.products import FLOATS
from ..host.tensor import Tensor
from ._rule import rule_of

SINGLES = ("grad_scale", "found_inf", "step")
SIXTEEN_BITS = ("float16", "bfloat16")


@dataclass(frozen=True)
class StepProblem:
    """One step of an optimiser on lists of arrays, in place: all but addresses and numbers.

    Attributes
    ----------
    op : str
        The step function.
    params, grads : tuple of Tensor
        One a parameter.
    states : tuple of (str, tuple of Tensor)
        Name of a list of states, and its tensors.
    master : tuple of Tensor or None
        The parameters in float32, where `params` are 16-bit copies of them.
    flags : tuple of str
        What makes it another kernel: see the rule.
    grad_scale, found_inf, step : Tensor or None
        A number that gradients are divided by, one that says to do nothing, and which step it is, where the host does not say.
    """
    op: str
    params: tuple
    grads: tuple
    states: tuple
    master: tuple | None = None
    flags: tuple = ()
    grad_scale: Tensor | None = None
    found_inf: Tensor | None = None
    step: Tensor | None = None
    flops = 0
    outputs = ()

    def __post_init__(self):
        for k, p in enumerate(self.params):
            self._check_parameter(k, p)
        for name in SINGLES:
            t = getattr(self, name)
            if t is not None and (t.dtype != "float32" or t.size != 1):
                raise (TypeError if t.dtype != "float32" else ValueError)(f"{self.op}: {name} is {t}; expected one float32 number")

    def _check_parameter(self, k, p):
        if p.dtype not in FLOATS:
            raise TypeError(f"{self.op}: params[{k}] is {p.dtype}; expected one of {', '.join(FLOATS)}")
        for name, tensors in self.lists:
            t = tensors[k]
            if t.shape != p.shape:
                raise ValueError(f"{self.op}: {name}[{k}] has shape {t.shape}, params[{k}] has {p.shape}; expected the same shape")
            if name != "grads":
                t.check_addresses(self.op, f"{name}[{k}]")
            allowed = self._dtypes(name, p.dtype)
            if t.dtype not in allowed:
                raise TypeError(f"{self.op}: {name}[{k}] is {t.dtype}, params[{k}] is {p.dtype}; expected {' or '.join(allowed)}")
        if self.master is not None and p.dtype not in SIXTEEN_BITS:
            raise TypeError(f"{self.op}: params[{k}] is {p.dtype} beside master weights; expected {' or '.join(SIXTEEN_BITS)}")

    @staticmethod
    def _dtypes(name, dtype):
        if name == "params" or dtype == "float64":
            return (dtype,)
        if name == "grads":
            return ("float32", *SIXTEEN_BITS)
        return ("float32",) if name == "master" or dtype == "float32" else ("float32", dtype)

    # ---- lists

    @functools.cached_property
    def lists(self):
        """((name, tensors), ...): the parameters, the gradients, the states that there are, the master weights."""
        found = [("params", self.params), ("grads", self.grads), *self.states]
        return (*found, ("master", self.master)) if self.master is not None else tuple(found)

    @property
    def count(self):
        """Length of the lists."""
        return len(self.params)

    @property
    def given(self):
        """Names of the lists and numbers that are not missing."""
        return (*(name for name, _ in self.lists), *(name for name in SINGLES if getattr(self, name) is not None))

    def __getattr__(self, name):
        """The arrays are the operands params0, params1, ..., grads0, ..."""
        found = re.fullmatch(r"([a-z]\w*?)(\d+)", name)
        if found:
            for known, tensors in self.lists:
                if known == found[1] and int(found[2]) < len(tensors):
                    return tensors[int(found[2])]
        raise AttributeError(name)

    def arrays(self, k):
        """The tensors of parameter k, in the order of `lists`."""
        return tuple(tensors[k] for _, tensors in self.lists)

    @functools.cached_property
    def flat(self):
        """Numbers of the parameters whose arrays, with elements, are alike and without gaps: memory from the first element to the last."""
        dims = {k: self.dims(k) for k in self.filled}
        return tuple(k for k in self.filled if len(dims[k]) < 2 and all(set(d.strides) == {1} for d in dims[k]))

    @functools.cached_property
    def filled(self):
        """Numbers of the parameters that have elements."""
        return tuple(k for k, p in enumerate(self.params) if p.size)

    def dims(self, k):
        """Dimensions of parameter k, merged where they are one in all its arrays, with the stride of each array."""
        arrays = self.arrays(k)
        return merged(Dim(n, tuple(t.strides[d] for t in arrays)) for d, n in enumerate(self.params[k].shape))

    # ---- what is computed

    @property
    def rule(self):
        return rule_of(self.op)

    @property
    def scalar_type(self):
        """Type of the numbers: float64 where an array is."""
        return "float64" if any(p.dtype == "float64" for p in self.params) else "float32"

    @property
    def compute(self):
        return self.scalar_type

    @property
    def is_empty(self):
        return not self.filled

    @functools.cached_property
    def bytes(self):
        """Bytes that must move: gradients read, states and parameters read and written; beside master weights parameters are written."""
        once = {"grads"} | ({"params"} if self.master is not None else set())
        return sum(t.nbytes * (1 if name in once else 2) for name, tensors in self.lists for t in tensors)

    def operand_values(self, name):
        """What to measure on: states are positive, nothing is skipped; None for other operands."""
        import numpy as np

        from ..host.dtypes import STORAGE, numpy_dtype
        known = {"grad_scale": 1.0, "found_inf": 0.0, "step": 10.0, **{state: 0.5 for state, _ in self.states}}
        value = known.get(name.rstrip("0123456789"))
        dtype = getattr(self, name).dtype
        return None if value is None else np.asarray(value).astype(numpy_dtype(dtype)).view(STORAGE[dtype])

    def __str__(self):
        elements = sum(p.size for p in self.params)
        dtypes = sorted({"/".join(t.dtype for t in self.arrays(k)) for k in range(self.count)})
        more = [*self.flags, *self.given[2 + len(self.states):]]
        return f"{self.op} {self.count} arrays of {elements} elements {', '.join(dtypes)}" + (f" + {', '.join(more)}" if more else "")


def make_step(op, lists, singles, flags):
    """`StepProblem` of a call."""
    names = rule_of(op).states
    states = tuple((name, lists[name]) for name in names if lists[name] is not None)
    return StepProblem(op, lists["params"], lists["grads"], states, lists["master"], flags, **singles)
