"""Sums that many blocks add to, in whatever order they come: ``red.global.add``, which gives nothing back, and ``atom.global.add``; and
the largest number of all, which no order changes: ``red.global.max``.

>>> @cuda.jit(launch_bounds=256)                                           # doctest: +SKIP
... def histogram(x, counts):                                              # x: "int32*", counts: "float32*"
...     i = i32(cuda.blockIdx.x * 256 + cuda.threadIdx.x)
...     add_f32(advance(counts, x[i]), f32(1))
"""
from . import cuda, instruction


def _add(name):
    suffix = {"float32": "f32", "float64": "f64"}[name]
    return instruction(f"red.relaxed.gpu.global.add.{suffix} [$0], $1;", (), ("uint64", name),
                       twin=lambda p, value: cuda.atomic.add(p, 0, value) and None, memory=True)


add_f32, add_f64 = _add("float32"), _add("float64")
"""``(pointer to global memory, value)``: the element grows by the value, in one step."""


def _add_four(p, *values):
    for k, value in enumerate(values):
        cuda.atomic.add(p, k, value)


add4_f32 = instruction("red.relaxed.gpu.global.v4.f32.add [$0], {$1, $2, $3, $4};", (), ("uint64", *["float32"] * 4), twin=_add_four,
                       memory=True)
"""``(pointer, a, b, c, d)``: four neighbours, 16 bytes at a multiple of 16, each as `add_f32` does (from sm_90 on)."""

raise_u32 = instruction("red.relaxed.gpu.global.max.u32 [$0], $1;", (), ("uint64", "uint32"),
                        twin=lambda p, value: cuda.atomic.max(p, 0, value) and None, memory=True)
"""``(pointer, value)``: the element becomes the larger of the two. Floats that are not negative are in the order of their bits, a NaN
after all others."""

fetch_add_u32 = instruction("atom.relaxed.gpu.global.add.u32 $0, [$1], $2;", ("uint32",), ("uint64", "uint32"),
                            twin=lambda p, value: cuda.atomic.add(p, 0, value), memory=True)
"""``(pointer, value)``: what the element was before it grew by the value: each who asks gets a number of its own."""
