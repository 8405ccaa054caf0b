"""Programs by which kernels of products make their operands, with their definitions."""
from dataclasses import dataclass

import numpy as np

from ._programs import _program, _step


@dataclass(frozen=True)
class Made:
    """A prologue: the dtype in memory, its operands' (dtype, along which of the operand's dimensions), `make(operand dtypes)` -> Program,
    and `value(x, operands)` in float64; arithmetic that rounds is one addition at most."""
    source: str
    operands: tuple
    make: object
    value: object

    def names(self, of):
        return [f"{of}{k}" for k in range(len(self.operands))]


def _scale_bias_relu(dtypes):
    loads = (dtypes[0], "column"), (dtypes[1], "column")
    return _program(loads, (_step("mul", 0, 1, compute="float32"), _step("add", 3, 2, compute="float32"),
                            _step("relu", 4, compute="float32")))


def _matrix_rows(dtypes):
    """Times a row's and a number, plus a matrix."""
    loads = (dtypes[0], "row"), (dtypes[1], "matrix"), ("float32", 0.5)
    return _program(loads, (_step("mul", 0, 1, compute="float32"), _step("mul", 4, 3, compute="float32"),
                            _step("add", 5, 2, compute="float32")))


def _below_the_diagonal(dtypes):
    return _program((("int32", "index"), ("int32", "index"), ("float32", 0.0)),
                    (_step("cmp_ge", 1, 2, compute="int32"), _step("binary_select", 0, 3, 4, compute="float32")))


def _rounded(dtypes):
    return _program((("float32", "scalar"),), (_step("mul", 0, 1, compute="float32"),))


PROLOGUES = {
    "rounded": Made("bfloat16", (("float32", "scalar"),), _rounded, lambda x, of: np.clip(np.rint(x * of[0]), -128, 127)),
    "cast": Made("int8", (), lambda dtypes: _program((), (_step("identity", 0, compute="float32"),)), lambda x, of: x),
    "cast8": Made("float8_e4m3fn", (), lambda dtypes: _program((), (_step("identity", 0, compute="float32"),)), lambda x, of: x),
    "scale-bias-relu": Made("bfloat16", (("float32", "column"), ("float32", "column")), _scale_bias_relu,
                            lambda x, of: np.maximum((x * of[0]).astype(np.float32) + of[1].astype(np.float32), 0)),
    "matrix-rows": Made("float32", (("float32", "row"), ("bfloat16", "matrix")), _matrix_rows,
                        lambda x, of: (x * of[0] * 0.5).astype(np.float32) + of[1].astype(np.float32)),
    "triangle": Made("float16", (("int32", "index 0"), ("int32", "index 1")), _below_the_diagonal, lambda x, of: np.tril(x)),
}
