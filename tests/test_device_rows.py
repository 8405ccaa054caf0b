"""`dnnkern.device.rows`: forms of rows, their places, units with heads and tails in registers and shared memory, pairs over a cluster."""
import numpy as np
import pytest
from kit import launch, needs

from dnnkern.device import cuda, f32, i32, i64, u32
from dnnkern.device.block import merge_softmax
from dnnkern.device.cluster import cluster_arrive_relaxed, cluster_wait
from dnnkern.device.rows import Dim, Held, make_cluster_pair, make_row, make_row_places, merged, row_arguments, row_form, row_unit
from dnnkern.device.vec import advance, shared_address
from dnnkern.host.tensor import Tensor


def test_dimensions_merge_where_all_arrays_step_evenly():
    form = row_form((2, 3, 4, 8), (3,), (96, 32, 8, 1), (120, 40, 10, 1))
    assert form.outer == (Dim(24, (8, 10)),) and form.steps == (1, 1) and (form.rows, form.length) == (24, 8)
    assert row_form((2, 3, 4), (0,), (12, 4, 1), (12, 4, 1)).outer == (Dim(12, (1, 1)),)
    assert row_form((2, 3, 4), (1, 2), (24, 4, 1), (12, 4, 1)).row == (Dim(12, (1, 1)),)
    assert row_form((3, 4), (0, 1), (5, 1), (4, 1)).steps is None, "two dimensions"
    assert row_form((1,), (0,), (7,), (9,)).row == (Dim(1, (1, 1)),)
    assert merged([Dim(1, (5,)), Dim(4, (-1,)), Dim(3, (8,))]) == (Dim(3, (8,)), Dim(4, (-1,)))


@pytest.mark.parametrize("shape, strides, other, alignment, expected", [
    ((4, 32), (32, 1), (40, 1), 16, (16, False)), ((4, 33), (33, 1), (33, 1), 16, (16, True)), ((4, 33), (40, 1), (40, 1), 16, (16, True)),
    ((4, 32), (33, 1), (33, 1), 16, (16, True)), ((4, 32), (32, 1), (33, 1), 16, (2, False)), ((4, 32), (32, 1), (32, 1), 8, (2, False)),
    ((4, 32), (64, 2), (32, 1), 16, (2, False))])
def test_units_need_rows_in_phase(shape, strides, other, alignment, expected):
    tensors = [Tensor(shape, s, "bfloat16", alignment) for s in (strides, other)]
    assert row_unit(row_form(shape, (1,), strides, other), tensors) == expected


def test_places_of_rows():
    form = row_form((3, 5, 7, 4), (3,), (1000, 100, 10, 1), (-7, 3, 40, 1))
    assert len(form.outer) == 3
    divisors, strides = row_arguments(form)
    places, rows = make_row_places(3, 2), form.rows

    @cuda.jit(launch_bounds=128)
    def kernel(y, divisors, strides):
        offsets = cuda.local.array(2, i64)
        row = i32(cuda.threadIdx.x)
        if row < rows:
            places(row, divisors, strides, offsets)
            y[i32(2 * row)] = offsets[0]
            y[i32(2 * row + 1)] = offsets[1]
    y = np.zeros(2 * rows, np.int64)
    launch(kernel, 1, 128, y, np.array(divisors, np.uint32), np.array(strides, np.int64))
    want = {(1000 * i + 100 * j + 10 * k, -7 * i + 3 * j + 40 * k) for i in range(3) for j in range(5) for k in range(7)}
    assert set(map(tuple, y.reshape(-1, 2).tolist())) == want and len(want) == rows


def _copy_kernel(held, threads):
    """y = x, a row a group, all units through words and values, heads and tails through `rest`."""
    row = make_row(held, threads)
    span, load, load_rest, unpack, pack, store, store_rest, copy, fetch, put, kept = row[:11]
    E, WORDS, REST, REGISTERS, SHARED, PART = held.elements, held.words, held.rest, held.registers, held.shared, held.unit_words
    Real = held.real

    @cuda.jit(launch_bounds=threads)
    def kernel(x, y, length, x_row, y_row, step):
        dynamic = cuda.shared.array(0, u32)
        words, part = cuda.local.array(WORDS, u32), cuda.local.array(PART, u32)
        values, rest = cuda.local.array(E, Real), cuda.local.array(REST, Real)
        lane, row = i32(cuda.threadIdx.x), i32(cuda.blockIdx.x)
        source, target = advance(x, i32(row * x_row)), advance(y, i32(row * y_row))
        head, units = span(source, length)
        if SHARED:
            base = u32(shared_address(dynamic, i32(0)) + u32(16) * u32(lane))
            copy(base, source, head, units, lane)
        load(words, source, head, units, lane, step)
        load_rest(rest, source, head, units, length, lane)
        for c in range(REGISTERS):
            unpack(values, words, c)
            pack(words, c, values)
            store(target, words, c, head, units, lane, step)
        store_rest(target, rest, head, units, length, lane)
        if SHARED:
            for c in range(kept(units, lane)):
                fetch(part, base, c)
                unpack(values, part, 0)
                pack(part, 0, values)
                put(target, part, c, head, units, lane)
    return kernel


STORED = {"float64": np.float64, "float32": np.float32, "float16": np.uint16, "bfloat16": np.uint16}


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("unit, lanes, registers, shared, length, gap, step", [
    (16, 32, 2, 0, 64, 0, 1), (16, 32, 2, 0, 61, 0, 1), (16, 32, 2, 0, 3, 0, 1), (16, 4, 3, 0, 29, 1, 1), (16, 1, 4, 0, 13, 1, 1),
    (16, 32, 1, 2, 130, 1, 1), (0, 32, 2, 0, 50, 0, 1), (0, 32, 2, 0, 30, 1, 2)])
def test_a_row_is_whole(dtype, unit, lanes, registers, shared, length, gap, step):
    """Rows that begin anywhere: whatever unit, head, tail and place they take, every element arrives, and nothing else is written."""
    itemsize = np.dtype(STORED[dtype]).itemsize
    per = 16 // itemsize
    held = Held(dtype, unit or itemsize, lanes, registers, shared, heads=bool(unit and (gap or length % per)))
    length = min(length, held.capacity)
    width = length * step + gap
    if unit and not held.heads:
        width = -(-length // per) * per
    rng = np.random.default_rng(3)
    x = rng.standard_normal(3 * width + 16)
    x = x.astype(STORED[dtype]) if itemsize > 2 else rng.integers(0, 0x3C00, x.size).astype(np.uint16)
    y = np.zeros_like(x)
    launch(_copy_kernel(held, lanes), 3, lanes, x, y, length, width, width, np.int64(step), shared=16 * lanes * shared)
    want = np.zeros_like(x)
    for row in range(3):
        places = row * width + step * np.arange(length)
        want[places] = x[places]
    np.testing.assert_array_equal(y, want)


def test_what_is_not_in_the_row_is_the_least():
    held = Held("float32", 16, 32, 1, heads=True, least=True)
    row = make_row(held, 32)
    span, load, load_rest, unpack = row.span, row.load, row.load_rest, row.unpack
    SINGLES = held.singles

    @cuda.jit(launch_bounds=32)
    def kernel(x, y, z, length):
        words, values = cuda.local.array(4, u32), cuda.local.array(4, f32)
        rest = cuda.local.array(SINGLES, f32)
        lane = i32(cuda.threadIdx.x)
        source = advance(x, i32(1))
        head, units = span(source, length)
        load(words, source, head, units, lane, i64(1))
        load_rest(rest, source, head, units, length, lane)
        unpack(values, words, 0)
        for e in range(4):
            y[i32(4 * lane + e)] = values[e]
        z[lane] = rest[0]
    x, y, z = np.arange(40, dtype=np.float32), np.zeros(128, np.float32), np.zeros(32, np.float32)
    launch(kernel, 1, 32, x, y, z, 13)                       # elements 1 to 13: a head of 3, two units, a tail of 2
    np.testing.assert_array_equal(y[:8], np.arange(4, 12))
    assert np.isneginf(y[8:]).all()
    np.testing.assert_array_equal(z[:5], [1, 2, 3, 12, 13])
    assert np.isneginf(z[5:]).all()


@needs(9)
@pytest.mark.parametrize("blocks", [2, 8])
def test_pairs_over_a_cluster(blocks):
    exchange, slots_size = make_cluster_pair(merge_softmax, blocks), 2 * blocks

    @cuda.jit(launch_bounds=32)
    def kernel(x, y, z):
        slots = cuda.shared.array(slots_size, f32)
        cluster_arrive_relaxed()
        a = x[i32(cuda.blockIdx.x)]
        cluster_wait()
        a, b = exchange(a, f32(1), f32(0), slots)
        if cuda.threadIdx.x == 17:
            y[i32(cuda.blockIdx.x)], z[i32(cuda.blockIdx.x)] = a, b
    x = np.random.default_rng(2).standard_normal(2 * blocks).astype(np.float32)
    y, z = np.zeros_like(x), np.zeros_like(x)
    launch(kernel, 2 * blocks, 32, x, y, z, cluster=blocks)
    groups = x.reshape(2, blocks).astype(np.float64)
    np.testing.assert_array_equal(y.reshape(2, -1), np.repeat(x.reshape(2, -1).max(1)[:, None], blocks, 1))
    np.testing.assert_allclose(z.reshape(2, -1)[:, 0], np.exp(groups - groups.max(1, keepdims=True)).sum(1), rtol=1e-6)
    assert len(np.unique(z[:blocks])) == 1, "the same bits in every block"


def test_bad_sizes_are_refused():
    with pytest.raises(ValueError, match="24 lanes"):
        Held("float32", 16, 24, 1)
    with pytest.raises(ValueError, match="units of 8 bytes"):
        Held("float32", 8, 32, 1)
    with pytest.raises(ValueError, match="heads True"):
        Held("float32", 4, 32, 1, heads=True)
