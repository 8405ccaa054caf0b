"""Searches for extremes to measure."""
from ._reduce import FLOATS as DTYPES  # noqa: F401
from ._reduce import shapes

_SHAPES = shapes("argreduce", {
    "rows": tuple(f"{2 ** 27 // n}x{n} {{}} max 1" for n in (256, 4096, 65536)) + ("2048x50257 {} max 1  # tokens of a vocabulary",),
    "columns": ("32768x4096 {} max 0", "16x21x512x512 {} max 1  # classes of pixels"),
    "long": ("134217728 {} min 0", "16x8388608 {} max 1")}, "32768x4096 {} max 1")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
