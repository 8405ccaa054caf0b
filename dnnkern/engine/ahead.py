"""What a kernel reads first, brought into the L2 while the grid before it still runs: a dependent launch begins there, and nobody waits for
the values, which may not be final yet. Whatever the grid before it still writes replaces them in the L2."""
import functools

from ..device import cuda, device_function, i64
from ..device.dependent import launch_dependent_grids, wait_for_previous_grid
from ..device.index import ceil_div
from ..device.vec import advance, prefetch_l2

LINE = 128  # bytes of the L2


@device_function
def _begin():
    launch_dependent_grids()
    wait_for_previous_grid()


def make_begin(dependent):
    """Device function ``begin()``: wait for the previous grid, if the launch is dependent. Host function."""
    return _begin if dependent else _nothing


@device_function
def _follow():
    wait_for_previous_grid()
    launch_dependent_grids()


def make_wait(dependent):
    """Device functions ``wait()``: for the previous grid, if the launch is dependent; and ``release()``: the next grid may begin, if so.
    Host function."""
    return (wait_for_previous_grid, launch_dependent_grids) if dependent else (_nothing, _nothing)


def make_follow(dependent):
    """Device function ``follow()``: as `make_begin`'s, of kernels that take a few microseconds. The next grid begins only now, so that two
    wait at once, not as many as multiprocessors hold. Host function."""
    return _follow if dependent else _nothing


@device_function
def _nothing():
    return None


@functools.cache
def make_wait_with_rows(rows, nbytes, itemsize, threads):
    """Device function ``wait(p, stride, count, length)``: wait for the previous grid, having asked for a block's first rows, if any. Host
    function.

    Of `rows` rows, `stride` elements apart from pointer `p` on, the first `nbytes` bytes each, by all `threads` threads; there are `count`
    rows of `length` elements.
    """
    LINES, PER = max(nbytes // LINE, 1), LINE // itemsize
    TURNS = ceil_div(rows * LINES, threads)

    @device_function
    def wait(p, stride, count, length):
        launch_dependent_grids()
        for turn in range(TURNS):
            line = cuda.threadIdx.x + turn * threads
            row, at = line // LINES, line % LINES * PER
            if row < min(count, rows) and at < length:
                prefetch_l2(advance(p, row * i64(stride) + at))
        wait_for_previous_grid()
    return wait
