"""Softmax problems in words, for the command line: ``8192x4096 bf16 --axis -1 --log``."""
from ..engine.program_words import STEPS, with_program
from ..host.words import either, new_words
from ..sketch import problem

words, FAMILY, SMALL, parse_problem = new_words()


@words("softmax_fwd", small=("5x100 f32", "3x777 bf16 --log", "2x30x16 f16 --axis 1", "4x9 f64", "5x100 bf16 --program mul@5x100 mul@0.5"))
def _forward(op, shape, dtype, *, program: STEPS = (), **options):
    found = problem(op, x=(shape, dtype), **options)
    return with_program(found, program, [d for d in range(len(shape)) if d != found.axis], found.axis)


words("softmax_bwd", small=("5x100 f32", "3x777 bf16", "2x30x16 f16 --axis 1 --log", "4x9 f64"))(
    lambda op, shape, dtype, **options: either(op, "softmax_fwd", x=(shape, dtype), **options))
