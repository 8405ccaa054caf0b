"""Functions of elements in words, for the command line: ``64x256x56x56 bf16 relu upper_clip=6``, ``512x4096 4096 f32 add``."""
from ..host.words import either, matching, new_words, optional, shape_word
from ..sketch import problem

words, FAMILY, SMALL, parse_problem = new_words()


def _parameter_word(text):
    name, _, value = matching(r"\w+(=-?(inf|[\d.]+(e-?\d+)?))?", text, "a parameter such as upper_clip=6").partition("=")
    return name, float(value or "nan")


@words("activation_fwd", "activation_bwd", small={
    "activation_fwd": ("1001 f32 gelu", "7x33 bf16 relu upper_clip=6", "4x6x35 f16 prelu --slope 6x1", "65 f64 mish"), "activation_bwd": (
        "1001 f32 gelu", "7x33 bf16 swish", "4x6x35 f32 prelu --slope 6x1", "4x6x35 bf16 prelu --slope 6x1 --slope-gradient")})
def _activation(op, shape, dtype, mode: str, *parameters: _parameter_word, slope: shape_word = None, **options):
    arrays = dict.fromkeys(("dy", "x")[op == "activation_fwd":], (shape, dtype))
    return problem(op, mode=mode, **arrays, slope=optional(slope, dtype), **options, **dict(parameters))


words("unary", small=("1001 f32 rsqrt", "7x33 bf16 exp", "9x5 i32 neg", "4x6 f32 gen_index --axis 0"))(
    lambda op, shape, dtype, mode, **options: problem(op, x=(shape, dtype), op=mode, **options))
words("binary", small=("33x65 65 f32 add", "33x1 1x65 bf16 mul", "513 scalar f16 cmp_gt", "9x8 9x8 i8 max",
                       "6x40 40 f32 binary_select --mask 6x1"))(
    lambda op, a, b, dtype, mode, *, mask=None: problem(op, a=(a, dtype), b=(b, dtype), op=mode, mask=optional(mask, "bool")))
words("scale_tensor", small=("1001 f32", "7x33 bf16", "65 i32"))(lambda op, shape, dtype: problem(op, x=(shape, dtype), alpha=1.0))
words("add_tensor", small=("6x40 6x40 f32", "6x1 4x6x35 bf16", "40 6x40 f16", "scalar 513 f64", "33 7x33 f16 --overwrite"))(
    lambda op, a, c, dtype, *, overwrite=False: problem(op, a=(a, dtype), c=(c, dtype), beta=float(not overwrite)))
words("glu_fwd", "glu_bwd", small=("9x66 f32", "9x66 f32 gelu", "4x6x35 bf16 swish --axis 1"))(
    lambda op, shape, dtype, gate="sigmoid", **options: either(op, "glu_fwd", x=(shape, dtype), gate=gate, **options))
