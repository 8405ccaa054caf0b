"""Conversions to measure."""
from dnnkern.transform._cast_problem import DTYPES as KNOWN

from ._transform import shapes

DTYPES = KNOWN
_SHAPES = shapes("cast", {
    "large": tuple(f"134217728 {{}} {to}" for to in ("bfloat16", "float16", "float32", "float8_e4m3fn", "int8")),
    "scaled": ("134217728 {} float8_e4m3fn --scale 0.5", "134217728 {} int8 --scale 0.5"),
    "rows": ("4096x4097 {} bfloat16", "1048576 {} bfloat16")}, KNOWN, "1048576 {} bfloat16")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
