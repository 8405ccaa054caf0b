"""mma.sync: the product of a warp's fragments, gathered into matrices."""
import numpy as np

from .collective import registers, together


def decode(words, dtype):
    """Elements of A or B from the words that hold them, along the last axis, in a type that holds their products exactly."""
    if dtype == "float64":
        return words
    if dtype in ("int8", "uint8"):
        return words.view(dtype).astype(np.int64)
    if dtype == "tf32":
        return (words & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64)
    if dtype == "float16":
        return words.view(np.float16).astype(np.float64)
    if dtype == "bfloat16":
        return (words.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    import ml_dtypes
    return words.view(getattr(ml_dtypes, dtype)).astype(np.float64)


def _places(of, count):
    """Index arrays (rows, columns) [lane, element] from a function (lane, element) -> (row, column)."""
    table = np.array([[of(lane, e) for e in range(count)] for lane in range(32)])
    return table[..., 0], table[..., 1]


def multiply(f):
    """Twin of the instruction with the fragments `f`: sums in float64, or int64, and one rounding to the accumulator's type."""
    what, (c, m, n), (acc_type, operand_type, _) = f"mma {f.dtype}", f.words, map(np.dtype, f.scalars)
    of_a, of_b, of_acc = _places(f.a, m * f.per_word), _places(f.b, n * f.per_word), _places(f.acc, c)
    wide = np.int64 if acc_type.kind == "i" else np.float64

    def work(values):
        acc, a, b = (np.array([values[lane][operand] for lane in range(32)]) for operand in range(3))
        left, right, total = np.empty((f.m, f.k), wide), np.empty((f.k, f.n), wide), np.empty((f.m, f.n), wide)
        left[of_a], right[of_b], total[of_acc] = decode(a, f.dtype), decode(b, f.dtype), acc
        total = (total + left @ right).astype(acc_type)[of_acc]
        for lane in range(32):
            values[lane][0][:] = total[lane]
        return True

    def mma(acc, i, a, j, b, k):
        together(what, (registers(what, acc, i, c, acc_type), registers(what, a, j, m, operand_type),
                        registers(what, b, k, n, operand_type)), work)
    return mma
