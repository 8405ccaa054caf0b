"""Supported dtypes of operands and results."""
from .dtypes import compute_dtype

FP8 = ("float8_e4m3fn", "float8_e5m2")
FLOATS = ("float64", "float32", "float16", "bfloat16")
INPUTS = (*FLOATS, "int8", *FP8)
OUTPUTS = {"float64": ("float64", "float32"), "float32": ("float32", "float16", "bfloat16"), "float16": ("float16", "float32", "bfloat16"),
           "bfloat16": ("bfloat16", "float32", "float16"), "int8": ("int32", "int8", "float32", "float16", "bfloat16"),
           **dict.fromkeys(FP8, ("bfloat16", "float32", "float16", *FP8))}
MATH = (None, "tf32", "fast")


def check_dtypes(op, a, b, y, names=("a", "b"), allowed=INPUTS):
    """TypeError unless these dtypes of operands and output go together; `y` may be None."""
    for name, t in zip(names, (a, b)):
        if t.dtype not in allowed:
            raise TypeError(f"{op}: {name} is {t.dtype}; expected one of {', '.join(allowed)}")
    if a.dtype != b.dtype and not (a.dtype in FP8 and b.dtype in FP8):
        pair = f", or two of {', '.join(FP8)}" if FP8[0] in allowed else ""
        raise TypeError(f"{op}: {names[0]} is {a.dtype} and {names[1]} is {b.dtype}; expected the same dtype{pair}")
    if y is not None and y.dtype not in OUTPUTS[a.dtype]:
        raise TypeError(f"{op}: out (or out_dtype) is {y.dtype}; expected one of {', '.join(OUTPUTS[a.dtype])} for {a.dtype} operands")


def check_addend(op, name, t, dtype):
    """TypeError unless a bias or another addend, which may be None, can be added to products of `dtype`."""
    allowed = FLOATS if compute_dtype(dtype) == "float64" else FLOATS[1:] + (("int32",) if dtype == "int8" else ())
    if t is not None and t.dtype not in allowed:
        raise TypeError(f"{op}: {name} is {t.dtype}; expected one of {', '.join(allowed)}")


def alike(dtype):
    """A float dtype, and the others that are computed in the same type: what one rounding takes a result to."""
    return (dtype, *(d for d in FLOATS if d != dtype and compute_dtype(d) == compute_dtype(dtype)))


def default_output(dtype):
    """dtype of the result where the caller names none."""
    return "int32" if dtype == "int8" else "bfloat16" if dtype in FP8 else dtype
