"""Programs of attention's scores, each with its definition and its derivative in float64: what the cases with a `score_mod` have."""
from dataclasses import dataclass
from typing import Callable

import numpy as np

from . import coherent, lay, rounded
from ._programs import _program, _step

CAP, LENGTH = 1.5, 0.5


@dataclass(frozen=True)
class ScoreMod:
    """A modifier.

    Attributes
    ----------
    loads : tuple of (dtype, access, axes)
        Of its operands in memory, the axes along which they vary; of indices ("int32", "index", axis); of numbers (dtype, "value", number).
    make : callable(loads, compute) -> Program
    value : callable(x, operands, indices) -> (the scores, their derivative by x)
        Of the scaled products (heads, rows, keys) of a batch, and of operands that broadcast to them.
    back : callable(loads, compute) -> Program, optional
    back_loads : tuple
        Those of `back`.
    ascending : bool
        Whether integers go up along the rows, or keys: parts of a sequence.
    """
    loads: tuple
    make: Callable
    value: Callable
    back: Callable | None = None
    back_loads: tuple = ()
    ascending: bool = False

    def own(self, backward):
        """{name: load} of what a direction has."""
        return {f"x{k}": load for k, load in enumerate(self.loads + self.back_loads * backward)}

    def places(self, sizes, backward, layout):
        """{name: Place} of operands in memory; `sizes` are those of "b", "h", "i" and "j"."""
        return {name: lay(tuple(n if axis in axes else 1 for axis, n in sizes.items()), dtype, **layout.get(name, {}))
                for name, (dtype, access, axes) in self.own(backward).items() if access not in ("index", "value")}

    def numbers(self, backward):
        return tuple(number for _, access, number in self.own(backward).values() if access == "value")

    def parts(self, compute, sizes, tensors, backward):
        """Fields of a problem, whose tensors are given by name."""
        from dnnkern.host.tensor import Tensor
        extras = []
        for name, (dtype, access, axis) in self.own(backward).items():
            if access == "index":
                extras.append(Tensor(tuple(sizes.values()), tuple(int(d == axis) for d in range(4)), "int32"))
            else:
                extras.append(Tensor((), (), dtype) if access == "value" else tensors[name])
        found = {"score_mod": self.make([load[:2] for load in self.loads], compute), "extras": tuple(extras)}
        if backward:
            found["score_mod_bprop"] = self.back and self.back([load[:2] for load in self.back_loads], compute)
        return found

    def operand_value(self, rng, place):
        """Integers are few and alike, floats normal."""
        x = rng.integers(0, 3, place.shape) if place.dtype == "int32" else rng.standard_normal(place.shape)
        if self.ascending:
            x = (np.arange(max(place.shape[2:])).reshape(1, 1, *place.shape[2:]) + 7 * np.arange(place.shape[0]).reshape(-1, 1, 1, 1)) // 24
        return coherent(rounded(x.astype(float), place.dtype), place)

    def apply(self, x, error, unit, values, b):
        """(scores, their derivatives, their errors) of scaled products with these errors."""
        memory = [values[name][b % len(values[name])][..., :x.shape[1] if values[name].shape[2] > 1 else 1,
                                                      :x.shape[2] if values[name].shape[3] > 1 else 1] if name in values else load[2]
                  for name, load in self.own(False).items()]
        y, derivative = self.value(x, memory, (b, *np.ogrid[:x.shape[0], :x.shape[1], :x.shape[2]]))
        size = 2 + np.abs(x) + np.abs(np.where(np.isfinite(y), y, 0)) + sum(np.abs(m) for m in memory if isinstance(m, np.ndarray))
        return y, derivative, np.abs(derivative) * error + 16 * unit * size


def _capped(loads, compute):
    return _program(((compute, 1 / CAP), (compute, CAP)), (_step("mul", 0, 1, compute=compute), _step("tanh", 3, compute=compute),
                                                           _step("mul", 4, 2, compute=compute)))


def _capped_back(loads, compute):
    steps = _step("mul", 1, 2, compute=compute), _step("tanh_backward", 0, 3, compute=compute)
    return _program(((compute, 1 / CAP),), steps, (), None, 2)


def _alibi(loads, compute):
    return _program(loads, (_step("sub", 3, 2, compute="int32"), _step("mul", 4, 1, compute=compute), _step("add", 0, 5, compute=compute)))


def _documents(loads, compute):
    return _program((*loads, (compute, -float("inf"))), (_step("cmp_eq", 1, 2, compute="int32"),
                                                         _step("binary_select", 0, 3, 4, compute=compute)))


def _bent(loads, compute):
    """tanh(x l) + matrix + pairs + batch index; the number l is given at the launch."""
    return _program(loads, (_step("mul", 0, 1, compute=compute), _step("tanh", 5, compute=compute), _step("add", 6, 2, compute=compute),
                            _step("add", 7, 3, compute=compute), _step("add", 8, 4, compute=compute)))


def _bent_back(loads, compute):
    """It has the number for itself."""
    return _program(loads, (_step("mul", 1, 2, compute=compute), _step("tanh_backward", 0, 3, compute=compute),
                            _step("mul", 4, 2, compute=compute)), (), None, 2)


def _tanh(x):
    return np.tanh(x), 1 - np.tanh(x) ** 2


SCORE_MODS = {
    "capped": ScoreMod((), _capped, lambda x, of, at: (CAP * np.tanh(x / CAP), 1 - np.tanh(x / CAP) ** 2), _capped_back),
    "slopes": ScoreMod((("float32", "row", "h"), ("int32", "index", 2), ("int32", "index", 3)), _alibi,
                       lambda x, of, at: (x + of[0] * (at[3] - at[2]), np.ones(x.shape))),
    "documents": ScoreMod((("int32", "row", "bi"), ("int32", "column", "bj")), _documents,
                          lambda x, of, at: (np.where(of[0] == of[1], x, -np.inf), np.ones(x.shape))),
    "bent": ScoreMod((("float32", "value", LENGTH), ("bfloat16", "matrix", "bhij"), ("float32", "matrix", "ij"), ("int32", "index", 0)),
                     _bent, lambda x, of, at: (_tanh(LENGTH * x)[0] + of[1] + of[2] + at[0], LENGTH * _tanh(LENGTH * x)[1]),
                     _bent_back, (("float32", "value", LENGTH),)),
    "parts": ScoreMod((("int32", "row", "bi"), ("int32", "column", "bj")), _documents,
                      lambda x, of, at: (np.where(of[0] == of[1], x, -np.inf), np.ones(x.shape)), ascending=True),
}
"""Name -> modifier."""
