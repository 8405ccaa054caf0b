"""Random numbers: this library's, of Philox, not those of NumPy's generator."""
import numpy as np

from ...host.dtypes import numpy_dtype
from .._errors import Refused
from .._table import rule
from .._values import FLOATS, Value, empty
from .pointwise import converted, only, type_named


def _filled(node, shape, dtype, distribution, **parameters):
    """A new array of random numbers: the same at each run where the node has a seed."""
    if dtype not in FLOATS:
        raise Refused(f"dtype {dtype}")
    seed = node.attribute("seed")
    seed = int(np.random.default_rng().integers(2 ** 63)) if seed is None else int(np.float32(seed).view(np.uint32))
    y = Value(device=empty(shape, numpy_dtype(dtype)))
    node.call("random_fill", y, distribution, seed, **parameters)
    return y


@rule("RandomUniform RandomNormal", (1, 22), "`random_fill`")
@rule("RandomUniformLike RandomNormalLike", (1, 22), "`random_fill`")
def random(node, x=None):
    """Of a shape, or of that of x."""
    shape = node.attribute("shape") if x is None else x.shape
    dtype = type_named(node, "dtype", "float32" if x is None else x.dtype)
    if "Uniform" in node.op:
        return _filled(node, shape, dtype, "uniform", low=float(node.attribute("low", 0.0)), high=float(node.attribute("high", 1.0)))
    return _filled(node, shape, dtype, "normal", mean=float(node.attribute("mean", 0.0)), std=float(node.attribute("scale", 1.0)))


@rule("Bernoulli", (15, 22), "`random_fill`, `binary`")
def bernoulli(node, p):
    """1 with probability p, else 0."""
    only((p,), FLOATS)
    hit = node.call("binary", _filled(node, p.shape, p.dtype, "uniform"), p, "cmp_le")
    return converted(node, hit, type_named(node, "dtype", p.dtype))
