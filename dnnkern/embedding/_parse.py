"""Embeddings in words, for the command line: ``50257x768 bf16 16x1024``: the table, then the shape of the indices."""
from ..host.words import either, new_words

words, FAMILY, SMALL, parse_problem = new_words()
_SMALL = ("50x24 f32 6x7", "33x40 bf16 200 --indices int32", "9x5 f64 3x4x5", "7x8 f16 300")


@words("embedding_bwd", small=(*_SMALL, "21x16 bf16 90 --padding 3 --frequency"))
@words("embedding_fwd", small=_SMALL)
def _embedding(op, shape, dtype, positions, *, indices="int64", **options):
    size = {"num_embeddings": shape[0]} if op == "embedding_bwd" else {}
    return either(op, "embedding_fwd", weight=(shape, dtype), indices=(positions, indices), **size, **options)
