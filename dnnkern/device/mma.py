"""Matrix products of a warp on the tensor cores, operands in registers (mma.sync, from sm_80 on)."""
import functools
from dataclasses import dataclass

from . import SIMULATED


@dataclass(frozen=True)
class Shape:
    """One mma.sync: D [m, n] float32, int32 or float64 += A [m, k] B [k, n]."""
    dtype: str
    m: int
    n: int
    k: int

    @property
    def op(self):
        ptx, acc = {"bfloat16": ("bf16", "f32"), "float16": ("f16", "f32"), "tf32": ("tf32", "f32"), "float64": ("f64", "f64"),
                    "int8": ("s8", "s32"), "uint8": ("u8", "s32"), "float8_e4m3fn": ("e4m3", "f32"), "float8_e5m2": ("e5m2", "f32")}[self.dtype]
        return f"mma.sync.aligned.m{self.m}n{self.n}k{self.k}.row.col.{acc}.{ptx}.{ptx}.{acc}"

    @property
    def scalars(self):
        """Element types of the local arrays acc, a, b."""
        if self.dtype == "float64":
            return ("float64",) * 3
        return "int32" if self.dtype in ("int8", "uint8") else "float32", "uint32", "uint32"

    @property
    def words(self):
        """Elements of those arrays that a lane holds."""
        per = {"bfloat16": 2, "float16": 2, "tf32": 1, "float64": 1}.get(self.dtype, 4)
        return self.m * self.n // 32, self.m * self.k // 32 // per, self.k * self.n // 32 // per


FRAGMENTS = {(s.dtype, s.m, s.k): s for s in (
    Shape("bfloat16", 16, 8, 16), Shape("float16", 16, 8, 16), Shape("tf32", 16, 8, 8), Shape("int8", 16, 8, 32), Shape("uint8", 16, 8, 32),
    Shape("float8_e4m3fn", 16, 8, 32), Shape("float8_e5m2", 16, 8, 32),
    Shape("float64", 8, 8, 4), Shape("float64", 16, 8, 4), Shape("float64", 16, 8, 8), Shape("float64", 16, 8, 16))}


@functools.cache
def make_mma(dtype, m=None, k=None):
    """Device function ``mma(acc, i, a, j, b, k)``."""
    found = [s for s in FRAGMENTS.values() if s.dtype == dtype and m in (None, s.m) and k in (None, s.k)]
    if not found:
        raise ValueError(f"make_mma: no instruction for {dtype}, m={m}, k={k}")
    shape = found[0]
    if SIMULATED:
        return None
    from ._numba_mma import matrix_multiply
    return matrix_multiply(shape.op, shape.scalars, shape.words)
