"""Operands of a program that lie as the arrays of channels side by side do: a thread loads those of all its channels together, as it loads
x's, and with those of its other rows in flight, and stores side outputs so. What lies otherwise the program itself loads and stores, one
by one."""
import functools

from ..device import device_function
from ._channel_program import make_functions
from ._program_vectors import Rows, make_vector_rows, nothing, vectors_among


def vectors_of(problem, view, count):
    """The `Vector`s of a problem's program, where a thread has `count` neighbouring channels."""
    if problem.program is None or view.pixels:
        return ()
    return vectors_among(problem.program, problem.extras, view.extras, count,
                         lambda steps: (steps.batch[0] * (view.images > 1), steps.row * (view.values > 1)))


@functools.cache
def make_rows(program, vectors, compute, result, elements, units, height, pixels):
    """`Rows` of a program whose `vectors` are moved together, for a result that is rounded to the dtype `result`; of `units` rows in
    flight of `elements` channels, `height` apart."""
    if vectors:
        return make_vector_rows(program, vectors, compute, result, elements, units, height, 1)
    _, of_channels, _ = make_functions(program, compute, result, elements, pixels)

    @device_function
    def run_each(values, buffer, u, image, row, channel, operands, extents):
        of_channels(0, (values, image, row, channel, operands, extents))
    return Rows(1, device_function(nothing), run_each)
