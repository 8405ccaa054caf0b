"""Reductions to measure."""
from ._reduce import FLOATS as DTYPES  # noqa: F401
from ._reduce import shapes

_SHAPES = shapes("reduce", {
    "rows": tuple(f"{2 ** 27 // n}x{n} {{}} add 1" for n in (64, 256, 1024, 4096, 16384, 65536)),
    "columns": tuple(f"{rows}x{2 ** 27 // rows} {{}} add 0" for rows in (16, 256, 4096, 32768, 131072)),
    "sizes": tuple(f"{4 ** k}x4096 {{}} add 1" for k in range(2, 9)),
    "huge": tuple(f"{rows}x4096 {{}} add 1" for rows in (2 ** 18, 2 ** 20, 2 ** 23)) + ("12207031x4096 {} add 1  # 100 GB in 16 bits",),
    "all": ("134217728 {} add", "1048576 {} add", "134217728 {} norm2", "134217727 {} amax  # of any length"),
    "channels": ("64x256x56x56 {} avg 0,2,3", "64x512x7x7 {} avg 0,2,3", "64x2048x7x7 {} avg 2,3  # a global average",
                 "64x56x56x256 {} avg 0,1,2"),
    "modes": tuple(f"32768x4096 {{}} {mode} 1" for mode in ("max", "norm2", "logsumexp", "mul_no_zeros"))
    + tuple(f"32768x4096 {{}} {mode} 0" for mode in ("max", "norm2", "logsumexp")),
    "odd": ("134217x1000 {} add 1", "32768x4095 {} add 1", "2048x50257 {} max 1", "4095x32767 {} add 0", "64x1024x1023 {} add 1")},
    "32768x4096 {} add 1")
SETS, cases, parse = _SHAPES.SETS, _SHAPES.cases, _SHAPES.parse
