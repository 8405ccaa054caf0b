"""Pooling in words, for the command line: ``64x64x112x112 bf16 3x3 s2 p1 nhwc index``, ``8x512x13x13 f32 7x7 adaptive``."""
from ..engine.program_words import STEPS, with_image_program
from ..host.words import new_words, of_images, terms
from ._problem import OPS

words, FAMILY, SMALL, parse_problem = new_words()
_TERMS = terms(windows=True, numbers=[("divisor9", "divisor")], ceil=("ceil_mode", True), counting=("count_include_pad", True),
               index=("index_dtype", "int32"), index64=("index_dtype", "int64"), adaptive=("adaptive", True))


@words(*OPS, small={
    "max_pool_fwd": ("2x8x9x8 f32 3x3 s2 p1 index", "2x16x9x7 bf16 2x2 nhwc index", "1x5x6x6 f64 4x4 adaptive index",
                     "2x8x9x8 bf16 3x3 s2 nhwc --program mul@8 relu"),
    "max_pool_bwd": ("2x8x9x8 f32 3x3 s2 p1", "2x16x9x7 bf16 3x3 s1 p1 nhwc", "1x5x6x6 f64 4x4 adaptive"),
    "avg_pool_fwd": ("2x8x9x8 f32 3x3 s2 p1", "2x8x9x8 f32 3x3 s1 p1 divisor7", "2x16x7x7 bf16 global nhwc", "2x3x9 f16 2 ceil counting"),
    "avg_pool_bwd": ("2x8x9x8 f32 3x3 s2 p1", "2x8x9x8 f32 3x3 s1 p1 divisor7", "2x16x7x7 bf16 global nhwc", "1x3x4x5x6 f16 2x2x2 ceil")})
def _pool(op, shape, dtype, window, *terms: _TERMS, program: STEPS = ()):
    given = {**({"index_dtype": "int32"} if op == "max_pool_bwd" else {}), **dict(terms)}
    kind = "adaptive_" * given.pop("adaptive", False)
    given["output_size" if kind else "window"] = window
    if "index_dtype" in given:
        given["return_index"] = True
    return with_image_program(of_images(kind + op, kind + op.replace("bwd", "fwd"), shape, dtype, given), program, ordered=False)
