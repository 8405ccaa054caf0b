"""Reductions in words, for the command line: ``64x4096 bf16 add 1``, ``64x256x56x56 f16 avg 0,2,3``, ``1000000 f32 norm2``."""
from ..host.words import new_words
from ..sketch import problem

words, FAMILY, SMALL, parse_problem = new_words()
words("reduce", small=("7x130 f32 add 1", "100x24 bf16 norm2 0", "2x3x7x7 f16 avg 0,2,3", "5000 f64 logsumexp",
                       "9x70 bf16 add 1 --out-dtype f32", "7x130 i8 add 1", "100x24 int32 max 0", "5000 bool add"))(
    lambda op, shape, dtype, mode, axes=None, **options: problem(op, x=(shape, dtype), mode=mode, axes=axes, **options))
words("argreduce", small=("7x130 bf16 max 1", "100x24 f32 min 0", "4200 f16 max 0", "7x130 uint8 min 1"))(
    lambda op, shape, dtype, mode, axis, **options: problem(op, x=(shape, dtype), mode=mode, axis=axis, **options))
