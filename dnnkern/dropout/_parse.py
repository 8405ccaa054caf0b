"""Dropouts and random numbers in words, for the command line: ``8192x4096 bf16``, ``8192x4096 f32 normal``."""
from dataclasses import replace

from ..host.words import like, new_words
from ..sketch import problem

words, FAMILY, SMALL, parse_problem = new_words()


@words("dropout_fwd", "dropout_bwd", small=("5x101 f32", "3x800 bf16 --in-place", "4x9 f64"))
def _dropout(op, shape, dtype, *, in_place=False):
    forward = problem("dropout_fwd", x=(shape, dtype), p=0.5, seed=0)
    if op == "dropout_fwd":
        return replace(forward, in_place=in_place)  # `out` would be a pair, of which only y is an operand
    return problem(op, dy=(shape, dtype), mask=like(forward.mask), p=0.5, out="dy" if in_place else None)


words("random_fill", small=("5x101 f32 uniform", "3x800 bf16 normal", "4x9 f64 bernoulli"))(
    lambda op, shape, dtype, distribution: problem(op, x=(shape, dtype), distribution=distribution, seed=0))
