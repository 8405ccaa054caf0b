"""Cases of embedding_bwd."""
from ._embedding import Backward, large, table

CASES, LARGE = table(Backward), large(Backward)
