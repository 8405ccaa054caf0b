"""Cases of rnn_bwd_data."""
from ._rnn import Data, large, table

CASES, LARGE = table(Data), large(Data)
