"""Cases of embedding_fwd."""
from ._embedding import Forward, large, table

CASES, LARGE = table(Forward), large(Forward)
