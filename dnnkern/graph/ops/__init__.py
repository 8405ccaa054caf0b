"""The operations of graphs: `OPERATIONS`, {name of pygraph's method: definition}. One file holds all of a kind of operation."""
from . import attention, moe, norm, norm_backward, pointwise, product, quantize, reduce, resample, rope, shape  # noqa: F401
from ._define import OPERATIONS  # noqa: F401
