"""Images with one to four channels on tensor cores: rows of an image in shared memory, windows read from there as fragments.

`forward`, `backward_data` and `backward_filter` are the three directions; `rows` is shared by all.
"""
from .backward_data import ALGORITHM as BACKWARD_DATA
from .backward_filter import ALGORITHM as BACKWARD_FILTER
from .forward import ALGORITHM as FORWARD

ALGORITHMS = FORWARD, BACKWARD_DATA, BACKWARD_FILTER
