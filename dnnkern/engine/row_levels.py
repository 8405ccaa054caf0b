"""A program that reduces rows of a product's result, in the registers of the tile that has them: softmax or a norm after a product.

A tile has whole rows (`engine.row_tiles`). Each level is a walk over a thread's accumulators, row by row: the values that are reduced go to
two states, of even and of odd columns; then the four lanes that share a row merge theirs by shuffles, in a fixed order. Columns past the
last one are no part of any state.

What a later walk needs of an element is kept instead of its accumulator where that is one number (`walks_of`), so a softmax adds its
bias and computes its exponential once, and a variance is of differences from the mean. The last walk leaves the result there.
"""
import functools
from dataclasses import replace
from typing import NamedTuple

from ..device import cuda, device_function, i32
from ..device.convert import SCALARS
from ..device.epilogue import make_epilogue
from ..device.pointwise import Function
from ..device.program import Program, Step, element_of, make_narrow, positions_of
from ..device.program_operands import MEMBERS
from ..device.program_results import make_results
from ..device.unroll import unrolled
from ..device.vec import pin
from ..fused._arrays import joined
from ..fused._levels import States
from ..fused._staged import StagedProgram
from ..reduce._tiles import after
from .constants import constants
from .functions import steps_instructions

COST = constants("fused/program")
ACCESSES = {"column": "matrix", "scalar": "row"}
"""How a `StagedProgram` has a load of a `Program`, where not by the same name."""


class Walk(NamedTuple):
    """One walk over the elements. `program` has loads: the value that the walk before has kept, arrays, the row's values; its stores are
    what is reduced by `modes`, side outputs, and, if it `keeps` one, the value that replaces the accumulator.

    Attributes
    ----------
    program : Program
    given : int
        Number of the value kept before: 0 is the product's.
    arrays : tuple of int
        Numbers of the loads.
    modes : tuple of str
    sides : tuple of int
        Which of the side outputs it stores.
    keeps : bool
    """
    program: Program
    given: int
    arrays: tuple
    modes: tuple
    sides: tuple
    keeps: bool


@functools.cache
def staged(program, compute) -> StagedProgram:
    """A `Program` with row steps as a `StagedProgram`, whose first load is the product, and whose first store is the result."""
    loads = [(compute, "matrix"), *((dtype, ACCESSES.get(access, access)) for dtype, access in program.loads)]
    return StagedProgram(loads, program.steps, [(program.result, compute, "matrix"), *program.stores]).hoisted


@functools.cache
def walks_of(program, compute, keeps=True) -> tuple:
    """The `Walk` of each level, and of the results; without `keeps` the accumulators stay what they are, and so does the result.

    A walk keeps the last value of which everything that is left follows, with the row's values.
    """
    p = staged(program, compute)
    first, kinds, last = len(p.loads), p._places, len(p._rows) - 1
    result, beside = p.stores[0][0], {k: store for k, store in enumerate(p.stores[1:]) if store[2] == "matrix"}

    def wanted_of(level):
        """(reductions, side outputs, values) of a walk; the result is the last one's."""
        steps = [p.steps[v - first] for v in p._rows[level + 1][2]] if level < last else []
        sides = [k for k, (v, _, _) in beside.items() if kinds[v][0] == level]
        return steps, sides, [s.value for s in steps] + [beside[k][0] for k in sides] + [result] * (level == last)

    def needed(values, kept):
        """The full values, and constants, of which these are made, down to `kept`."""
        found, stack = set(), list(values)
        while stack:
            v = stack.pop()
            if v not in found and kinds[v][1] != "row":
                found.add(v)
                stack += () if v < first or v == kept else p.steps[v - first].inputs
        return found

    def keepafter(level, kept):
        """The value to keep for the walks after this one."""
        later = [v for other in range(level + 1, last + 1) for v in wanted_of(other)[2]]
        for v in sorted(needed(wanted_of(level)[2], kept), reverse=True):
            if v >= first and p.types[v] == compute and kinds[v][1] == "full" and kept not in needed(later, v):
                return v
        return kept

    found, kept = [], 0
    for level in range(last + 1):
        (before, new, _), (steps, sides, values) = p._rows[level], wanted_of(level)
        following = kept if not keeps else result if level == last else keepafter(level, kept)
        some = values + [following] * (following != kept and level < last)
        dtypes = [*(s.compute for s in steps), *(beside[k][1] for k in sides)]
        dtypes += [p.types[v] for v in some[len(dtypes):]]
        part = needed(some, kept) - {kept}
        loads, number = [(p.types[kept], "matrix")], {kept: 0}
        arrays = [v for v in sorted(part) if v < first and kinds[v][1] == "full"]
        for v in (*arrays, *(v for v in sorted(part) if kinds[v][1] == "constant")):
            number[v] = len(loads)
            loads.append(p.loads[v])
        for v in before + new:
            number[v] = len(loads)
            loads.append(("int32" if v is None else p.types[v], "value"))
        code = []
        for v in sorted(v for v in part if v >= first):
            step = p.steps[v - first]
            number[v] = len(loads) + len(code)
            code.append(type(step)(step.function, tuple(number[i] for i in step.inputs), step.round_to, step.compute))
        stores = [(number[v], dtype, "matrix") for v, dtype in zip(some, dtypes)]
        found.append(Walk(Program(loads, code, stores, accumulators=0), kept, tuple(arrays), tuple(s.mode for s in steps), tuple(sides),
                          following != kept or level == last))
        kept = following
    return tuple(found)


# ---- the row's values

def _positions(program):
    """{number of a load or ("store", k): (dtype, access, where its members begin)}."""
    found, starts = {}, iter(positions_of(program))
    for k, (dtype, access) in enumerate(program.loads, 1):
        if access in MEMBERS:
            found[k] = dtype, access, next(starts)
    for k, (_, dtype, access) in enumerate(program.stores):
        found["store", k] = dtype, access, next(starts)
    return found


def _loader(dtype, access, AT):
    """Device function ``load(of, m, n)`` of the operand that begins there in the tuple of operands; see `device.program`."""
    load, S, T = element_of(dtype).load, AT + 1, AT + 2
    if access == "value":
        return device_function(lambda e, m, n: e[AT])
    if access == "scalar":
        return device_function(lambda e, m, n: load(e[AT], 0))
    if access == "row":
        return device_function(lambda e, m, n: load(e[AT], m * e[S]))
    if access == "column":
        return device_function(lambda e, m, n: load(e[AT], n * e[S]))
    if access == "matrix":
        return device_function(lambda e, m, n: load(e[AT], m * e[S] + n * e[T]))
    return device_function(lambda e, m, n: i32(m * e[AT] + n * e[S] + e[T]))


@functools.cache
def make_start(program, compute):
    """Device function ``start(e, m)``: the row's values that need no reduction."""
    p, where = staged(program, compute), _positions(program)
    rows = [v for v in p._rows[0][0] if v is not None]
    loaded, more = joined([_loader(*where[v]) for v in rows]), p._stages().start
    if more is None:
        return device_function(lambda e, m: loaded(e, m, 0))
    results = make_results(_with_quotients(more))

    @device_function
    def start(e, m):
        rows = loaded(e, m, 0)
        return rows + results(rows)
    return start


@functools.cache
def _known(program, compute, levels, count):
    """Device function ``known(e, m, found, i)``: the values of a thread's row `i`, which is row m, after so many levels, the results of
    whose reductions are in `found`: planes of `count`, one for each row of the thread."""
    before = make_start(program, compute)
    known, plane = device_function(lambda e, m, found, i: before(e, m)), 0
    for level, walk in enumerate(walks_of(program, compute)[:levels]):
        read = joined([_found((plane + j) * count) for j in range(len(walk.modes))])
        known, plane = _with_level(known, make_next(program, compute, level), read), plane + len(walk.modes)
    return known


def make_next(program, compute, level):
    """Device function ``more(rows)``: the row's values that follow from a level's results, which are the last ones of `rows`."""
    return make_results(_with_quotients(staged(program, compute)._stages().levels[level].row))


def _with_quotients(program):
    """A program whose reciprocal roots are roots and quotients, which have branches: where all of a row's values are straight-line code
    ptxas uses accumulators before it has waited for wgmma, and spills them (layer norm, 128 columns and more)."""
    first, steps = program.accumulators + len(program.loads), []
    number = {v: v for v in range(first)}
    for k, step in enumerate(program.steps, first):
        inputs, function = tuple(number[v] for v in step.inputs), step.function
        if function.mode == "rsqrt":
            steps.append(Step(Function.of("sqrt"), inputs, None, step.compute))
            inputs, function = (first + len(steps) - 1,), Function.of("reciprocal")
        number[k] = first + len(steps)
        steps.append(replace(step, function=function, inputs=inputs))
    return replace(program, steps=tuple(steps), stores=tuple((number[v], *kind) for v, *kind in program.stores),
                   result=number[program.result])


def _with_level(before, results, read):
    @device_function
    def known(e, m, found, i):
        rows = before(e, m, found, i)
        return rows + results(rows + read(found, i, 0))
    return known


def _found(FIRST):
    return device_function(lambda found, i, nothing: found[FIRST + i])


# ---- an element

def make_element(spec, walk):
    """Device function ``element(x, e, m, n, rows)``: what a walk stores, of the accumulator, or of what has been kept of it."""
    where, results = _positions(spec.program), make_results(walk.program)
    value = make_epilogue(replace(spec, program=None, output=spec.compute), "compute")
    if walk.given:
        first = device_function(lambda x, at, rows: x)
    else:
        first = device_function(lambda x, at, rows: value(x, at[1], at[2], at[0]))
    loads = [first, *(_at(_loader(*where[v])) for v in walk.arrays)]
    rows = sum(access == "value" for _, access in walk.program.loads)
    loaded = joined(loads + [_row_value(k) for k in range(rows)])

    @device_function
    def element(x, e, m, n, rows):
        return results(loaded(x, (e, m, n), rows))
    return element


def _at(load):
    return device_function(lambda x, at, rows: load(at[0].extras, at[1], at[2]))


def _row_value(K):
    return device_function(lambda x, at, rows: rows[K])


def make_sides(program, walk):
    """Device function ``store(values, e, m, n)``: the side outputs of a walk."""
    where, store = _positions(program), device_function(lambda values, e, m, n: None)
    for j, k in enumerate(walk.sides, len(walk.modes)):
        store = _with_side(store, j, *where["store", k])
    return store


def _with_side(before, J, dtype, access, AT):
    put, S, T = element_of(dtype).store, AT + 1, AT + 2

    @device_function
    def store(values, e, m, n):
        before(values, e, m, n)
        put(e[AT], m * e[S] + n * e[T], values[J])
    return store


def make_end(program, compute):
    """Device function ``end(rows, e, m)``: the results of a row are stored."""
    where, end = _positions(program), device_function(lambda rows, e, m: None)
    by_row = [k for k, (_, _, access) in enumerate(program.stores) if access == "row"]
    for k, (value, kind, dtype) in zip(by_row, staged(program, compute)._stages().stores):
        end = _with_end(end, value, make_narrow(kind, dtype), where["store", k][2])
    return end


def _with_end(before, VALUE, narrow, AT):
    S = AT + 1

    @device_function
    def end(rows, e, m):
        before(rows, e, m)
        e[AT][m * e[S]] = narrow(rows[VALUE])
    return end


# ---- a tile

def states_of(walk, compute, count=1):
    """The `States` of a walk's reductions, side by side for so many rows."""
    return States(walk.modes, compute, count)


def _states(spec):
    return [states_of(walk, spec.compute) for walk in walks_of(spec.program, spec.compute)[:-1]]


def make_levels(spec, fragment):
    """Device function ``levels(acc, first, row, column, lane, m, n, e)``: the program of the accumulators acc[first] and on of a tile of m
    rows and n columns, which its result replaces, with what it stores beside; by the warp whose first element is (row, column). `e` are the
    epilogue's operands."""
    tile, compute = fragment.tile, spec.compute
    walks, program, ROWS = walks_of(spec.program, compute), spec.program, tile.rows
    T, states = SCALARS[compute], _states(spec)
    FOUND, plane, run = sum(len(s.modes) for s in states) * ROWS, 0, None
    for level, walk in enumerate(walks[:-1]):
        each = _make_walk(spec, fragment, level, walk)
        run, plane = after(run, _make_level(states[level], each, fragment, plane, T)), plane + len(walk.modes)
    last = _make_walk(spec, fragment, len(walks) - 1, walks[-1])
    end, known, row_of = make_end(program, compute), _known(program, compute, len(walks) - 1, ROWS), tile.row

    @device_function
    def finish(i, s):
        row, lane, m, e, found = s
        r = row + row_of(i, lane)
        if r < m and lane & 3 == 0:
            end(known(e.extras, r, found, i), e.extras, r)
    finish_all = unrolled(ROWS, finish)

    @device_function
    def levels(acc, first, row, column, lane, m, n, e):
        found = cuda.local.array(FOUND, T)
        run((acc, first, row, column, lane, m, n, e, found))
        last((acc, first, row, column, lane, m, n, e, found, found))
        finish_all(0, (row, lane, m, e, found))
    return levels


def _make_walk(spec, fragment, level, walk):
    """Device function ``each(s)``, see `make_levels`, of which the last is the array `numbers` of the states."""
    tile, at = fragment.tile, fragment.at
    ROWS, COLUMNS, EDGE, row_of, column_of = tile.rows, tile.columns, tile.edge, tile.row, tile.column  # rows are even in number
    hide = pin(1)
    element, sides, known = make_element(spec, walk), make_sides(spec.program, walk), _known(spec.program, spec.compute, level, ROWS)
    states = states_of(walk, spec.compute, 2 * ROWS)  # of even and of odd columns
    REDUCES, KEEPS, SIDES, LAST = bool(walk.modes), walk.keeps, bool(walk.sides), len(walk.program.stores) - 1
    push = states.push if REDUCES else None

    @device_function
    def one(acc, k, row, c, at_column, m, n, e, rows, numbers, state):
        values = element(acc[k], e, min(row, m - 1), at_column, rows)
        if REDUCES:
            if not EDGE or c < n:
                push(numbers, values, state)
        if SIDES:
            if row < m and (not EDGE or c < n):
                sides(values, e.extras, row, c)
        if KEEPS:
            acc[k] = values[LAST]

    @device_function
    def both(j, s):
        acc, first, i, low, high, column, lane, m, n, e, low_rows, high_rows, numbers = s
        c = column + column_of(j, lane)
        at_column = min(c, n - 1) if EDGE else c
        one(acc, first + at(i, j), low, c, at_column, m, n, e, low_rows, numbers, 2 * i + (j & 1))
        one(acc, first + at(i + 1, j), high, c, at_column, m, n, e, high_rows, numbers, 2 * i + 2 + (j & 1))
    all_columns = unrolled(COLUMNS, both)

    @device_function
    def of_rows(half, s):
        acc, first, row, column, lane, m, n, e, found, numbers = s
        i = 2 * half
        low, high = row + row_of(i, lane), row + row_of(i + 1, lane)
        low_rows, high_rows = known(e.extras, min(low, m - 1), found, i), known(e.extras, min(high, m - 1), found, i + 1)
        again = cuda.local.array(1, i32)
        again[0] = column
        hide(again)  # or what is loaded for a column would be kept for all other rows and walks
        all_columns(0, (acc, first, i, low, high, again[0], lane, m, n, e, low_rows, high_rows, numbers))
    all_rows = unrolled(ROWS // 2, of_rows)

    @device_function
    def each(s):
        all_rows(0, s)
    return each


def _make_level(states, each, fragment, plane, T):
    """Device function ``level(s)``, see `make_levels`: the states of all elements, and the results of each row in `found`."""
    ROWS = fragment.tile.rows
    WIDTH, SIZE = 2 * ROWS, 2 * ROWS * states.size
    begin = States(states.modes, states.compute, WIDTH).begin
    meet = finish = None
    for j, (fold, start) in enumerate(zip(states.folds, states.starts)):
        meet = after(meet, _meet_of(fold, start * WIDTH, WIDTH))
        finish = after(finish, _finish_of(fold, start * WIDTH, WIDTH, (plane + j) * ROWS))
    meet_all, finish_all = (unrolled(ROWS, _numbered(f)) for f in (meet, finish))

    @device_function
    def level(s):
        acc, first, row, column, lane, m, n, e, found = s
        numbers = cuda.local.array(SIZE, T)
        begin(numbers)
        each((acc, first, row, column, lane, m, n, e, found, numbers))
        meet_all(0, (numbers, lane))
        finish_all(0, (numbers, found, T(1) / T(n)))
    return level


def _numbered(f):
    return device_function(lambda i, s: f((i,) + s))


def _meet_of(fold, FIRST, WIDTH):
    """The states of even and of odd columns, and of the four lanes."""
    put, get, merge, swap = fold.put, fold.get, fold.merge, fold.swap

    @device_function
    def meet(s):
        i, numbers, lane = s
        state = merge(get(numbers, numbers, FIRST + 2 * i, WIDTH), get(numbers, numbers, FIRST + 2 * i + 1, WIDTH))
        state = merge(state, swap(state, 2))
        state = merge(state, swap(state, 1))
        put(numbers, numbers, FIRST + 2 * i, WIDTH, state)
    return meet


def _finish_of(fold, FIRST, WIDTH, TO):
    get, finish = fold.get, fold.finish

    @device_function
    def result(s):
        i, numbers, found, factor = s
        found[TO + i] = finish(get(numbers, numbers, FIRST + 2 * i, WIDTH), factor)
    return result


# ---- estimates

@functools.cache
def instructions(spec):
    """Of an element: functions of all walks, what they load and store, and reductions."""
    walks = walks_of(spec.program, spec.compute)
    moved = sum(len(walk.arrays) + len(walk.sides) for walk in walks)
    return COST.value * moved + sum(steps_instructions(walk.program) + 2 * len(walk.modes) for walk in walks)
