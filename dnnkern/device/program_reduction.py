"""A step of a program that reduces each row of a value, so that later steps have what is one number for a row."""
from dataclasses import dataclass

from .program_operands import _known

ROW_MODES = ("add", "mul", "min", "max", "amax", "avg", "norm1", "norm2", "mul_no_zeros", "sum_square", "logsumexp")
"""Modes of `dnnkern.reduce` but for those that give positions."""


@dataclass(frozen=True)
class Reduction:
    """The reduction of a value over each row: a mode of `dnnkern.reduce`, the value's number, the dtype that the result is rounded to, and
    the type that it is computed in."""
    mode: str
    value: int
    round_to: str | None = None
    compute: str = "float32"

    def __post_init__(self):
        if self.mode not in ROW_MODES:
            raise ValueError(f"program: a reduction by {self.mode!r}; expected one of {', '.join(ROW_MODES)}")
        if self.compute not in ("float32", "float64"):
            raise TypeError(f"program: a reduction in {self.compute}; expected float32 or float64")
        if self.round_to is not None:
            _known("round_to", self.round_to)

    @property
    def inputs(self):
        return (self.value,)

    def __str__(self):
        return self.mode
