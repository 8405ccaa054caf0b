"""Tile schedulers and orders of tiles: every tile once, in the order that is said; in the simulator and on a GPU."""
import numpy as np
import pytest
from kit import launch, needs

from dnnkern.device import cuda, i64, jit, u32
from dnnkern.device.atomic import fetch_add_u32
from dnnkern.device.index import divisor
from dnnkern.device.mbarrier import fence_mbarrier_init
from dnnkern.device.scheduler import (BAND, in_bands, locate_in_bands, locate_slice, locate_stream_k, make_channel, make_dynamic,
                                      make_longest_first, make_static, slice_of_k)
from dnnkern.device.vec import advance, shared_address

pytestmark = needs(9)


@pytest.mark.parametrize("cluster", [1, 2, 4])
def test_static(cluster):
    """Clusters take every so many tiles; their blocks take the same ones."""
    schedule, most = make_static(cluster), 8

    @jit(launch_bounds=32)
    def kernel(y, tiles):
        if cuda.threadIdx.x == 0:
            t, n = schedule.first(), 0
            while t < tiles:
                y[cuda.blockIdx.x * most + n] = t
                t, n = schedule.next(t, y), n + 1

    y = np.full((12, most), -1, np.int32)
    launch(kernel, 12, 32, y.reshape(-1), 17, cluster=cluster)
    stride = 12 // cluster
    for block in range(12):
        wanted = list(range(block // cluster, 17, stride))
        assert y[block].tolist() == wanted + [-1] * (most - len(wanted))


@pytest.mark.parametrize("schedule", [make_static(), make_dynamic()], ids=["static", "dynamic"])
@pytest.mark.parametrize("tiles", [0, 2, 19])
def test_tiles_through_a_channel(schedule, tiles):
    """The producer of each block asks the scheduler and tells two warps; every tile is worked on once, with what belongs to it."""
    channel = make_channel(2)
    words = channel.bytes // 8

    @jit(launch_bounds=96)
    def kernel(y, counter, tiles):
        room = cuda.shared.array(words, i64, alignment=16)
        base, t = shared_address(room, 0), cuda.threadIdx.x
        if t == 0:
            channel.init(base)
            fence_mbarrier_init()
        cuda.syncthreads()
        if t == 64:
            state, tile = channel.pipe.producer_start(), schedule.first()
            while tile < tiles:
                state = channel.send(base, state, tile, 10 * tile, -tile)
                tile = schedule.next(tile, counter)
            channel.send(base, state, tiles, 0, 0)
        elif t < 64:
            state = channel.pipe.consumer_start()
            tile, a, b = channel.receive(base, state, t & 31)
            while tile < tiles:
                if a == 10 * tile and b == -tile:
                    fetch_add_u32(advance(y, tile), u32(1))
                state = channel.pipe.next(state)
                tile, a, b = channel.receive(base, state, t & 31)

    y, counter = np.zeros(max(tiles, 1), np.uint32), np.zeros(1, np.uint32)
    launch(kernel, 3, 96, y, counter, tiles)
    assert (y == (64 if tiles else 0)).all()


@pytest.mark.parametrize("rows, columns", [(1, 1), (8, 3), (20, 3), (7, 5)])
def test_bands(rows, columns):
    """A permutation of all tiles; those of a band follow one another, column by column."""
    per_band, _, last_rows = in_bands(rows, columns)

    @jit(launch_bounds=32)
    def kernel(y, per_band, rows, last_rows, tiles):
        for t in range(cuda.threadIdx.x, tiles, 32):
            y[2 * t], y[2 * t + 1] = locate_in_bands(t, per_band, rows, last_rows)

    y = np.full((rows * columns, 2), -1, np.int32)
    launch(kernel, 1, 32, y.reshape(-1), per_band, rows, last_rows, rows * columns)
    wanted = [(r, c) for band in range(0, rows, BAND) for c in range(columns) for r in range(band, min(band + BAND, rows))]
    assert y.tolist() == [list(place) for place in wanted]


@pytest.mark.parametrize("steps, each", [(7, 3), (8, 4), (2, 1), (5, 4)])
def test_slices_of_k(steps, each):
    """Of all matrices' tiles: numbers, and steps that follow one another and cover k once."""
    slices, tiles, matrices = -(-steps // each), 3, 2

    @jit(launch_bounds=32)
    def kernel(y, per_matrix, slices, steps, each, count):
        for t in range(cuda.threadIdx.x, count, 32):
            matrix, tile, s = locate_slice(t, per_matrix, slices)
            first, end = slice_of_k(s, steps, each)
            y[5 * t], y[5 * t + 1], y[5 * t + 2], y[5 * t + 3], y[5 * t + 4] = matrix, tile, s, first, end

    y = np.full((matrices * slices * tiles, 5), -1, np.int32)
    launch(kernel, 1, 32, y.reshape(-1), divisor(tiles), divisor(slices), steps, each, len(y))
    assert y.tolist() == [[m, t, s, s * each, min((s + 1) * each, steps)] for m in range(matrices) for s in range(slices)
                          for t in range(tiles)]


@pytest.mark.parametrize("whole, rest, steps, each", [(6, 2, 7, 3), (1, 3, 8, 4)])
def test_stream_k(whole, rest, steps, each):
    """Whole tiles first; then of the others slice after slice. Every step of every tile comes once."""
    count = whole + rest * -(-steps // each)

    @jit(launch_bounds=32)
    def kernel(y, whole, rest, steps, each, count):
        for t in range(cuda.threadIdx.x, count, 32):
            y[5 * t], y[5 * t + 1], y[5 * t + 2], y[5 * t + 3], y[5 * t + 4] = locate_stream_k(t, whole, rest, steps, each)

    y = np.full((count, 5), -1, np.int32)
    launch(kernel, 1, 32, y.reshape(-1), whole, divisor(rest), steps, each, count)
    assert y[:whole].tolist() == [[t, -1, 0, 0, steps] for t in range(whole)]
    covered = np.zeros((whole + rest, steps), int)
    for tile, s, divided, first, end in y.tolist():
        covered[tile, first:end] += 1
        assert s < 0 or (divided == tile - whole and first == s * each)
    assert (covered == 1).all()


@pytest.mark.parametrize("by_head", [False, True])
@pytest.mark.parametrize("several", [1, 4, 5, 12])
def test_longest_first(several, by_head):
    """Of sections of heads, the last one smaller: the last rows first. Every tile of every head of all images comes once."""
    images, heads, group, tiles, height = 2, 6, 3, 3, 64
    lines = images * heads
    sections = -(-lines // several)
    rest, locate = lines - (sections - 1) * several, make_longest_first(height, by_head)

    @jit(launch_bounds=32)
    def kernel(y, per_section, several, rest, last, inner_of, group_of, tiles, count):
        order = per_section, several, rest, last, inner_of, group_of, tiles
        for t in range(cuda.threadIdx.x, count, 32):
            y[4 * t], y[4 * t + 1], y[4 * t + 2], y[4 * t + 3] = locate(t, order)

    y = np.full((lines * tiles, 4), -1, np.int32)
    launch(kernel, 1, 32, y.reshape(-1), divisor(several * tiles), divisor(several), divisor(rest), sections - 1,
           divisor(images if by_head else heads), divisor(group), tiles, len(y))
    wanted = []
    for first in range(0, lines, several):
        for row in range(tiles - 1, -1, -1):
            for line in range(first, min(first + several, lines)):
                image, head = (line % images, line // images) if by_head else (line // heads, line % heads)
                wanted.append([image, head, head // group, row * height])
    assert y.tolist() == wanted
