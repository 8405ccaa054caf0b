"""Cases of sdpa_decode."""
from ._decode import large, table

CASES, LARGE = table(), large()
