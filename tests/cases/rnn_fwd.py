"""Cases of rnn_fwd."""
from ._rnn import Forward, large, table

CASES, LARGE = table(Forward), large(Forward)
