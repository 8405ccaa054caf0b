"""Cases of rnn_bwd_weights."""
from ._rnn import Weights, large, table

CASES, LARGE = table(Weights), large(Weights)
