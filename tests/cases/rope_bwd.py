"""Cases of rope_bwd."""
from ._rope import Backward, large, table

CASES, LARGE = table(Backward), large(Backward)
