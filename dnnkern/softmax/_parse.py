"""Softmax problems in words, for the command line: ``8192x4096 bf16 --axis -1 --log``."""
from ..engine.program_words import STEPS, with_program
from ..host.words import either, new_words

words, FAMILY, SMALL, parse_problem = new_words()
_SMALL = ("5x100 f32", "4x9 f64", "2x30x16 f16 --axis 1", "3x777 bf16 --log")


@words("softmax_fwd", "softmax_bwd", small={"softmax_fwd": (*_SMALL, "5x100 bf16 --program mul@5x100 mul@0.5"), "softmax_bwd": _SMALL})
def _softmax(op, shape, dtype, *, program: STEPS = (), **options):
    found = either(op, "softmax_fwd", x=(shape, dtype), **options)
    return with_program(found, program, [d for d in range(len(shape)) if d != found.axis], found.axis)
