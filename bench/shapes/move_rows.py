"""Rows to gather and scatter."""
from dnnkern.transform._problem import DTYPES as KNOWN

from ._transform import shapes

DTYPES = KNOWN
_SHAPES = shapes("move_rows", {"large": ("65536x4096 {} --source 131072", "131072x4096 {} --target 131072"),
                               "small": ("4096x1024 {} --source 8192",)}, KNOWN, "8192x4096 {} --source 16384")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
