"""`dnnkern.device.rows`: forms of rows, their offsets, vectors and unaligned edges, pairs over a cluster."""
import numpy as np
import pytest
from kit import launch, needs

from dnnkern.device import cuda, f32, i32, i64, jit, u32
from dnnkern.device.block import merge_softmax
from dnnkern.device.cluster import cluster_arrive_relaxed, cluster_wait
from dnnkern.device.rows import (Dim, RowLayout, make_cluster_pair, make_row, make_row_offsets, make_row_offsets64, merged, row_arguments,
                                 row_arguments64, row_form, row_vector)
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
    assert row_vector(row_form(shape, (1,), strides, other), tensors) == expected


@pytest.mark.parametrize("make, arguments, types", [
    (make_row_offsets, row_arguments, np.uint32), (make_row_offsets64, lambda form: row_arguments64(form.outer, 2), np.int64)])
def test_offsets_of_rows(make, arguments, types):
    form = row_form((3, 5, 7, 4), (3,), (1000, 100, 10, 1), (-7, 3, 40, 1))
    assert len(form.outer) == 3
    divisors, strides = arguments(form)
    row_offsets, named, rows = make(3, 2), make(3, ("x", "y")), form.rows

    @jit(launch_bounds=128)
    def kernel(y, divisors, strides):
        row = cuda.threadIdx.x
        if row < rows:
            first, second = row_offsets(row, divisors, strides)
            offsets = named(row, divisors, strides)
            y[2 * row] = first if first == offsets.x else -1
            y[2 * row + 1] = second if second == offsets.y else -1
    y = np.zeros(2 * rows, np.int64)
    launch(kernel, 1, 128, y, np.array(divisors, types), np.array(strides, np.int64))
    want = {(1000 * i + 100 * j + 10 * k, -7 * i + 3 * j + 40 * k) for i in range(3) for j in range(5) for k in range(7)}
    assert set(map(tuple, y.reshape(-1, 2).tolist())) == want and len(want) == rows


def _copy_kernel(layout, threads):
    """y = x, one row per group, all vectors through words and values, edges through `edges`."""
    row = make_row(layout, threads)
    split, load, load_edges, unpack, pack, store, store_edges, copy_overflow, wait_overflow, load_overflow, store_overflow = row[:11]
    E, WORDS, EDGE_SLOTS, REGISTERS, SHARED = layout.elements, layout.words, layout.edge_slots, layout.registers, layout.shared
    PART, Real = layout.vector_words, layout.real

    @cuda.jit(launch_bounds=threads)
    def kernel(x, y, length, x_row, y_row, step):
        dynamic = cuda.shared.array(0, u32)
        words, part = cuda.local.array(WORDS, u32), cuda.local.array(PART, u32)
        values, edges = cuda.local.array(E, Real), cuda.local.array(EDGE_SLOTS, Real)
        lane, row = i32(cuda.threadIdx.x), i32(cuda.blockIdx.x)
        source, target = advance(x, i32(row * x_row)), advance(y, i32(row * y_row))
        prologue, vectors = split(source, length)
        if SHARED:
            base = u32(shared_address(dynamic, i32(0)) + u32(16) * u32(lane))
            copy_overflow(base, source, prologue, vectors, lane)
        load(words, source, prologue, vectors, lane, step)
        load_edges(edges, source, prologue, vectors, length, lane)
        for c in range(REGISTERS):
            unpack(values, words, c)
            pack(words, c, values)
            store(target, words, c, prologue, vectors, lane, step)
        store_edges(target, edges, prologue, vectors, length, lane)
        if SHARED:
            for c in range(wait_overflow(vectors, lane)):
                load_overflow(part, base, c)
                unpack(values, part, 0)
                pack(part, 0, values)
                store_overflow(target, part, c, prologue, vectors, lane)
    return kernel


STORED = {"float64": np.float64, "float32": np.float32, "float16": np.uint16, "bfloat16": np.uint16}


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("vector_bytes, lanes, registers, shared, length, gap, step", [
    (16, 32, 2, 0, 64, 0, 1), (16, 32, 2, 0, 61, 0, 1), (16, 32, 2, 0, 3, 0, 1), (16, 4, 3, 0, 29, 1, 1), (16, 1, 4, 0, 13, 1, 1),
    (16, 32, 1, 2, 130, 1, 1), (0, 32, 2, 0, 50, 0, 1), (0, 32, 2, 0, 30, 1, 2)])
def test_a_row_is_whole(dtype, vector_bytes, lanes, registers, shared, length, gap, step):
    """Rows that begin anywhere: whatever vectors and edges they have, every element arrives, and nothing else is written."""
    itemsize = np.dtype(STORED[dtype]).itemsize
    per = 16 // itemsize
    layout = RowLayout(dtype, vector_bytes or itemsize, lanes, registers, shared, unaligned=bool(vector_bytes and (gap or length % per)))
    length = min(length, layout.capacity)
    width = length * step + gap
    if vector_bytes and not layout.unaligned:
        width = -(-length // per) * per
    rng = np.random.default_rng(3)
    x = rng.standard_normal(3 * width + 16)
    x = x.astype(STORED[dtype]) if itemsize > 2 else rng.integers(0, 0x3C00, x.size).astype(np.uint16)
    y = np.zeros_like(x)
    launch(_copy_kernel(layout, lanes), 3, lanes, x, y, length, width, width, np.int64(step), shared=16 * lanes * shared)
    want = np.zeros_like(x)
    for row in range(3):
        at = row * width + step * np.arange(length)
        want[at] = x[at]
    np.testing.assert_array_equal(y, want)


def test_what_is_not_in_the_row_is_the_least():
    layout = RowLayout("float32", 16, 32, 1, unaligned=True, pad_lowest=True)
    row = make_row(layout, 32)
    split, load, load_edges, unpack = row.split, row.load, row.load_edges, row.unpack
    EDGES = layout.edges

    @cuda.jit(launch_bounds=32)
    def kernel(x, y, z, length):
        words, values = cuda.local.array(4, u32), cuda.local.array(4, f32)
        edges = cuda.local.array(EDGES, f32)
        lane = i32(cuda.threadIdx.x)
        source = advance(x, i32(1))
        prologue, vectors = split(source, length)
        load(words, source, prologue, vectors, lane, i64(1))
        load_edges(edges, source, prologue, vectors, length, lane)
        unpack(values, words, 0)
        for e in range(4):
            y[i32(4 * lane + e)] = values[e]
        z[lane] = edges[0]
    x, y, z = np.arange(40, dtype=np.float32), np.zeros(128, np.float32), np.zeros(32, np.float32)
    launch(kernel, 1, 32, x, y, z, 13)                       # elements 1 to 13: a prologue of 3, two vectors, an epilogue of 2
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
        RowLayout("float32", 16, 24, 1)
    with pytest.raises(ValueError, match="vectors of 8 bytes"):
        RowLayout("float32", 8, 32, 1)
    with pytest.raises(ValueError, match="unaligned True"):
        RowLayout("float32", 4, 32, 1, unaligned=True)
