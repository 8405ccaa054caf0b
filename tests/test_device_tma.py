"""Bulk copies: what lands where, in the simulator and on a GPU."""
import ml_dtypes
import numpy as np
import pytest
from kit import launch, needs

from dnnkern.device import HOST_MEMORY, SIMULATED, cuda, device_function, f32, i32, i64, tma, u32
from dnnkern.device.cluster import cluster_rank, cluster_sync
from dnnkern.device.mbarrier import (fence_async_shared, fence_mbarrier_init, mbarrier_arrive, mbarrier_arrive_expect, mbarrier_init,
                                     mbarrier_wait)
from dnnkern.device.tma import bulk_commit, make_bulk_wait, make_bulk_wait_read, make_tma_load, make_tma_reduce_add, make_tma_store
from dnnkern.device.tma import tensor_map_address
from dnnkern.device.vec import address, shared_address
from dnnkern.host.tensormap import TensorMap

pytestmark = needs(9)
THREADS = 64
PACKED = {"float32": np.float32, "int32": np.int32, "uint32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16, "uint8": np.uint8}


def packed(dtype, shape, box, **more):
    """The map of a packed array."""
    strides = tuple(int(np.prod(shape[k + 1:])) for k in range(len(shape)))
    return TensorMap(dtype, tuple(shape), strides, tuple(box), **more)


def spread(copy, rank, offsets=0):
    """`copy` with five coordinates and three offsets, of which it takes its own."""
    if offsets == 1:
        return device_function(lambda a, b, c, c0, c1, c2, c3, c4, o0, o1, o2: copy(a, b, c, c0, c1, c2, u32(o0)))
    if offsets == 2:
        return device_function(lambda a, b, c, c0, c1, c2, c3, c4, o0, o1, o2: copy(a, b, c, c0, c1, c2, c3, u32(o0), u32(o1)))
    if offsets == 3:
        return device_function(lambda a, b, c, c0, c1, c2, c3, c4, o0, o1, o2: copy(a, b, c, c0, c1, c2, c3, c4, u32(o0), u32(o1), u32(o2)))
    return device_function((lambda a, b, c, c0, c1, c2, c3, c4, o0, o1, o2: copy(a, b, c, c0),
                            lambda a, b, c, c0, c1, c2, c3, c4, o0, o1, o2: copy(a, b, c, c0, c1),
                            lambda a, b, c, c0, c1, c2, c3, c4, o0, o1, o2: copy(a, b, c, c0, c1, c2),
                            lambda a, b, c, c0, c1, c2, c3, c4, o0, o1, o2: copy(a, b, c, c0, c1, c2, c3),
                            lambda a, b, c, c0, c1, c2, c3, c4, o0, o1, o2: copy(a, b, c, c0, c1, c2, c3, c4))[rank - 1])


def loader(rank, words, im2col=False):
    """Kernel ``(map, y, c0, .., c4, o0, o1, o2)``: shared memory as a load leaves it."""
    copy = spread(make_tma_load(rank, im2col=im2col), rank, rank - 2 if im2col else 0)

    @cuda.jit(launch_bounds=THREADS)
    def kernel(x, y, c0, c1, c2, c3, c4, o0, o1, o2):
        tile = cuda.shared.array(words, u32, alignment=1024)
        bars = cuda.shared.array(1, i64)
        t, full, to, at = i32(cuda.threadIdx.x), shared_address(bars, 0), shared_address(tile, 0), tensor_map_address(x)
        if t == 0:
            tma.prefetch_tensor_map(at)
            mbarrier_init(full, u32(1))
            fence_mbarrier_init()
        cuda.syncthreads()
        if t == 0:
            mbarrier_arrive_expect(full, u32(4 * words))
            copy(to, at, full, c0, c1, c2, c3, c4, o0, o1, o2)
        mbarrier_wait(full, u32(0))
        for k in range(t, words, THREADS):
            y[k] = tile[k]
    return kernel


def loaded(x, spec, coordinates, offsets=()):
    """What shared memory holds after a load, as [row, byte]."""
    rank = len(spec.shape)
    y = np.zeros(spec.nbytes // 4, np.uint32)
    filled = list(coordinates) + [0] * (5 - rank) + list(offsets) + [0] * (3 - len(offsets))
    launch(loader(rank, len(y), spec.im2col), 1, THREADS, (x, spec), y, *filled)
    return y.view(np.uint8).reshape(-1, spec.counts[-1] * spec.itemsize)


def box_of(x, coordinates, counts, steps=None):
    """The elements, zero outside; coordinates innermost first."""
    out = np.zeros(counts, x.dtype)
    for index in np.ndindex(*counts):
        at = tuple(c + i * s for c, i, s in zip(reversed(coordinates), index, steps or (1,) * len(counts)))
        if all(0 <= a < n for a, n in zip(at, x.shape)):
            out[index] = x[at]
    return out


def numbers(dtype, shape):
    """Different bits in every element, as far as its size allows."""
    dtype = np.dtype(PACKED.get(dtype, dtype))
    return (np.arange(int(np.prod(shape))) * 2654435761 >> 5).astype(np.uint32).astype(dtype).reshape(shape)


BOXES = [((40,), (16,)), ((12, 24), (4, 8)), ((5, 6, 16), (2, 3, 8)), ((3, 4, 5, 8), (2, 1, 3, 8)), ((2, 3, 4, 5, 12), (2, 2, 3, 2, 4))]


@pytest.mark.parametrize("shape, box", BOXES, ids=lambda v: "x".join(map(str, v)))
def test_boxes_inside_and_across_the_edges(shape, box):
    spec, x = packed("float32", shape, box), numbers("float32", shape)
    for first, others in ((0, 0), (4, 1), (-4, -2), (shape[-1] - 4, None), (1 << 20, 1 << 20)):
        coordinates = [first] + [n - 2 if others is None else others for n in reversed(shape[:-1])]
        np.testing.assert_array_equal(loaded(x, spec, coordinates), box_of(x, coordinates, box).reshape(-1, box[-1]).view(np.uint8))


@pytest.mark.parametrize("dtype", PACKED)
def test_dtypes(dtype):
    row = 32 // np.dtype(PACKED[dtype]).itemsize
    spec, x = packed(dtype, (9, 4 * row), (8, row)), numbers(dtype, (9, 4 * row))
    at = row // 2, 3
    np.testing.assert_array_equal(loaded(x, spec, at), box_of(x, at, (8, row)).view(np.uint8))


def test_steps():
    """Every second row and every third plane; the extents of the box count what is stepped over."""
    spec, x = packed("int32", (9, 10, 8), (7, 5, 4), steps=(3, 2, 1)), numbers("int32", (9, 10, 8))
    assert spec.counts == (3, 3, 4)
    for coordinates in ((0, 0, 0), (4, 1, 2), (-4, -3, -4), (8, 7, 6)):
        expected = box_of(x, coordinates, (3, 3, 4), (3, 2, 1)).reshape(9, 4).view(np.uint8)
        np.testing.assert_array_equal(loaded(x, spec, coordinates), expected)


def test_strided_array():
    """Rows of a wider array, and the same row again and again."""
    x = numbers("float32", (8, 32))
    spec = TensorMap("float32", (4, 12), (64, 1), (4, 8))
    np.testing.assert_array_equal(loaded(x, spec, (8, 1)), box_of(x[::2, :12], (8, 1), (4, 8)).view(np.uint8))


def test_rows_that_are_no_multiple_of_16_bytes():
    """A load ends with the row, to the element."""
    x = numbers("float32", (8, 32))
    spec = TensorMap("float32", (8, 13), (32, 1), (4, 8))
    np.testing.assert_array_equal(loaded(x, spec, (8, 1)), box_of(x[:, :13], (8, 1), (4, 8)).view(np.uint8))


@pytest.mark.parametrize("swizzle", (32, 64, 128))
def test_swizzle_exchanges_pieces_by_address(swizzle):
    row = swizzle // 4
    spec, x = packed("float32", (16, row), (16, row), swizzle=swizzle), numbers("float32", (16, row))
    got, expected = loaded(x, spec, (0, 0)).reshape(-1, 16), np.empty((swizzle, 16), np.uint8)
    for k, piece in enumerate(x.reshape(-1).view(np.uint8).reshape(-1, 16)):
        line = k * 16 >> 7
        expected[k ^ line % (swizzle // 16)] = piece
    np.testing.assert_array_equal(got, expected)


STORES = {1: lambda store: lambda a, b, _, c0: store(a, b, c0), 2: lambda store: lambda a, b, _, c0, c1: store(a, b, c0, c1),
          3: lambda store: lambda a, b, _, c0, c1, c2: store(a, b, c0, c1, c2),
          4: lambda store: lambda a, b, _, c0, c1, c2, c3: store(a, b, c0, c1, c2, c3),
          5: lambda store: lambda a, b, _, c0, c1, c2, c3, c4: store(a, b, c0, c1, c2, c3, c4)}


def storer(rank, words, make):
    """Kernel ``(map, x, c0, .., c4)``: x to shared memory, from there a box."""
    store, drain = make(rank), make_bulk_wait(0)
    copy = spread(device_function(STORES[rank](store)), rank)

    @cuda.jit(launch_bounds=THREADS)
    def kernel(y, x, c0, c1, c2, c3, c4):
        tile = cuda.shared.array(words, u32, alignment=1024)
        t, source, at = i32(cuda.threadIdx.x), shared_address(tile, 0), tensor_map_address(y)
        for k in range(t, words, THREADS):
            tile[k] = x[k]
        fence_async_shared()
        cuda.syncthreads()
        if t == 0:
            copy(at, source, 0, c0, c1, c2, c3, c4, 0, 0, 0)
            bulk_commit()
            drain()
    return kernel


def stored(y, x, spec, coordinates, make=make_tma_store):
    """Store a box of bytes `x` into `y`."""
    words = np.ascontiguousarray(x).reshape(-1).view(np.uint32)
    launch(storer(len(spec.shape), len(words), make), 1, THREADS, (y, spec), words, *coordinates, *[0] * (5 - len(coordinates)))


def _into(y, x, coordinates, combine):
    out = y.copy()
    for index in np.ndindex(*x.shape):
        at = tuple(c + i for c, i in zip(reversed(coordinates), index))
        if all(0 <= a < n for a, n in zip(at, y.shape)):
            out[at] = combine(y[at], x[index])
    return out


@pytest.mark.parametrize("shape, box", BOXES, ids=lambda v: "x".join(map(str, v)))
def test_stores_write_only_inside(shape, box):
    spec, x = packed("float32", shape, box), numbers("float32", box)
    for first, last in ((0, False), (4, False), (shape[-1] - 4, True), (shape[-1], True)):
        coordinates = [first] + [n - 1 if last else 0 for n in reversed(shape[:-1])]
        y = -numbers("float32", shape)
        expected = _into(y, x, coordinates, lambda old, new: new)
        stored(y, x, spec, coordinates)
        np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("coordinates", ((-4, 0), (0, -1)))
@pytest.mark.parametrize("make", (make_tma_store, make_tma_reduce_add))
def test_a_store_that_begins_before_the_array(simulated, make, coordinates):
    """A GPU ends the context: an illegal instruction."""
    from dnnkern.device.sim import Misuse
    y, x = np.zeros((12, 24), np.float32), numbers("float32", (4, 8))
    with pytest.raises(Misuse, match=rf"coordinates \[{coordinates[0]}, {coordinates[1]}\] lie before the array; only loads"):
        stored(y, x, packed("float32", (12, 24), (4, 8)), coordinates, make)


def test_a_store_beyond_the_end_of_a_row_that_is_no_multiple_of_16_bytes(simulated):
    """A GPU writes the whole piece in which the row ends."""
    from dnnkern.device.sim import Misuse
    spec, x = TensorMap("float32", (8, 13), (16, 1), (4, 8)), numbers("float32", (4, 8))
    y = np.zeros((8, 16), np.float32)
    stored(y, x, spec, (4, 1))
    np.testing.assert_array_equal(y[1:5, 4:12], x)
    with pytest.raises(Misuse, match="rows of tensor map y have 52 bytes; .* writes whole pieces of 16 bytes"):
        stored(y, x, spec, (8, 1))


def test_swizzled_store_undoes_the_swizzle():
    spec, x, y = packed("float32", (20, 64), (16, 32), swizzle=128), numbers("float32", (16, 32)), np.zeros((20, 64), np.float32)
    k = np.arange(128)
    stored(y, x.reshape(-1, 4)[k ^ (k >> 3 & 7)], spec, (32, 3))
    np.testing.assert_array_equal(y[3:19, 32:], x)
    assert not y[:, :32].any() and not y[:3].any() and not y[19:].any()


@pytest.mark.parametrize("dtype, numpy_dtype", (("float32", np.float32), ("int32", np.int32), ("bfloat16", ml_dtypes.bfloat16),
                                                ("float16", np.float16)))
def test_reduce_add(dtype, numpy_dtype):
    """Small integers, one sum of which takes rounding in the halves, and parts outside that are left alone."""
    rng = np.random.default_rng(0)
    y, x = (rng.integers(-30, 30, s).astype(numpy_dtype) for s in ((6, 24), (4, 16)))
    y[2, 9], x[0, 1] = 2048, 3
    spec, before = packed(dtype, (6, 24), (4, 16)), y.copy()
    bits = y.view(np.uint16) if y.itemsize == 2 else y
    stored(bits, x, spec, (8, 2), make_tma_reduce_add)
    expected = _into(before, x, (8, 2), lambda a, b: (np.float64(a) + np.float64(b)).astype(numpy_dtype))
    np.testing.assert_array_equal(y.astype(np.float64), expected.astype(np.float64))


def test_reduce_add_of_many_blocks():
    """The order of additions is nobody's business."""
    add, drain = make_tma_reduce_add(2), make_bulk_wait_read(0)

    @cuda.jit(launch_bounds=32)
    def kernel(y):
        tile = cuda.shared.array(32, i32, alignment=128)
        t, b = i32(cuda.threadIdx.x), i32(cuda.blockIdx.x)
        tile[t] = i32(b + t)
        fence_async_shared()
        cuda.syncwarp()
        if t == 0:
            add(tensor_map_address(y), shared_address(tile, 0), 0, 0)
            bulk_commit()
            drain()

    y = np.zeros((4, 8), np.int32)
    launch(kernel, 5, 32, (y, packed("int32", (4, 8), (4, 8))))
    np.testing.assert_array_equal(y.reshape(-1), 10 + 5 * np.arange(32))


def test_bulk_copies_without_a_map():
    drain = make_bulk_wait(0)

    @cuda.jit(launch_bounds=THREADS)
    def kernel(x, y, z):
        tile = cuda.shared.array(64, f32, alignment=16)
        bars = cuda.shared.array(1, i64)
        t, full, to = i32(cuda.threadIdx.x), shared_address(bars, 0), shared_address(tile, 0)
        if t == 0:
            mbarrier_init(full, u32(1))
            fence_mbarrier_init()
            mbarrier_arrive_expect(full, u32(256))
            tma.bulk_load(to, address(x, 4), u32(192), full)
            tma.bulk_load(u32(to + u32(192)), address(x, 0), u32(64), full)
        cuda.syncthreads()
        mbarrier_wait(full, u32(0))
        tile[t] = tile[t] + f32(1)
        fence_async_shared()
        cuda.syncthreads()
        if t == 0:
            tma.bulk_store(address(y, 8), to, u32(256))
            tma.bulk_reduce_add_f32(address(z, 4), u32(to + u32(64)), u32(128))
            bulk_commit()
            drain()

    x, y, z = numbers("float32", (64,)) % 4096, np.zeros(80, np.float32), np.arange(48, dtype=np.float32)
    tile = np.concatenate([x[4:52], x[:16]]) + 1
    launch(kernel, 1, THREADS, x, y, z)
    np.testing.assert_array_equal(y[8:72], tile)
    assert not y[:8].any() and not y[72:].any()
    np.testing.assert_array_equal(z, np.arange(48) + np.concatenate([np.zeros(4), tile[16:48], np.zeros(12)]))


def test_hints_change_nothing():
    load, store, drain = make_tma_load(2, hint=True), make_tma_store(2, hint=True), make_bulk_wait(0)

    @cuda.jit(launch_bounds=32)
    def kernel(x, y):
        tile = cuda.shared.array(128, f32, alignment=128)
        bars = cuda.shared.array(1, i64)
        full, to, source, target = shared_address(bars, 0), shared_address(tile, 0), tensor_map_address(x), tensor_map_address(y)
        if cuda.threadIdx.x == 0:
            mbarrier_init(full, u32(1))
            fence_mbarrier_init()
            mbarrier_arrive_expect(full, u32(512))
            load(to, source, full, 8, 2, tma.EVICT_FIRST)
            mbarrier_wait(full, u32(0))
            store(target, to, 0, 1, tma.EVICT_LAST)
            bulk_commit()
            drain()

    x, y = numbers("float32", (12, 16)), np.zeros((10, 16), np.float32)
    launch(kernel, 1, 32, (x, packed("float32", (12, 16), (8, 16))), (y, packed("float32", (10, 16), (8, 16))))
    np.testing.assert_array_equal(y[1:9, :8], x[2:10, 8:])
    assert not y[0].any() and not y[:, 8:].any()


@pytest.mark.parametrize("mask", (0b11, 0b01, 0b10))
def test_multicast(mask):
    """Block 0 loads a box for the blocks of a mask: each finds it at the same place, and its own barrier told."""
    copy, words = make_tma_load(2, multicast=True), 64

    @cuda.jit(launch_bounds=32)
    def kernel(x, y):
        tile = cuda.shared.array(words, f32, alignment=128)
        bars = cuda.shared.array(1, i64)
        t, rank, at = i32(cuda.threadIdx.x), cluster_rank(), tensor_map_address(x)
        full, to = shared_address(bars, 0), shared_address(tile, 0)
        here = u32(mask) >> u32(rank) & u32(1)
        if t == 0:
            mbarrier_init(full, u32(1))
            fence_mbarrier_init()
            if here:
                mbarrier_arrive_expect(full, u32(4 * words))
        cluster_sync()
        if t == 0 and rank == 0:
            copy(to, at, full, 4, 1, u32(mask))
        if here:
            mbarrier_wait(full, u32(0))
            for k in range(t, words, 32):
                y[i32(rank * words + k)] = tile[k]
        cluster_sync()

    x, y = numbers("float32", (16, 16)), np.zeros((2, words), np.float32)
    launch(kernel, 2, 32, (x, packed("float32", (16, 16), (8, 8))), y, cluster=2)
    for rank in range(2):
        expected = x[1:9, 4:12].reshape(-1) if mask >> rank & 1 else np.zeros(words)
        np.testing.assert_array_equal(y[rank], expected)


def test_a_ring_of_stages():
    """Producer and consumers over more steps than stages, and a store for each step from a staging buffer that is used again."""
    stages, steps, words = 2, 7, 128
    all_words, all_bars = stages * words, 2 * stages
    copy, store, free = make_tma_load(2), make_tma_store(2), make_bulk_wait_read(0)

    @cuda.jit(launch_bounds=THREADS)
    def kernel(x, y):
        ring = cuda.shared.array(all_words, f32, alignment=128)
        staging = cuda.shared.array(words, f32, alignment=128)
        bars = cuda.shared.array(all_bars, i64)
        t, source, target = i32(cuda.threadIdx.x), tensor_map_address(x), tensor_map_address(y)
        full, empty = shared_address(bars, 0), shared_address(bars, stages)
        if t == 0:
            for s in range(stages):
                mbarrier_init(u32(full + u32(8 * s)), u32(1))
                mbarrier_init(u32(empty + u32(8 * s)), u32(32))
            fence_mbarrier_init()
        cuda.syncthreads()
        if t < 32:
            if t == 0:
                for k in range(steps):
                    s = i32(k % stages)
                    bar = u32(full + u32(8 * s))
                    mbarrier_wait(u32(empty + u32(8 * s)), u32(i32(k // stages) & 1 ^ 1))
                    mbarrier_arrive_expect(bar, u32(4 * words))
                    copy(shared_address(ring, i32(s * words)), source, bar, 0, i32(8 * k))
        else:
            for k in range(steps):
                s = i32(k % stages)
                mbarrier_wait(u32(full + u32(8 * s)), u32(i32(k // stages) & 1))
                if t == 32:
                    free()
                cuda.syncwarp()
                for j in range(t - 32, words, 32):
                    staging[j] = ring[i32(s * words + j)] * f32(2)
                mbarrier_arrive(u32(empty + u32(8 * s)))
                fence_async_shared()
                cuda.syncwarp()
                if t == 32:
                    store(target, shared_address(staging, 0), 0, i32(8 * k))
                    bulk_commit()
            if t == 32:
                free()

    x, y = numbers("float32", (56, 16)) % 65536, np.zeros((56, 16), np.float32)
    spec = packed("float32", (56, 16), (8, 16))
    launch(kernel, 1, THREADS, (x, spec), (y, spec))
    np.testing.assert_array_equal(y, 2 * x)


def test_two_results_of_one_launch_through_the_same_memory():
    """A box stored by one thread, completely waited for, and loaded again."""
    load, store, drain = make_tma_load(1), make_tma_store(1), make_bulk_wait(0)

    @cuda.jit(launch_bounds=32)
    def kernel(x, y):
        tile = cuda.shared.array(32, u32, alignment=128)
        back = cuda.shared.array(32, u32, alignment=128)
        bars = cuda.shared.array(1, i64)
        t, full, at = i32(cuda.threadIdx.x), shared_address(bars, 0), tensor_map_address(x)
        tile[t] = u32(7 * t)
        fence_async_shared()
        cuda.syncwarp()
        if t == 0:
            mbarrier_init(full, u32(1))
            fence_mbarrier_init()
            store(at, shared_address(tile, 0), 0)
            bulk_commit()
            drain()
            mbarrier_arrive_expect(full, u32(128))
            load(shared_address(back, 0), at, full, 0)
        cuda.syncwarp()
        mbarrier_wait(full, u32(0))
        y[t] = back[i32(31 - t)]

    x, y = np.zeros(32, np.uint32), np.zeros(32, np.uint32)
    launch(kernel, 1, 32, (x, packed("uint32", (32,), (32,))), y)
    np.testing.assert_array_equal(y, 7 * np.arange(32)[::-1])


@pytest.mark.parametrize("make, rank, words", ((make_tma_load, 6, "rank 6; expected 1 to 5"), (make_tma_store, 0, "rank 0"),
                                               (make_tma_reduce_add, 7, "rank 7")))
def test_ranks_there_are_not(make, rank, words):
    with pytest.raises(ValueError, match=words):
        make(rank)
    with pytest.raises(ValueError, match="expected 3 to 5"):
        make_tma_load(2, im2col=True)
    with pytest.raises(ValueError, match="-1 groups"):
        make_bulk_wait(-1)


def test_maps_of_a_plan_follow_their_offsets():
    """A map of a part of the workspace: in all kinds of executables."""
    from dnnkern.host.launch import Argument, Executable, Launch, SimulatedExecutable
    spec = packed("uint32", (8, 16), (4, 8))
    work, y = numbers("uint32", (512,)), np.zeros(32, np.uint32)
    arguments = Argument("tensormap", "work", 1024, spec), Argument("uint32*", "y"), *(Argument("int32", v) for v in (4, 2) + (0,) * 6)
    launches = [Launch(loader(2, 32), (1, 1, 1), (THREADS, 1, 1), arguments)]
    parameters = [("work", "pointer"), ("y", "pointer")]
    if HOST_MEMORY:
        from dnnkern.host.cpu import CpuExecutable
        made = SimulatedExecutable if SIMULATED else CpuExecutable
        made(launches, parameters, 0).execute((work.view(np.uint8), y), 0)
    else:
        from numba import cuda as nb
        held = nb.to_device(work), nb.to_device(y)
        Executable(launches, parameters, 0).execute(tuple(a.device_ctypes_pointer.value for a in held), 0)
        y = held[1].copy_to_host()
    np.testing.assert_array_equal(y.reshape(4, 8), work[256:384].reshape(8, 16)[2:6, 4:12])


def test_a_map_names_the_rule_its_address_breaks():
    spec = packed("float32", (4, 8), (4, 8))
    if SIMULATED:
        x, y = np.zeros(64, np.float32), np.zeros(32, np.uint32)
        with pytest.raises(ValueError, match="4 bytes past a multiple of 16"):
            launch(loader(2, 32), 1, THREADS, (x[1:], spec), y, *[0] * 8)
    with pytest.raises(ValueError, match="8 bytes past a multiple of 16"):
        spec.encode(0x7F0000000008)
