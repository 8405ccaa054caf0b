"""Matrix products of a warp on its tensor cores, with all operands in registers (mma.sync, from sm_80 on).

>>> mma = make_mma("bfloat16")                                             # doctest: +SKIP
... mma(acc, i, a, j, b, k)                                                # acc[i:i+4] += a[j:j+4] x b[k:k+2], 16x8 += 16x16 x 16x8

The operands are runs of local arrays, which stay in registers where the indices are constants. All 32 lanes of a warp execute the same
call; each holds a part of A [m, k], B [k, n] and the accumulator [m, n]. With ``g = lane // 4``, ``t = lane % 4`` and p elements a word
(4 of 8 bits, 2 of 16, 1 of 32 and 64):

=============  ============================================================  ==============================================
a[j + r]       row ``g + 8 (r % 2)``, columns ``p t + 4 p (r // 2)`` ...      for m = 8 row ``g``, columns ``p t + 4 p r`` ...
b[k + r]       rows ``p t + 4 p r`` ..., column ``g``
acc[i + r]     row ``g + 8 (r // 2)``, column ``2 t + r % 2``
=============  ============================================================  ==============================================

where "..." means p consecutive ones, the lowest bits first. `Fragments` says the same as functions; `FRAGMENTS` are those there are:

===============================  ===========  ========  =========  ========  =============
dtype                            m n k        acc       words a,b  acc, a, b from
===============================  ===========  ========  =========  ========  =============
bfloat16, float16                16 8 16      float32   uint32     4, 4, 2   sm_80
tf32                             16 8 8       float32   uint32     4, 4, 2   sm_80
int8, uint8                      16 8 32      int32     uint32     4, 4, 2   sm_80
float8_e4m3fn, float8_e5m2       16 8 32      float32   uint32     4, 4, 2   sm_89
float64                          8 8 4        float64   float64    2, 1, 1   sm_80
float64 (m=16, k=4, 8 or 16)     16 8 k       float64   float64    4, k/2, k/4  sm_90
===============================  ===========  ========  =========  ========  =============

tf32 operands are float32 bits of which the hardware reads the upper 19: what is not rounded before (cvt.rna.tf32) is truncated. Products
of all float types but float64 are exact; how the sum is rounded is the hardware's: it may truncate. In the simulator it is taken in
float64 and rounded once to float32. int32 sums wrap. On sm_90 fp8 runs at half the rate of float16 (it is converted); there `wgmma` is
the fast form of everything but float64.
"""
import functools
from dataclasses import dataclass

from . import SIMULATED

_PTX = {"bfloat16": ("bf16", "f32"), "float16": ("f16", "f32"), "tf32": ("tf32", "f32"), "float64": ("f64", "f64"), "int8": ("s8", "s32"),
        "uint8": ("u8", "s32"), "float8_e4m3fn": ("e4m3", "f32"), "float8_e5m2": ("e5m2", "f32")}
_ACCUMULATOR = {"f32": "float32", "f64": "float64", "s32": "int32"}


@dataclass(frozen=True)
class Fragments:
    """The shape of one instruction, and which elements of its matrices a lane holds."""
    dtype: str
    m: int
    n: int
    k: int

    @property
    def per_word(self):
        """Elements of A and B in one element of the local arrays."""
        return {"bfloat16": 2, "float16": 2, "tf32": 1, "float64": 1}.get(self.dtype, 4)

    @property
    def words(self):
        """How many elements of the local arrays acc, a and b a lane holds."""
        return self.m * self.n // 32, self.m * self.k // 32 // self.per_word, self.k * self.n // 32 // self.per_word

    @property
    def scalars(self):
        """Element types of the local arrays acc, a and b."""
        operand = "float64" if self.dtype == "float64" else "uint32"
        return _ACCUMULATOR[_PTX[self.dtype][1]], operand, operand

    @property
    def instruction(self):
        """The PTX opcode."""
        operand, accumulator = _PTX[self.dtype]
        return f"mma.sync.aligned.m{self.m}n{self.n}k{self.k}.row.col.{accumulator}.{operand}.{operand}.{accumulator}"

    def a(self, lane, e):
        """(row, column) in A of a lane's element `e`, which is number ``e % per_word`` of word ``e // per_word``."""
        r, part = divmod(e, self.per_word)
        row, along = (lane // 4 + 8 * (r % 2), r // 2) if self.m == 16 else (lane // 4, r)
        return row, self.per_word * (lane % 4 + 4 * along) + part

    def b(self, lane, e):
        """(row, column) in B of a lane's element `e`."""
        r, part = divmod(e, self.per_word)
        return self.per_word * (lane % 4 + 4 * r) + part, lane // 4

    def acc(self, lane, e):
        """(row, column) in the accumulator of a lane's element `e`."""
        return lane // 4 + 8 * (e // 2), 2 * (lane % 4) + e % 2


FRAGMENTS = {(f.dtype, f.m, f.k): f for f in (
    Fragments("bfloat16", 16, 8, 16), Fragments("float16", 16, 8, 16), Fragments("tf32", 16, 8, 8), Fragments("int8", 16, 8, 32),
    Fragments("uint8", 16, 8, 32), Fragments("float8_e4m3fn", 16, 8, 32), Fragments("float8_e5m2", 16, 8, 32),
    Fragments("float64", 8, 8, 4), Fragments("float64", 16, 8, 4), Fragments("float64", 16, 8, 8), Fragments("float64", 16, 8, 16))}
"""By (dtype, m, k)."""


@functools.cache
def make_mma(dtype, m=None, k=None):
    """Device function ``mma(acc, i, a, j, b, k)``: acc[i:...] += A fragment a[j:...] x B fragment b[k:...]. Host function.

    Parameters
    ----------
    dtype : str
        Of A and B, see `FRAGMENTS`.
    m, k : int, optional
        Where there are several shapes; by default the first one listed.

    Raises
    ------
    ValueError
        There is no such instruction.
    """
    found = next((f for f in FRAGMENTS.values() if f.dtype == dtype and m in (None, f.m) and k in (None, f.k)), None)
    if found is None:
        known = ", ".join(f"{f.dtype} m={f.m} k={f.k}" for f in FRAGMENTS.values())
        raise ValueError(f"make_mma: no instruction for {dtype}, m={m}, k={k}; there are {known}")
    if SIMULATED:
        from .sim.tensor_core import multiply
        return multiply(found)
    from ._intrinsics import matrix_multiply
    return matrix_multiply(found.instruction, found.scalars, found.words)
