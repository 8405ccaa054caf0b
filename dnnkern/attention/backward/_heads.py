"""What follows from the sizes of heads, for all gradients on Hopper's tensor cores."""
from ...device.index import ceil_div
from .._wgmma import COLUMNS


class HeadSizes:
    """Of a configuration with `d` elements of a row of q and k, and `e` of one of v and do."""

    @property
    def steps(self):
        """Of 16 elements of a row of q and k, and of one of v and do."""
        return ceil_div(self.d, 16), ceil_div(self.e, 16)

    @property
    def boxes(self):
        """Boxes of 64 columns of q and k, and of v and do."""
        return ceil_div(self.d, COLUMNS), ceil_div(self.e, COLUMNS)
