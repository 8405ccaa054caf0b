"""Embeddings in words, for the command line: ``50257x768 bf16 16x1024``: the table, then the shape of the indices."""
from ..host.words import Words, dtype_word, like, sizes_word
from ..sketch import problem

words = Words()
_SMALL = ("50x24 f32 6x7", "33x40 bf16 200 --indices int32", "9x5 f64 3x4x5", "7x8 f16 300")


@words("embedding_fwd", small=_SMALL)
def _forward(op, shape, dtype, positions: sizes_word, *, indices: dtype_word = "int64"):
    """--indices: their dtype."""
    return problem(op, weight=(shape, dtype), indices=(positions, indices))


@words("embedding_bwd", small=(*_SMALL, "21x16 bf16 90 --padding 3 --frequency"))
def _backward(op, shape, dtype, positions: sizes_word, *, indices: dtype_word = "int64", padding: int = None, frequency=False):
    """--indices: their dtype; --padding: padding_idx; --frequency: scale_grad_by_freq."""
    forward = _forward("embedding_fwd", shape, dtype, positions, indices=indices)
    return problem(op, dy=like(forward.y), indices=(positions, indices), num_embeddings=shape[0], padding_idx=padding,
                   scale_grad_by_freq=frequency)


FAMILY, SMALL, parse_problem = words.family, words.small, words.parse
