"""`dnnkern.device.warp`: every collective on every type it takes, against NumPy; bits equal in all lanes."""
import numpy as np
import pytest
from kit import launch, needs

from dnnkern.device import cuda, device_function, i32, u32, warp
from dnnkern.device.fastmath import maximum
from dnnkern.device.warp import all_lanes, any_lane, ballot, broadcast, elect, lane_id, make_reduce, thread_id, warp_id

TYPES = ["float32", "float64", "int32", "uint32", "int64", "uint64"]
LANE = np.arange(64) % 32
WARP = 32 * (np.arange(64) // 32)


def _apply(function, x, *, block=64, dtype=None):
    @cuda.jit(launch_bounds=256)
    def kernel(x, y):
        t = thread_id()
        y[t] = function(x[t])
    y = np.zeros(x.shape, dtype or x.dtype)
    launch(kernel, 1, block, x, y)
    return y


def _data(dtype, n=64):
    """Values that do not fit 32 bits where the type is wider, negative ones where it is signed."""
    rng = np.random.default_rng(7)
    if np.dtype(dtype).kind == "f":
        return (rng.standard_normal(n) * 3 + 5).astype(dtype)
    high = 2**40 if np.dtype(dtype).itemsize == 8 else 2**20
    return rng.integers(-high if np.dtype(dtype).kind == "i" else 0, high, n).astype(dtype)


SHUFFLES = {
    "shuffle_xor": (5, LANE ^ 5), "shuffle_up": (3, np.where(LANE >= 3, LANE - 3, LANE)),
    "shuffle_down": (7, np.where(LANE + 7 < 32, LANE + 7, LANE)), "broadcast": (9, 9 + 0 * LANE),
}


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", SHUFFLES)
def test_shuffles(name, dtype):
    operand, source = SHUFFLES[name]
    shuffle = getattr(warp, name)
    x = _data(dtype)
    np.testing.assert_array_equal(_apply(device_function(lambda v: shuffle(v, i32(operand))), x), x[WARP + source])


@pytest.mark.parametrize("dtype", TYPES)
def test_a_shuffle_among_some_lanes(dtype):
    def exchange(v):
        if lane_id() < 8:
            return warp.shuffle_xor_sync(u32(0xFF), v, i32(1))
        return v
    x = _data(dtype)
    np.testing.assert_array_equal(_apply(device_function(exchange), x), x[WARP + np.where(LANE < 8, LANE ^ 1, LANE)])


def _butterfly(x, combine, width=32):
    """Reduction in the order the documentation gives."""
    x = x.reshape(-1, width)
    for k in range(width.bit_length() - 2, -1, -1):
        x = combine(x, x[:, np.arange(width) ^ 1 << k])
    return x.reshape(-1)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name, combine", [("reduce_sum", np.add), ("reduce_max", np.maximum), ("reduce_min", np.minimum)])
def test_reductions(name, combine, dtype):
    x = _data(dtype)
    got = _apply(getattr(warp, name), x)
    np.testing.assert_array_equal(got, _butterfly(x, combine))
    assert all(len(set(w.tobytes() for w in row)) == 1 for row in got.reshape(-1, 32))


@pytest.mark.parametrize("width", [1, 2, 4, 8, 16, 32])
def test_reductions_of_groups(width):
    x = _data("float32")
    np.testing.assert_array_equal(_apply(make_reduce(maximum, width), x), np.repeat(x.reshape(-1, width).max(1), width))


def test_make_reduce_refuses_other_widths():
    with pytest.raises(ValueError, match="width 12 is not a power of two"):
        make_reduce(maximum, 12)


@pytest.mark.parametrize("name", ["reduce_max", "reduce_min"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_nan_reaches_every_lane(name, dtype):
    x = _data(dtype)
    x[40] = np.nan
    got = _apply(getattr(warp, name), x)
    assert np.isnan(got[32:]).all() and not np.isnan(got[:32]).any()


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_inclusive_scan(dtype):
    x = _data("int32").astype(dtype) % 1000
    np.testing.assert_array_equal(_apply(warp.scan_sum, x), np.cumsum(x.reshape(2, 32), axis=1, dtype=dtype).reshape(-1))


def test_votes():
    @cuda.jit(launch_bounds=64)
    def kernel(x, bits, some, every):
        t = thread_id()
        bits[t] = ballot(x[t] > 0)
        some[t] = 1 if any_lane(x[t] > 0) else 0
        every[t] = 1 if all_lanes(x[t] > 0) else 0
    for x in (np.random.default_rng(8).integers(0, 2, 64), np.ones(64), np.zeros(64), np.arange(64) == 37):
        x = x.astype(np.int32)
        bits, some, every = np.zeros(64, np.uint32), np.zeros(64, np.int32), np.zeros(64, np.int32)
        launch(kernel, 1, 64, x, bits, some, every)
        for w in (0, 1):
            lanes = x[32 * w:32 * w + 32]
            assert set(bits[32 * w:32 * w + 32].tolist()) == {sum(int(v) << k for k, v in enumerate(lanes))}
            assert set(some[32 * w:32 * w + 32].tolist()) == {int(lanes.any())}
            assert set(every[32 * w:32 * w + 32].tolist()) == {int(lanes.all())}


@pytest.mark.parametrize("name, combine", [("redux_sum", np.add), ("redux_max", np.maximum), ("redux_min", np.minimum)])
def test_redux(name, combine):
    x = _data("int32")
    x[:32] = -2**31 // 16 + np.arange(32)  # the sum wraps
    with np.errstate(over="ignore"):
        expected = np.repeat(combine.reduce(x.reshape(2, 32), axis=1, dtype=np.int32), 32)
    np.testing.assert_array_equal(_apply(getattr(warp, name), x), expected)


@needs(9)
def test_one_lane_is_elected():
    @cuda.jit(launch_bounds=128)
    def kernel(y):
        y[thread_id()] = i32(1) if elect() else i32(0)
    y = np.full(128, 7, np.int32)
    launch(kernel, 1, 128, y)
    assert sorted(set(y.tolist())) == [0, 1] and (y.reshape(4, 32).sum(1) == 1).all()


def test_uniform():
    x = np.repeat(np.array([-2**31, 5], np.int32), 32)
    np.testing.assert_array_equal(_apply(warp.uniform, x), x)


def test_uniform_of_lanes_that_differ(simulated):
    from dnnkern.device.sim import Misuse
    with pytest.raises(Misuse, match="uniform: lanes give 0 to 31; expected the same of all"):
        _apply(warp.uniform, np.arange(32, dtype=np.int32))


def test_where_a_thread_is():
    @cuda.jit(launch_bounds=128)
    def kernel(y):
        t = thread_id()
        y[i32(3 * t)] = t
        y[i32(3 * t + 1)] = lane_id()
        y[i32(3 * t + 2)] = i32(cuda.threadIdx.x + 100 * cuda.threadIdx.y + 10000 * cuda.threadIdx.z)
    y = np.zeros(3 * 128, np.int32)
    launch(kernel, 1, (32, 2, 2), y)
    t = np.arange(128)
    np.testing.assert_array_equal(y.reshape(-1, 3), np.stack([t, t % 32, t % 32 + 100 * (t // 32 % 2) + 10000 * (t // 64)], 1))


def test_warp_id_and_a_broadcast_of_each_warp():
    @cuda.jit(launch_bounds=96)
    def kernel(y):
        y[thread_id()] = broadcast(i32(1000 * warp_id() + lane_id()), i32(31))
    y = np.zeros(96, np.int32)
    launch(kernel, 1, 96, y)
    np.testing.assert_array_equal(y, np.repeat([31, 1031, 2031], 32))
