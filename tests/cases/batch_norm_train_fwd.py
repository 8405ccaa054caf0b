"""Cases of batch_norm_train_fwd."""
from ._batch_norm import Train, large, table

CASES, LARGE = table(Train), large(Train)
