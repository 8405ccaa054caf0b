"""Cases of conv_bwd_data."""
from ._conv import Table
from ._conv_tables import shared


def _cases():
    t = Table("conv_bwd_data")
    shared(t)
    return t.found


CASES = _cases()
LARGE = []
