"""Pooling in words, for the command line: ``64x64x112x112 bf16 3x3 s2 p1 nhwc index``, ``8x512x13x13 f32 7x7 adaptive``."""
from ..engine.program_words import STEPS, with_image_program
from ..host.words import Words, image, like, sizes_word, terms
from ..sketch import problem
from ._problem import OPS

words = Words()
_TERMS = terms(windows=True, numbers={"divisor": r"divisor([1-9]\d*)"}, ceil=("ceil_mode", True), counting=("count_include_pad", True),
               index=("index", "int32"), index64=("index", "int64"), adaptive=("adaptive", True))


def _window_word(text):
    return None if text == "global" else sizes_word(text)


@words(*OPS, small={
    "max_pool_fwd": ("2x8x9x8 f32 3x3 s2 p1 index", "2x16x9x7 bf16 2x2 nhwc index", "1x5x6x6 f64 4x4 adaptive index",
                     "2x8x9x8 bf16 3x3 s2 nhwc --program mul@8 relu"),
    "max_pool_bwd": ("2x8x9x8 f32 3x3 s2 p1", "2x16x9x7 bf16 3x3 s1 p1 nhwc", "1x5x6x6 f64 4x4 adaptive"),
    "avg_pool_fwd": ("2x8x9x8 f32 3x3 s2 p1", "2x8x9x8 f32 3x3 s1 p1 divisor7", "2x16x7x7 bf16 global nhwc", "2x3x9 f16 2 ceil counting"),
    "avg_pool_bwd": ("2x8x9x8 f32 3x3 s2 p1", "2x8x9x8 f32 3x3 s1 p1 divisor7", "2x16x7x7 bf16 global nhwc", "1x3x4x5x6 f16 2x2x2 ceil")})
def _pool(op, shape, dtype, window: _window_word, *terms: _TERMS, program: STEPS = ()):
    """WINDOW: 3x3, or global; with adaptive the output size. TERMS: s2 (stride), p1 or p0:1x2:0 (padding), d2 (dilation), nhwc, ceil,
    counting (the padding), index or index64, divisor9, adaptive."""
    given = {"layout": "NCHW", **dict(terms)}
    index, adaptive = given.pop("index", "int32" if op == "max_pool_bwd" else None), given.pop("adaptive", False)
    x = image(shape, given["layout"]), dtype
    window = window and (window if len(window) > 1 else window[0])
    if adaptive:
        given = {"layout": given["layout"]}
    name, sizes = f"{'adaptive_' * adaptive}{op[:3]}_pool_", {"output_size" if adaptive else "window": window}
    forward = problem(f"{name}fwd", x=x, **sizes, **given, **({"return_index": True, "index_dtype": index} if index else {}))
    if op == forward.op:
        return with_image_program(forward, program, ordered=False)
    indices = {"index": like(forward.index)} if forward.index else {}
    return with_image_program(problem(f"{name}bwd", dy=like(forward.y), **indices, x_shape=x[0], **({} if adaptive else sizes), **given),
                              program)


FAMILY, SMALL, parse_problem = words.family, words.small, words.parse
