"""dtype names: the canonical spelling in problems, plans and kernels, whatever objects the frameworks use."""
import functools

import numpy as np

from .scalars import shown

ITEMSIZE = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e8m0fnu": 1,
            "int8": 1, "uint8": 1, "int16": 2, "uint16": 2, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "bool": 1}
_ALIASES = {"f64": "float64", "double": "float64", "f32": "float32", "float": "float32", "f16": "float16",
            "fp16": "float16", "half": "float16",
            "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "s8": "int8",
            **{f"{name[0]}{bits}": f"{name}{bits}" for name in ("int", "uint") for bits in (8, 16, 32, 64)}}


def dtype_name(dtype) -> str:
    """Canonical name of a dtype given as a name, a NumPy dtype or scalar type, or a torch dtype."""
    try:
        if not isinstance(dtype, (str, type, np.dtype)) and type(dtype).__module__ != "torch":  # NumPy would take None, numbers and arrays
            raise TypeError
        return _dtype_name(dtype)
    except TypeError:
        raise TypeError(f"unknown dtype {shown(dtype)}; expected one of {', '.join(ITEMSIZE)}") from None


@functools.lru_cache(maxsize=None)
def _dtype_name(dtype) -> str:
    text = dtype if isinstance(dtype, str) else str(dtype)
    if not isinstance(dtype, str) and not text.startswith("torch."):
        if not np.dtype(dtype).isnative:
            raise TypeError(text)
        text = np.dtype(dtype).name
    text = text.removeprefix("torch.")
    text = _ALIASES.get(text, text)
    if text not in ITEMSIZE:
        raise TypeError(text)
    return text


@functools.lru_cache(maxsize=None)
def numpy_dtype(name: str) -> np.dtype:
    """NumPy dtype of a canonical name; bfloat16 and fp8 are ml_dtypes'."""
    if name == "bfloat16" or name.startswith("float8"):
        import ml_dtypes
        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


# Element types of kernel pointers: 16-bit floats and fp8 are passed as integers and converted by device.convert.element.
_WORDS = {"float16": "uint16", "bfloat16": "uint16", "float8_e4m3fn": "uint8", "float8_e5m2": "uint8", "float8_e8m0fnu": "uint8",
          "bool": "uint8"}
STORAGE = {name: _WORDS.get(name, name) for name in ITEMSIZE}

# Unit roundoff, for estimates of error; 0 for integers.
ROUNDOFF = {"float64": 2.0 ** -53, "float32": 2.0 ** -24, "float16": 2.0 ** -11, "bfloat16": 2.0 ** -8, "float8_e4m3fn": 2.0 ** -4,
            "float8_e5m2": 2.0 ** -3}


def compute_dtype(name: str) -> str:
    """Accumulation type: float32 for 8-, 16- and 32-bit floats, float64 for float64, int32 for int8 and uint8."""
    return "float64" if name == "float64" else "int32" if name in ("int8", "uint8", "int32") else "float32"
