"""The tanh of a program of scores by itself: a soft cap's, which a tile computes of all its scores at once.

    program     resumed(tanh(argument(x)))              of an accumulator x
    backward    gradient(dy, tanh(argument(x)))         a program of (dy, x) whose tanh has the same argument

Few scores come near a cap. Where all of a warp's arguments are at most `TANH_LIMIT` a polynomial is tanh, with no exponential and no
division, within 2**-22.5 of the value; where one is larger, libdevice's is that of all, within 2 ulp. The derivative by the argument is
1 - tanh**2, within 2**-21 absolutely.
"""
import functools
from typing import Callable, NamedTuple

from . import device_function
from .fastmath import TANH_LIMIT, fmax, tanh, tanh_ratio
from .pointwise import Function
from .program import Program, Step
from .program_affine import make_at_position
from .program_operands import MEMBERS
from .unroll import unrolled
from .warp import any_lane

TANH, TANH_BACKWARD = Function.of("tanh"), Function.of("tanh_backward")


class Parts(NamedTuple):
    """Programs with the operands of those that they are parts of: of x the argument of tanh; of tanh the result; of (the derivative by the
    result, tanh) that by x, None where there was none."""
    argument: Program
    resumed: Program
    gradient: Program | None


@functools.cache
def parts_of(program, backward=None):
    """The `Parts`; None where the result is no function of one tanh in float32, or the derivative takes x otherwise."""
    known = {}
    numbers = _numbers(program, known)
    for at, step in enumerate(program.steps):
        if step.function == TANH and step.compute == "float32":
            of = numbers[step.inputs[0]]
            resumed, gradient = _rebuilt(program, program.result, numbers, of), None
            if backward is not None:
                gradient = _rebuilt(backward, backward.result, _numbers(backward, known), of)
            if resumed is not None and (gradient is None) == (backward is None):
                return Parts(_rebuilt(program, step.inputs[0], numbers), resumed, gradient)
    return None


def _numbers(program, known):
    """A number of each value, in `known` by what it is: equal ones are equal values, of one program or of two with the same last
    accumulator. Operands in memory are a program's own."""
    def number(*key):
        return known.setdefault(key, len(known))
    found = [number("x" if k == program.accumulators - 1 else "other") for k in range(program.accumulators)]
    found += [number(dtype, access, *((k, program) if isinstance(access, str) else ())) for k, (dtype, access) in enumerate(program.loads)]
    for step in program.steps:
        found.append(number(step.function, step.round_to, step.compute, *(found[i] for i in step.inputs)))
    return found


def _rebuilt(program, result, numbers, of=None):
    """The program of one of its values, by what that needs. `of`: the number of the argument; the last accumulator is tanh of it then, in
    place of x. None if the value takes x otherwise, or no tanh."""
    level, first = program.accumulators - 1, program.accumulators + len(program.loads)
    steps, made, taken = [], {value: value for value in range(first) if value != level or of is None}, []

    def put(function, *inputs, **more):
        steps.append(Step(function, inputs, **more))
        return first + len(steps)  # the number 1 is a load more

    def build(value):
        if value in made or value == level:
            taken.append(value)
            return made.get(value)
        step = program.steps[value - first]
        if of is not None and step.function in (TANH, TANH_BACKWARD) and step.compute == "float32" and numbers[step.inputs[-1]] == of:
            taken.append("tanh")
            found = level if step.round_to is None else put(Function.of("identity"), level, round_to=step.round_to)
            if step.function == TANH_BACKWARD:
                loss, square = build(step.inputs[0]), put(Function.of("mul"), level, level)
                found = put(Function.of("mul"), loss, put(Function.of("sub"), first, square), round_to=step.round_to)
        else:
            inputs = [build(i) for i in step.inputs]
            if None in inputs:
                return None
            found = put(step.function, *inputs, round_to=step.round_to, compute=step.compute)
        made[value] = found
        return found
    last = build(result)
    if of is not None and (level in taken or "tanh" not in taken):
        return None
    return Program((*program.loads, ("float32", 1.0)), steps, (), last, program.accumulators)


class Levels(NamedTuple):
    """Device functions of `Parts` at a `Position`: ``argument(x, operands, at)``, ``resumed(level, operands, at)``, ``gradient(dy, level,
    operands, at)``."""
    argument: Callable
    resumed: Callable
    gradient: Callable


@device_function
def same_gradient(dy, level, operands, at):
    return dy


@functools.cache
def make_levels(program, backward, compute, indices):
    """The `Levels` of two programs, of which the second may be None; None where they have no `Parts`. `indices` are of
    `program_affine.with_affine`, of the operands of both."""
    parts = parts_of(program, backward)
    if parts is None:
        return None
    count = len(program.operands)
    run_argument, run_resumed = (make_at_position(part, compute, indices[:count], 0) for part in parts[:2])

    @device_function
    def argument(x, operands, at):
        return run_argument((x,), operands, at)

    @device_function
    def resumed(level, operands, at):
        return run_resumed((level,), operands, at)
    if parts.gradient is None:
        return Levels(argument, resumed, same_gradient)
    members = sum(len(MEMBERS[access]) for _, access in program.operands)
    run_gradient = make_at_position(parts.gradient, compute, indices[count:], members)

    @device_function
    def gradient(dy, level, operands, at):
        return run_gradient((dy, level), operands, at)
    return Levels(argument, resumed, gradient)


@functools.cache
def make_tanh_of_all(count):
    """Device function ``tanh_of_all(x, most)``: that of so many elements; `most`: the largest absolute values of two parts of them. All
    lanes of a warp have some."""
    @device_function
    def far_one(k, x):
        x[k] = tanh(x[k])

    @device_function
    def near_one(k, x):
        x[k] = x[k] * tanh_ratio(x[k])
    far, near = unrolled(count, far_one), unrolled(count, near_one)

    @device_function
    def tanh_of_all(x, most):
        if any_lane(fmax(most[0], most[1]) > TANH_LIMIT):
            far(0, x)
        else:
            near(0, x)
    return tanh_of_all
