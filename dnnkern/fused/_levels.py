"""What kernels of programs with reductions share: arrays of rows, states of several reductions, the row's values from level to level.

The row's values are one tuple, which each level makes longer. States of a level's reductions lie one after another in one local array;
those of a block's warps meet in shared memory, in a region for each reduction, so a level costs one barrier.
"""
import functools

from ..device import cuda, device_function
from ..device.convert import SCALARS
from ..device.program import element_of, make_narrow
from ..device.program_results import make_results
from ..engine.fold import make_fold
from ..engine.functions import instructions_of
from ..host.launch import Argument
from ._arrays import joined, make_offset, stride_argument, struct_argument
from ._estimate import COST


# ---- the row's values

@functools.cache
def make_start(program, outer):
    """Device function ``start(pointers, firsts, strides, numbers, at)``: the row's values that need no reduction: numbers that are given at
    each call, elements of the arrays of rows, and functions of these. `outer`: the dimensions that number the rows."""
    dtypes, count = _row_loads(program), len(_row_arrays(program))
    functions = [_number(k) for k in range(sum(access == "value" for _, access in program.loads))]
    functions += [_row_value(element_of(dtype).load, k, make_offset(k, count, outer)) for k, dtype in enumerate(dtypes)]
    loaded = joined(functions)
    more = None if program.stages.start is None else make_results(program.stages.start)

    @device_function
    def start(pointers, firsts, strides, numbers, at):
        return loaded((pointers, firsts, numbers), at, strides)
    if more is None:
        return start

    @device_function
    def start_and_more(pointers, firsts, strides, numbers, at):
        rows = start(pointers, firsts, strides, numbers, at)
        return rows + more(rows)
    return start_and_more


def _row_loads(program):
    return tuple(dtype for dtype, access in program.loads if access == "row")


def _row_arrays(program):
    return _row_loads(program) + tuple(dtype for _, dtype, access in program.stores if access == "row")


def _number(K):
    @device_function
    def value(e, at, strides):
        return e[2][K]
    return value


def _row_value(load, K, offset):
    @device_function
    def value(e, at, strides):
        return load(e[0][K], e[1][K] + offset(at, strides))
    return value


@functools.cache
def make_end(program, outer):
    """Device function ``end(rows, pointers, firsts, strides, at)``: stores the results of a row."""
    first, count, end = len(_row_loads(program)), len(_row_arrays(program)), device_function(_nothing)
    for k, (value, kind, dtype) in enumerate(program.stages.stores, first):
        end = _with_end(end, value, make_narrow(kind, dtype), k, make_offset(k, count, outer))
    return end


def _nothing(rows, pointers, firsts, strides, at):
    return


def _with_end(before, VALUE, narrow, K, offset):
    @device_function
    def end(rows, pointers, firsts, strides, at):
        before(rows, pointers, firsts, strides, at)
        pointers[K][firsts[K] + offset(at, strides)] = narrow(rows[VALUE])
    return end


def row_arguments(forms):
    """Kernel parameters `row_pointers`, `row_firsts` and `row_strides`."""
    arrays = forms.rows.arrays
    pointers = [Argument(element_of(a.dtype).pointer, a.name) for a in arrays]
    firsts = tuple(a.first for a in arrays) or (0,)
    return (struct_argument([a.type for a in pointers], pointers), Argument(f"int64x{len(firsts)}", firsts),
            stride_argument(forms.rows.dims, True) if arrays else Argument("int64x1", (0,)))


def factor_argument(problem):
    """Kernel parameter `factor`: 1 over the number of elements of a row."""
    return Argument(problem.program.compute, 1 / max(problem.forms.length, 1))


# ---- states of a level's reductions

class States:
    """The reductions of a level: their folds, where the state of each begins in an array of `size` numbers, and device functions. Of
    `width` rows that a thread has, the states lie side by side; all functions but `begin` and `push` are for one row."""

    def __init__(self, modes, compute, width=1):
        self.compute, self.type, self.width = compute, SCALARS[compute], width
        self.modes, self.folds = modes, [make_fold(mode, compute) for mode in modes]
        self.starts, self.size = [], 0
        for f in self.folds:
            self.starts.append(self.size)
            self.size += f.parts * width

    def _given(self):
        return tuple(self.modes), self.compute, self.width

    def __reduce__(self):  # device functions are a process's own
        return States, self._given()

    def __eq__(self, other):
        return isinstance(other, States) and self._given() == other._given()

    def __hash__(self):
        return hash(self._given())

    def _each(self, make, nothing):
        found = device_function(nothing)
        for j, (f, start) in enumerate(zip(self.folds, self.starts)):
            found = make(found, j, f, start)
        return found

    @functools.cached_property
    def begin(self):
        """``begin(numbers)``: no elements yet."""
        WIDTH = self.width

        def make(before, J, f, START):
            put, empty = f.put, f.empty

            @device_function
            def begin(numbers):
                before(numbers)
                for n in range(WIDTH):
                    put(numbers, numbers, START + n, WIDTH, empty())
            return begin
        return self._each(make, lambda numbers: None)

    @functools.cached_property
    def push(self):
        """``push(numbers, values, n)``: one element more of row n, whose values to be reduced are a tuple."""
        WIDTH = self.width

        def make(before, J, f, START):
            get, put, push = f.get, f.put, f.push

            @device_function
            def more(numbers, values, n):
                before(numbers, values, n)
                put(numbers, numbers, START + n, WIDTH, push(get(numbers, numbers, START + n, WIDTH), values[J], 0))
            return more
        return self._each(make, lambda numbers, values, n: None)

    @functools.cached_property
    def merge(self):
        """``merge(numbers, others)``: with the states of further elements."""
        def make(before, J, f, START):
            get, put, merge = f.get, f.put, f.merge

            @device_function
            def more(numbers, others):
                before(numbers, others)
                put(numbers, numbers, START, 1, merge(get(numbers, numbers, START, 1), get(others, others, START, 1)))
            return more
        return self._each(make, lambda numbers, others: None)

    @functools.cached_property
    def finish(self):
        """``finish(numbers, factor)``: the tuple of results."""
        def make(J):
            get, finish, START = self.folds[J].get, self.folds[J].finish, self.starts[J]

            @device_function
            def result(numbers, factor, nothing):
                return finish(get(numbers, numbers, START, 1), factor)
            return result
        results = joined([make(j) for j in range(len(self.folds))])

        @device_function
        def finish(numbers, factor):
            return results(numbers, factor, 0)
        return finish

    def save(self, before):
        """``save(partial, at, plane, numbers)``: the states to memory, planes of numbers, the first of which is plane number `before`."""
        def make(done, J, f, START):
            get, put, FIRST = f.get, f.put, before + START

            @device_function
            def save(partial, at, plane, numbers):
                done(partial, at, plane, numbers)
                put(partial, partial, FIRST * plane + at, plane, get(numbers, numbers, START, 1))
            return save
        return self._each(make, lambda partial, at, plane, numbers: None)

    def absorb(self, before):
        """``absorb(partial, at, plane, numbers)``: merged with states that were saved."""
        def make(done, J, f, START):
            get, put, merge, FIRST = f.get, f.put, f.merge, before + START

            @device_function
            def absorb(partial, at, plane, numbers):
                done(partial, at, plane, numbers)
                other = get(partial, partial, FIRST * plane + at, plane)
                put(numbers, numbers, START, 1, merge(get(numbers, numbers, START, 1), other))
            return absorb
        return self._each(make, lambda partial, at, plane, numbers: None)

    def meet(self, lanes, base=0):
        """``meet(numbers, scratch)``: the states of `lanes` threads merged, in all of them, in a fixed order; of more than a warp by way of
        `lanes` / 32 times `size` numbers of shared memory from `base` on, which nothing else uses."""
        steps, warps = min(lanes, 32).bit_length() - 1, lanes // 32
        across, wide = max(warps, 1).bit_length() - 1, warps > 1

        def make_shuffle(before, J, f, START):
            get, put, merge, swap, HALF, BASE = f.get, f.put, f.merge, f.swap, min(lanes, 32) // 2, base + START * warps

            @device_function
            def shuffle(numbers, scratch, t):
                before(numbers, scratch, t)
                state = get(numbers, numbers, START, 1)
                for s in range(steps):
                    state = merge(state, swap(state, HALF >> s))
                put(numbers, numbers, START, 1, state)
                if wide:
                    if t & 31 == 0:
                        put(scratch, scratch, BASE + (t >> 5), warps, state)
            return shuffle

        def make_gather(before, J, f, START):
            get, put, merge, swap, HALF, BASE = f.get, f.put, f.merge, f.swap, warps // 2, base + START * warps

            @device_function
            def gather(numbers, scratch, t):
                before(numbers, scratch, t)
                state = get(scratch, scratch, BASE + (t & (warps - 1)), warps)
                for s in range(across):
                    state = merge(state, swap(state, HALF >> s))
                put(numbers, numbers, START, 1, state)
            return gather

        def nothing(numbers, scratch, t):
            return
        shuffle, gather = self._each(make_shuffle, nothing), self._each(make_gather, nothing)

        @device_function
        def meet(numbers, scratch):
            t = cuda.threadIdx.x
            shuffle(numbers, scratch, t)
            if wide:
                cuda.syncthreads()
                gather(numbers, scratch, t)
        return meet


@functools.cache
def states_of(program):
    """The `States` of each level."""
    return tuple(States(stage.modes, program.compute) for stage in program.stages.levels)


@functools.cache
def make_known(program, outer, levels):
    """Device function ``known(pointers, firsts, strides, numbers, at, found, row, rows)``: the row's values after so many levels, the
    results of whose reductions are in memory, in planes of so many rows."""
    known, plane = _with_nothing(make_start(program, outer)), 0
    for stage in program.stages.levels[:levels]:
        known = _with_results(known, make_results(stage.row), joined([_found(plane + j) for j in range(len(stage.modes))]))
        plane += len(stage.modes)
    return known


def _with_nothing(start):
    @device_function
    def known(pointers, firsts, strides, numbers, at, found, row, rows):
        return start(pointers, firsts, strides, numbers, at)
    return known


def _with_results(before, results, read):
    @device_function
    def known(pointers, firsts, strides, numbers, at, found, row, rows):
        values = before(pointers, firsts, strides, numbers, at, found, row, rows)
        return values + results(values + read(found, row, rows))
    return known


def _found(PLANE):
    @device_function
    def value(found, row, rows):
        return found[PLANE * rows + row]
    return value


def types_of(program, levels):
    """The types of the row's values after so many levels."""
    stages = program.stages
    more = (stages.start, *(stage.row for stage in stages.levels[:levels]))
    return (*stages.given, *(dtype for p in more if p is not None for _, dtype, _ in p.stores))


@functools.cache
def make_next(program, level):
    """Device function ``next_rows(rows, numbers, factor)``: the row's values with those that follow from a level's states."""
    finish, results = states_of(program)[level].finish, make_results(program.stages.levels[level].row)

    @device_function
    def next_rows(rows, numbers, factor):
        return rows + results(rows + finish(numbers, factor))
    return next_rows


# ---- estimates

@functools.cache
def element_instructions(program, kept=False):
    """Instructions of an element, of all levels and of the final functions; `kept`: what several of these need is computed once."""
    stages = program.stages
    walks = 1 if kept else len(stages.levels) + 1
    steps = program.element_steps if kept else [s for p in (*(stage.element for stage in stages.levels), stages.final) for s in p.steps]
    moved = walks * sum(access == "matrix" for _, access in program.loads) + len(stages.final.stores)
    return COST.value * moved + sum(instructions_of(s.function) - COST.apart for s in steps) + 2 * len(program.reductions)
