"""A program for kernels that load and store by themselves, several elements at a time."""
import functools

from . import device_function, i32
from .pointwise import make_function
from .program import MEMBERS, _rounding, _shorts, _start, _with_constant, _with_given, _with_step, loaded_type, make_cast, make_narrow


@functools.cache
def make_results(program):
    """Device function ``results(loaded)`` for kernels that load and store by themselves: the tuple of the loads' values, without constants,
    to that of what is to be stored, of the types ``loaded_type(dtype)``. Integers are clipped to their dtype; floats are yet to be
    rounded."""
    types, values, given = program.types(), _start(0), 0
    for dtype, access in program.loads:
        if access in MEMBERS:
            values, given = _with_given(values, given), given + 1
        else:
            values = _with_constant(values, dtype, access)
    shorts = _shorts(program, [])
    for k, step in enumerate(program.steps, len(program.loads)):
        function = make_function(step.function, step.compute, shorts[k])
        casts = tuple(make_cast(types[i], step.compute) for i in step.inputs)
        values = _with_step(values, function, tuple(i + 1 for i in step.inputs), casts, _rounding(step.compute, step.round_to))
    stored = None
    for value, dtype, _ in program.stores:
        stored = _with_result(stored, value + 1, _clipped(types[value], dtype))

    @device_function
    def results(loaded):
        return stored(values(loaded, 0, 0, 0))
    return results


def _with_result(before, VALUE, cast):
    """The results `before`, and one more."""
    if before is None:
        @device_function
        def first(values):
            return (cast(values[VALUE]),)
        return first

    @device_function
    def results(values):
        return before(values) + (cast(values[VALUE]),)
    return results


@functools.cache
def _clipped(source, dtype):
    """Device function: a value as it is stored, but for the rounding of floats."""
    if loaded_type(dtype) != "int32":
        return make_cast(source, loaded_type(dtype))
    narrow = make_narrow(source, dtype)
    return device_function(lambda value: i32(narrow(value)))
