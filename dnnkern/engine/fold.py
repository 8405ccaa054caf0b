"""The modes of reduction: the running state of each, and how states are merged.

A state is a tuple: one number of the type that is computed with for most modes, two for logsumexp (the maximum m so far, the sum of
exp(x - m)), three for norm2 (sums of squares of elements as they are, made small and made large, of which the one that neither overflows
nor underflows is taken at the end), a value and its position for argreduce. `merge` is commutative, so lanes that exchange states agree.
"""
import functools
import math
from typing import Callable, NamedTuple

import numpy as np

from ..device import cuda, device_function, f32, f64, i32
from ..device.convert import SCALARS
from ..device.fastmath import exp, exp_fast, fabs, fma, fmax, log, maximum, minimum, rsqrt, sqrt
from ..device.warp import shuffle_xor

NOWHERE = 2 ** 31 - 1  # the position of a state without elements
NEUTRAL = {"add": 0, "mul": 1, "min": math.inf, "max": -math.inf, "amax": 0, "avg": 0, "norm1": 0, "norm2": 0, "mul_no_zeros": 1,
           "sum_square": 0, "logsumexp": -math.inf, "argmin": math.inf, "argmax": -math.inf}
# Modes that another 0 does not change: elements that were not loaded need no mask.
IGNORES_ZEROS = ("add", "avg", "amax", "norm1", "norm2", "sum_square", "mul_no_zeros")
# Powers of two: what scales elements down and up, and between which bounds the sum of plain squares is good. Sums of 2**31 squares stay
# below the largest number where elements are scaled for their size, and squares that underflow are lost in the rounding of the others.
SCALES = {"float32": (-80, 96, -70, 126), "float64": (-600, 700, -900, 1020)}


class Fold(NamedTuple):
    """The device functions of a mode.

    Attributes
    ----------
    parts : int
        Numbers in a state.
    indexed : bool
        A position follows them.
    begin : ``begin(at)``
        A state without elements, for a walk that meets its first one at position `at`.
    empty : ``empty()``
        A state without elements.
    lift : ``lift(value, at)``
        The state of one element.
    push : ``push(state, value, at)``
        With one more element, at a later position than all others.
    merge : ``merge(state, other)``
    settle : ``settle(state, scale, shift)``
        Positions times `scale` plus `shift`.
    finish : ``finish(state, factor)``
        The result; `factor` is 1 over the number of elements.
    put, get, swap : ``put(numbers, positions, at, plane, state)``, ``get(numbers, positions, at, plane)``, ``swap(state, lanes)``
        A state in memory, parts `plane` elements apart; that of the lane whose number differs in the bits `lanes`.
    """
    parts: int
    indexed: bool
    begin: Callable
    empty: Callable
    lift: Callable
    push: Callable
    merge: Callable
    settle: Callable
    finish: Callable
    put: Callable
    get: Callable
    swap: Callable


@functools.cache
def make_fold(mode, compute):
    """The `Fold` of a mode ("argmin" and "argmax" are those of argreduce), computing in "float32", "float64", "int32" or "int64"."""
    T = SCALARS[compute]
    if mode in ("argmin", "argmax"):
        return _arg(mode, T, neutral(mode, compute))
    if compute.startswith("int"):
        change = _changes_nothing_but_zero(T) if mode == "mul_no_zeros" else _INTEGER_CHANGES.get(mode, _same)
        return _one_part(neutral(mode, compute), T, change, _INTEGER_JOINS.get(mode, _add))
    if mode == "logsumexp":
        return _logsumexp(T, exp if compute == "float64" else exp_fast)
    if mode == "norm2":
        return _norm2(T, *SCALES[compute], _root(compute))
    if mode == "mul_no_zeros":
        return _one_part(NEUTRAL[mode], T, _changes_nothing_but_zero(T), _multiply)
    return _one_part(NEUTRAL[mode], T, _CHANGES.get(mode, _same), _JOINS.get(mode, _add), average=mode == "avg")


def neutral(mode, compute):
    """What leaves others as they are: of extrema infinity, or the largest or the least integer."""
    value = NEUTRAL[mode]
    if compute.startswith("int") and not math.isfinite(value):
        return int(np.iinfo(compute).max if value > 0 else np.iinfo(compute).min)
    return value


def _changes_nothing_but_zero(T):
    return device_function(lambda value: T(1) if value == T(0) else T(value))


def _one_part(START, T, change, join, average=False):
    """The `Fold` of a mode whose state is one number: elements are changed, then joined."""
    @device_function
    def empty():
        return (T(START),)

    @device_function
    def lift(value, at):
        return (T(change(value)),)

    @device_function
    def push(state, value, at):
        return (T(join(state[0], T(change(value)))),)

    @device_function
    def merge(state, other):
        return (T(join(state[0], other[0])),)

    @device_function
    def finish(state, factor):
        if average:
            return T(state[0] * factor)
        return state[0]
    return _unindexed(1, empty, lift, push, merge, finish)


@functools.cache
def make_meeting(fold, compute, across, threads, vector):
    """How states of threads with the same columns are merged; `across` threads lie next to each other, with `vector` columns each::

        gather(numbers, positions, own_numbers, own_positions)     the thread's own states go to shared memory; no barrier
        column(numbers, positions, c)                              the state of the block's column c, after a barrier

    and the number of states in shared memory.
    """
    f = make_fold(fold, compute)
    get, put, merge, swap = f.get, f.put, f.merge, f.swap
    steps = max(0, 5 - (across.bit_length() - 1))           # lanes of a warp that share columns merge by shuffles
    layers, wide, width = (threads // 32, False, across * vector) if across < 32 else (threads // across, True, across * vector)
    SIZE, SHIFT, PLANE = layers * width, across.bit_length() - 1, vector

    @device_function
    def gather(numbers, positions, own_numbers, own_positions):
        t = cuda.threadIdx.x
        tx, layer = t & (across - 1), t >> SHIFT if wide else t >> 5
        for v in range(vector):
            state = get(own_numbers, own_positions, v, PLANE)
            for s in range(steps):
                state = merge(state, swap(state, 16 >> s))
            if wide or t & 31 < across:
                put(numbers, positions, layer * width + tx * vector + v, SIZE, state)

    @device_function
    def column(numbers, positions, c):
        state = get(numbers, positions, c, SIZE)
        for h in range(1, layers):
            state = merge(state, get(numbers, positions, h * width + c, SIZE))
        return state
    return gather, column, SIZE


@functools.cache
def make_absorb(mode, compute, vector):
    """(states of a thread, device function ``absorb(numbers, positions, some, at)``): the `vector` elements of load number `at` into them.

    A state for each element of a load; of logsumexp one, which the maximum of all changes once.
    """
    if mode == "logsumexp":
        return 1, _absorb_exponentials(compute, vector)
    f = make_fold(mode, compute)
    push, put, get = f.push, f.put, f.get

    @device_function
    def absorb(numbers, positions, some, at):
        for v in range(vector):
            put(numbers, positions, v, vector, push(get(numbers, positions, v, vector), some[v], at))
    return vector, absorb


def _absorb_exponentials(compute, vector):
    """The sum's scale is 1 instead of exp(m) while m is infinite: no difference of infinities, and infinite sums where they belong."""
    T, power = (f64, exp) if compute == "float64" else (f32, exp_fast)
    LARGEST = math.inf

    @device_function
    def absorb(numbers, positions, some, at):
        m, top = numbers[0], some[0]
        for v in range(1, vector):
            top = fmax(top, some[v])
        top = fmax(m, top)
        base = top if fabs(top) < T(LARGEST) else T(0)
        ratio = T(1) if m == top else T(power(T(m - base)))
        part = T(power(T(some[0] - base)))
        for v in range(1, vector):
            part = T(part + power(T(some[v] - base)))
        numbers[0], numbers[1] = top, T(numbers[1] * ratio + part)
    return absorb


@device_function
def _same(value):
    return value


@device_function
def _square(value):
    return value * value


@device_function
def _add(a, b):
    return a + b


@device_function
def _multiply(a, b):
    return a * b


@device_function
def _magnitude(value):
    return value if value >= 0 else -value


@device_function
def _least(a, b):
    return a if a < b else b


@device_function
def _largest(a, b):
    return a if a > b else b


_CHANGES = {"amax": fabs, "norm1": fabs, "sum_square": _square}
_JOINS = {"mul": _multiply, "mul_no_zeros": _multiply, "min": minimum, "max": maximum, "amax": maximum}
_INTEGER_CHANGES = {**_CHANGES, "amax": _magnitude, "norm1": _magnitude}
_INTEGER_JOINS = {**_JOINS, "min": _least, "max": _largest, "amax": _largest}


def _unindexed(parts, empty, lift, push, merge, finish):
    """The `Fold` of a mode without positions."""
    @device_function
    def begin(at):
        return empty()

    @device_function
    def settle(state, scale, shift):
        return state
    return Fold(parts, False, begin, empty, lift, push, merge, settle, finish, *_moves(parts))


def _moves(parts):
    """put, get and swap of states of so many numbers."""
    if parts == 1:
        @device_function
        def put(numbers, positions, at, plane, state):
            numbers[at] = state[0]

        @device_function
        def get(numbers, positions, at, plane):
            return (numbers[at],)

        @device_function
        def swap(state, lanes):
            return (shuffle_xor(state[0], lanes),)
    elif parts == 2:
        @device_function
        def put(numbers, positions, at, plane, state):
            numbers[at], numbers[at + plane] = state[0], state[1]

        @device_function
        def get(numbers, positions, at, plane):
            return numbers[at], numbers[at + plane]

        @device_function
        def swap(state, lanes):
            return shuffle_xor(state[0], lanes), shuffle_xor(state[1], lanes)
    else:
        @device_function
        def put(numbers, positions, at, plane, state):
            numbers[at], numbers[at + plane], numbers[at + 2 * plane] = state[0], state[1], state[2]

        @device_function
        def get(numbers, positions, at, plane):
            return numbers[at], numbers[at + plane], numbers[at + 2 * plane]

        @device_function
        def swap(state, lanes):
            return shuffle_xor(state[0], lanes), shuffle_xor(state[1], lanes), shuffle_xor(state[2], lanes)
    return put, get, swap


def _logsumexp(T, power):
    """(m, sum of exp(x - m)), with one exponential an element.

    Of an element and m, the larger is the new m and has exp(0) = 1; so has an infinite element that equals m, whose difference is NaN. A
    NaN is in the sum alone, and stays there.
    """
    NOTHING = -math.inf

    @device_function
    def empty():
        return T(NOTHING), T(0)

    @device_function
    def lift(value, at):
        if value == value:
            return T(value), T(1)
        return T(NOTHING), T(value)

    @device_function
    def push(state, value, at):
        m, total = state
        ratio = T(1) if value == m else T(power(-fabs(T(value - m))))
        if value > m:
            return T(value), fma(total, ratio, T(1))
        return m, T(total + ratio)

    @device_function
    def merge(state, other):
        m, total = state
        n, more = other
        ratio = T(1) if m == n else T(power(-fabs(T(n - m))))
        if n > m:
            return n, fma(total, ratio, more)
        return m, fma(more, ratio, total)

    @device_function
    def finish(state, factor):
        return T(state[0] + log(state[1]))
    return _unindexed(2, empty, lift, push, merge, finish)


def _root(compute):
    """The square root: for float32 that of the approximate reciprocal root, corrected once; 0 and infinity as they are."""
    if compute == "float64":
        return sqrt
    LARGEST = math.inf

    @device_function
    def root(s):
        if s == 0 or s == LARGEST:
            return s
        r = rsqrt(s)
        y = s * r
        return fma(fma(-y, y, s), r * 0.5, y)
    return root


def _norm2(T, down, up, low, high, root):
    """Sums of squares of x, of x made small and of x made large."""
    DOWN, UP, LOW, HIGH, SMALL, LARGE = 2.0 ** down, 2.0 ** up, 2.0 ** low, 2.0 ** high, 2.0 ** -up, 2.0 ** -down

    @device_function
    def empty():
        return T(0), T(0), T(0)

    @device_function
    def lift(value, at):
        less, more = T(value * T(DOWN)), T(value * T(UP))
        return T(value * value), T(less * less), T(more * more)

    @device_function
    def push(state, value, at):
        less, more = T(value * T(DOWN)), T(value * T(UP))
        return T(state[0] + value * value), T(state[1] + less * less), T(state[2] + more * more)

    @device_function
    def merge(state, other):
        return T(state[0] + other[0]), T(state[1] + other[1]), T(state[2] + other[2])

    @device_function
    def finish(state, factor):
        if state[0] > T(HIGH):
            return T(root(state[1]) * T(LARGE))
        if state[0] < T(LOW):
            return T(root(state[2]) * T(SMALL))
        return T(root(state[0]))
    return _unindexed(3, empty, lift, push, merge, finish)


def _arg(mode, T, START):
    """(value, position): the first of equal ones, and the first NaN before everything."""
    least = mode == "argmin"

    @device_function
    def better(a, b):
        """b is beyond a; neither is NaN."""
        if least:
            return b < a
        return b > a

    @device_function
    def begin(at):
        return T(START), at

    @device_function
    def empty():
        return T(START), i32(NOWHERE)

    @device_function
    def lift(value, at):
        return T(value), i32(at)

    @device_function
    def push(state, value, at):
        best, position = state
        if best == best and not (better(value, best) or value == best):  # NaN is neither
            best, position = T(value), at
        return best, position

    @device_function
    def merge(state, other):
        a, i = state
        b, j = other
        if b != b:
            take = a == a or j < i
        elif a != a:
            take = False
        else:
            take = better(a, b) or (a == b and j < i)
        if take:
            return b, j
        return a, i

    @device_function
    def settle(state, scale, shift):
        best, position = state
        if position != NOWHERE:
            position = position * scale + shift
        return best, position

    @device_function
    def finish(state, factor):
        return state[0]

    @device_function
    def put(numbers, positions, at, plane, state):
        numbers[at], positions[at] = state[0], state[1]

    @device_function
    def get(numbers, positions, at, plane):
        return numbers[at], positions[at]

    @device_function
    def swap(state, lanes):
        return shuffle_xor(state[0], lanes), shuffle_xor(state[1], lanes)
    return Fold(1, True, begin, empty, lift, push, merge, settle, finish, put, get, swap)
