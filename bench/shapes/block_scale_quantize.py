"""Blocks of elements with scales to quantize."""
from ._transform import block_scales

DTYPES, SETS, cases, parse = block_scales("block_scale_quantize")
