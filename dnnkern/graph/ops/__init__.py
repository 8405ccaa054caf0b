"""The operations of graphs: `OPERATIONS`, {name of pygraph's method: definition}. One file holds all of a kind of operation."""
from . import (attention, attention_fp8, moe, norm, norm_backward, pointwise, product, quantize, reduce, resample, rope,  # noqa: F401
               shape)
from ._define import OPERATIONS  # noqa: F401
