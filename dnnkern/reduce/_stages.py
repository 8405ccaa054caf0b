"""What the kernels of this family share: where results go, merging states within a block, and the launch that merges partial states.

A result's state is finished and stored. Where several blocks have a part of it, each writes its state to the workspace, at
``split * outputs + output`` of each plane: a plane of numbers for each part of a state, then one of positions. The second launch merges
them in the order of the splits.
"""
import functools

from ..device import cuda, device_function, i32, jit
from ..device.convert import SCALARS, element
from ..device.dependent import wait_for_previous_grid
from ..device.index import ceil_div
from ..engine.fold import make_fold, make_meeting
from ..engine.offsets import make_offsets, offset_arguments
from ..host.canonical import Dim
from ..host.dtypes import ITEMSIZE
from ..host.launch import Argument, Launch

THREADS = 256
DEPENDENT = (9, 0)  # compute capability from which launches are prepared while those before them run
LIMIT = 2 ** 31 - 2 ** 20  # of counters, which overshoot by less than a block's threads and loads


def fold_of(problem):
    """The `Fold` of a problem."""
    return make_fold(problem.fold, problem.compute)


@functools.cache
def make_store(fold, out, compute, kept, partial):
    """Device function ``store(numbers, positions, output, split, outputs, splits, divisors, strides, factor, state)``: the result number
    `output` to the arrays of results, of dtype `out` and of `kept` dimensions, or, `partial`, its state to the workspace."""
    f = make_fold(fold, compute)
    put, finish, indexed, narrow = f.put, f.finish, f.indexed, element(out, compute).store
    offsets = make_offsets(kept, True)

    @device_function
    def store(numbers, positions, output, split, outputs, splits, divisors, strides, factor, state):
        if partial:
            put(numbers, positions, split * outputs + output, splits * outputs, state)
        else:
            y_at, index_at = offsets(output, divisors, strides)
            narrow(numbers, y_at, finish(state, factor))
            if indexed:
                positions[index_at] = state[1]
    return store


# ---- arguments and workspace

def kept_arguments(form):
    """Kernel parameters `divisors`, `x_strides` and `y_strides` of the kept dimensions."""
    divisors, x_strides = offset_arguments([Dim(d.size, d.x, 0) for d in form.kept], True)
    _, y_strides = offset_arguments([Dim(d.size, d.y, d.index) for d in form.kept], True)
    return divisors, x_strides, y_strides


def target_arguments(problem, splits):
    """Kernel parameters `numbers` and `positions`: the results, or where there are several splits the workspace."""
    fold = fold_of(problem)
    if splits > 1:
        planes = splits * problem.form.outputs * fold.parts * ITEMSIZE[problem.compute]
        return Argument(f"{problem.compute}*", "workspace"), Argument("int32*", "workspace", planes if fold.indexed else 0)
    numbers, *positions = problem.outputs
    pointer = element(numbers.dtype, problem.compute).pointer
    first = Argument(pointer, "value" if fold.indexed else "y", problem.form.y_first * numbers.itemsize)
    if fold.indexed:
        return first, Argument("int32*", "index", problem.form.index_first * 4)
    return first, Argument("int32*", "workspace")


def x_argument(problem):
    """Kernel parameter `x`."""
    return Argument(element(problem.x.dtype, problem.compute).pointer, "x", problem.form.x_first * problem.x.itemsize)


def factor_argument(problem):
    """Kernel parameter `factor`: 1 over the number of elements of a result, of which integers make no use."""
    return Argument(problem.compute, 0 if problem.compute.startswith("int") else 1 / max(problem.form.length, 1))


def workspace_bytes(problem, splits):
    """Bytes of the partial states."""
    fold = fold_of(problem)
    return splits * problem.form.outputs * (fold.parts * ITEMSIZE[problem.compute] + 4 * fold.indexed) if splits > 1 else 0


# ---- the second launch

@functools.cache
def make_finish(fold, out, compute, kept, across, threads, dependent):
    """(device function ``finish(all_numbers, all_positions, partial, partial_positions, numbers, positions, outputs, splits, divisors,
    y_strides, factor)``: a block's results out of partial states, `across` of them side by side, whose other threads divide the splits;
    lengths of the arrays in shared memory `all_numbers` and `all_positions`)."""
    f, T = make_fold(fold, compute), SCALARS[compute]
    empty, merge, put, get = f.empty, f.merge, f.put, f.get
    gather, column, SIZE = make_meeting(fold, compute, across, threads, 1)
    NUMBERS, POSITIONS, PARTS = SIZE * f.parts, SIZE if f.indexed else 1, f.parts
    SHIFT, HEIGHT = across.bit_length() - 1, threads // across
    store = make_store(fold, out, compute, kept, False)

    @device_function
    def finish(all_numbers, all_positions, partial, partial_positions, numbers, positions, outputs, splits, divisors, y_strides, factor):
        own_numbers, own_positions = cuda.local.array(PARTS, T), cuda.local.array(1, i32)
        t = cuda.threadIdx.x
        first = cuda.blockIdx.x * across
        output = first + (t & (across - 1))
        state, plane = empty(), splits * outputs
        if dependent:
            wait_for_previous_grid()
        if output < outputs:
            for s in range(t >> SHIFT, splits, HEIGHT):
                state = merge(state, get(partial, partial_positions, s * outputs + output, plane))
        put(own_numbers, own_positions, 0, 1, state)
        gather(all_numbers, all_positions, own_numbers, own_positions)
        cuda.syncthreads()
        if t < across and first + t < outputs:
            store(numbers, positions, first + t, 0, outputs, splits, divisors, y_strides, factor, column(all_numbers, all_positions, t))
    return finish, NUMBERS, POSITIONS


@functools.cache
def finish_kernel(fold, out, compute, kept, across, threads, dependent):
    """`make_finish`, of the results of one problem."""
    (finish, NUMBERS, POSITIONS), T = make_finish(fold, out, compute, kept, across, threads, dependent), SCALARS[compute]

    @jit(launch_bounds=threads)
    def reduce_finish(partial, partial_positions, numbers, positions, outputs, splits, divisors, y_strides, factor):
        all_numbers, all_positions = cuda.shared.array(NUMBERS, T), cuda.shared.array(POSITIONS, i32)
        finish(all_numbers, all_positions, partial, partial_positions, numbers, positions, outputs, splits, divisors, y_strides, factor)
    return reduce_finish


def finish_across(outputs):
    """Results side by side in a block."""
    return min(32, 1 << (outputs - 1).bit_length())


def finish_threads(outputs, splits):
    """Threads of a block: more where each would have more than a few loads."""
    return 1024 if splits * finish_across(outputs) > 8 * THREADS else THREADS


def finish_launch(problem, splits, dependent):
    """The second launch; `dependent`: prepared while the first runs."""
    form = problem.form
    across = finish_across(form.outputs)
    threads = finish_threads(form.outputs, splits)
    divisors, _, y_strides = kept_arguments(form)
    arguments = (*target_arguments(problem, splits), *target_arguments(problem, 1), Argument("int32", form.outputs),
                 Argument("int32", splits), divisors, y_strides, factor_argument(problem))
    kernel = finish_kernel(problem.fold, problem.outputs[0].dtype, problem.compute, len(form.kept), across, threads, dependent)
    return Launch(kernel, (ceil_div(form.outputs, across), 1, 1), (threads, 1, 1), arguments, dependent=dependent)
