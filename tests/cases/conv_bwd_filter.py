"""Cases of conv_bwd_filter."""
from ._conv import Table
from ._conv_tables import shared


def _cases():
    t = Table("conv_bwd_filter")
    shared(t)
    return t.found


CASES = _cases()
LARGE = []
