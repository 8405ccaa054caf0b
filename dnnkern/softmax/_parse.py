"""Softmax problems in words, for the command line: ``8192x4096 bf16 --axis -1 --log``."""
from ..engine.program_words import STEPS, with_program
from ..host.words import Words
from ..sketch import problem

words = Words()


@words("softmax_fwd", small=("5x100 f32", "3x777 bf16 --log", "2x30x16 f16 --axis 1", "4x9 f64", "5x100 bf16 --program mul@5x100 mul@0.5"))
def _forward(op, shape, dtype, *, program: STEPS = (), **options):
    found = problem(op, x=(shape, dtype), **options)
    return with_program(found, program, [d for d in range(len(shape)) if d != found.axis], found.axis)


@words("softmax_bwd", small=("5x100 f32", "3x777 bf16", "2x30x16 f16 --axis 1 --log", "4x9 f64"))
def _backward(op, shape, dtype, **options):
    return problem(op, dy=(shape, dtype), y=(shape, dtype), **options)


FAMILY, SMALL, parse_problem = words.family, words.small, words.parse
