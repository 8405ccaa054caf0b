"""The values that random calls (`fuzz`) put in an argument's place: the same in other clothes, others, and what no argument can be."""
import cases
import ml_dtypes
import numpy as np

try:
    import torch
except ImportError:  # its tensors are NumPy's arrays then
    torch = None


class _Odd:
    """An object that is nothing else."""


def _cycle():
    found = []
    found.append(found)
    return found


class _NoRepr:
    """An object that cannot be shown."""

    def __repr__(self):
        raise RuntimeError("no repr")


# What no argument may be, but for those whose default it is or that take lists or names.
NONSENSE = ("nonsense", "1", b"1", 1j, {"a": 1}, {1}, _Odd(), _NoRepr(), object, np.datetime64("2020-01-01"), np.complex64(1),
            np.array("x"), np.array([1.0, 2.0], object), np.ma.masked_array([1.0], [True]), _cycle(), lambda: 0, slice(None), Ellipsis,
            [[[]]], "x" * 10_000)
# What some arguments may be and others not.
PERHAPS = (None, -1, 0, 1, 2, 3, 7, 2 ** 31 - 1, 2 ** 31, 2 ** 63, -2 ** 63, 2 ** 64, 10 ** 400, 10 ** 6000, 1.0, 1.5, -0.5, 0.0, 1e-300,
           1e300, float("nan"), float("inf"), True, False, np.int8(1), np.uint64(2 ** 63), np.float16(0.5), np.array(1), np.array(0.5),
           np.ones((1, 1)).view(np.matrix), np.ones((3, 1, 1, 1, 1, 1, 1, 1, 1, 1)), (), {}, set(), [], (1,), (1, 1), (1, 1, 1), (-1, -1),
           (0, 0), (2 ** 31 - 1, 1), (2 ** 62, 2 ** 62), (None, None), [1], range(0), range(2), "", "relu", "NHWC", "none", "float16",
           np.float32, np.dtype("int8"), bytearray(64))
DTYPES = ("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "uint8", "int16", "int32", "int64", "bool")


def dressed(value, rng, packed=False):
    """The same value in other clothes; None where it has no others."""
    if isinstance(value, np.ndarray):
        return rng.choice((_inside, _torch) if packed else (_strided, _backwards, _fortran, _inside, _torch))(value)
    if type(value) is list and value and all(isinstance(v, np.ndarray) for v in value):
        return rng.choice((list, tuple))(dressed(v, rng) for v in value)
    if isinstance(value, bool):
        return np.bool_(value)
    if isinstance(value, int):
        return rng.choice([make(value) for make in (np.int64, np.int32, np.int16) if np.iinfo(make).min <= value <= np.iinfo(make).max]
                          or [None])
    if isinstance(value, float):
        return rng.choice((np.float64(value), np.array(value)) + ((np.float32(value),) if float(np.float32(value)) == value else ()))
    if isinstance(value, tuple) and value and all(isinstance(v, int) for v in value):
        return rng.choice((list(value), tuple(np.int64(v) for v in value), np.array(value)))
    if isinstance(value, str):
        return np.str_(value)
    return None


def _strided(a):
    wide = np.full((*a.shape[:-1], 2 * a.shape[-1]) if a.ndim else (2,), 77).astype(a.dtype)
    inside = wide[..., ::2] if a.ndim else wide[0:1].reshape(())
    inside[...] = a
    return inside


def _backwards(a):
    return np.ascontiguousarray(a[::-1])[::-1] if a.ndim else a.copy()


def _fortran(a):
    return np.array(a, order="F")


def _inside(a):
    """Within a larger array, at an element that is aligned to no more than its own size."""
    wide = np.zeros((a.size + 3,), a.dtype)
    wide[1:1 + a.size] = a.reshape(-1)
    return wide[1:1 + a.size].reshape(a.shape)


def _torch(a):
    if torch is None:
        return a.copy()
    if a.dtype == ml_dtypes.bfloat16:
        return torch.from_numpy(a.view(np.int16).copy()).view(torch.bfloat16)
    try:
        return torch.from_numpy(a.copy())
    except TypeError:  # 8-bit floats
        return a.copy()


def altered(a, rng):
    """An array that differs in dtype, shape, memory or values; it may be valid or not."""
    def resized(axis, n):
        return np.resize(a, (*a.shape[:axis], n, *a.shape[axis + 1:])) if a.ndim else a.copy()

    def read_only():
        b = a.copy()
        b.flags.writeable = False
        return b

    def torch_of_another_kind():
        t = _torch(a)
        return t.to("meta") if hasattr(t, "to") and rng.random() < 0.5 else t
    axis = rng.randrange(max(a.ndim, 1))
    if not a.size:
        return a.astype(cases.numpy_dtype(rng.choice(DTYPES)))
    return rng.choice((
        lambda: a.astype(cases.numpy_dtype(rng.choice(DTYPES))), lambda: a.astype(np.complex64), lambda: a.astype(a.dtype.newbyteorder()),
        lambda: a[None].copy(), lambda: a[..., None].copy(), lambda: a.reshape(-1).copy(), lambda: a.reshape(-1)[:1].reshape(()).copy(),
        lambda: a.T, lambda: resized(axis, 0), lambda: resized(axis, 1), lambda: resized(axis, a.shape[axis] + 1 if a.ndim else 1),
        lambda: resized(axis, 5), lambda: np.broadcast_to(a.reshape(-1)[:1].reshape((1,) * a.ndim), a.shape), read_only,
        lambda: np.full_like(a, float("nan") if a.dtype.kind not in "iub" else 77),
        lambda: np.full_like(a, -1 if a.dtype.kind != "u" else 255),
        lambda: np.ma.masked_array(a), lambda: a.tolist(), lambda: [a], lambda: a[:0] if a.ndim else a, torch_of_another_kind,
        lambda: np.frombuffer(b"\0" + a.tobytes(), a.dtype, offset=1).reshape(a.shape)))()
