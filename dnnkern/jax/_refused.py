"""Why an operation stays JAX's, and what its replacements have in common."""
import numpy as np
from jax import lax

from ..device import HOST_MEMORY
from ._call import make_call
from ._primitive import bind


class Refused(Exception):
    """This library does not compute an operation; the text says why."""


def run(counted, function, arrays, **static):
    """The results of a public function, counted as the operation that it replaces."""
    results = bind(make_call(function, arrays, static, counted), tuple(arrays.values()))
    return results[0] if len(results) == 1 else results


def math_of(precision, dtype):
    """The argument `math` for JAX's precision: on a GPU the default lets XLA round float32 to TF32."""
    both = precision if isinstance(precision, tuple) else (precision, precision)
    if all(p in (None, lax.Precision.DEFAULT) for p in both):
        return "tf32" if np.dtype(dtype).name == "float32" and not HOST_MEMORY else None
    if all(p in (None, lax.Precision.DEFAULT, lax.Precision.HIGH, lax.Precision.HIGHEST) for p in both):
        return None
    name = getattr(precision, "name", None)
    exact = {"F32_F32_F32": "float32", "F64_F64_F64": "float64", "F16_F16_F32": "float16", "BF16_BF16_F32": "bfloat16"}
    if name in exact and exact[name] == np.dtype(dtype).name:
        return None
    raise Refused(f"precision {precision}")
