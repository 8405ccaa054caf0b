"""Programs of normalisations by channels: what becomes of each element of y before it is rounded to y's dtype, or of each element of dy
before all else.

Images and pixels are a program's rows, channels its columns. Kernels that see images of channels of values (`_channel_view`) take the
images as a batch: they move the operands to an image, whose values are the rows. Where operands do not step evenly through the values, as
positions of a height or one row of an image, they are moved to each value; the naive kernels move them to each element.
"""
import functools

from ..device import device_function
from ..device.program_batches import make_moved
from ..device.unroll import unrolled
from ..engine.programs import WithRowProgram
from ..engine.row_program import make_coordinates, make_functions as make_row_functions
from ._channel_problem import channel_axis


class WithChannelProgram(WithRowProgram):
    """What the fields `program` and `extras` are to a problem; a mixin before `ChannelNorm`. `programmed`: the array whose elements the
    program is of."""
    programmed = "y"

    def _check(self):
        super()._check()
        if self.program is not None and self.tensor(self.programmed) is None:
            raise ValueError(f"{self.op}: a program without {self.programmed}")
        stores = len(getattr(self.program, "stores", ()))
        if stores and not self.is_result(self.programmed):
            raise ValueError(f"{self.op}: a program of {self.programmed} with {stores} stores; expected none")
        self.check_row_program((channel_axis(self.x, self.layout),))


@functools.cache
def make_functions(program, compute, result, elements, pixels):
    """Device functions of a program, for a result that is rounded to the dtype `result`; None without one. `pixels`: how many dimensions of
    values the operands have strides along, 0 where they step evenly through all. What all take last are the parameters of
    `_channel_view.program_arguments`.

    ``function(value, image, m, n, operands, extents)``
        What becomes of value m of channel n of an image, of the type that is computed in.
    ``of_channels(0, (values, image, m, n, operands, extents))``
        The same of an array of so many neighbouring channels, in place, each by a constant index.
    ``of_values(0, (values, image, m, n, operands, extents))``
        The same of an array of neighbouring values.
    """
    if program is None:
        return None, None, None
    (run, _), moved = make_row_functions(program, compute, result, 1), make_moved(program, 1 + pixels)
    coordinates = make_coordinates(pixels, 1)
    EVEN = not pixels

    @device_function
    def function(value, image, m, n, operands, extents):
        if EVEN:
            return run(value, m, n, moved(operands, (image,)))
        return run(value, 0, n, moved(operands, (image,) + coordinates(m, extents)))

    @device_function
    def of_channel(k, s):
        values, image, m, n, operands, extents = s
        values[k] = function(values[k], image, m, n + k, operands, extents)

    @device_function
    def of_value(k, s):
        values, image, m, n, operands, extents = s
        values[k] = function(values[k], image, m + k, n, operands, extents)
    return function, unrolled(elements, of_channel), unrolled(elements, of_value)
