"""Values that functions of `jit` compute: uint32 wraps, int32 and int64 are exact, float32 is not widened."""
from typing import NamedTuple

import numpy as np
import pytest
from kit import launch

from dnnkern.device import HOST_MEMORY, SIMULATED, cuda, device_function, f32, i32, i64, jit, u32, wrapping
from dnnkern.device._parameters import flattened, structure
from dnnkern.host.launch import Argument, Launch

N, HALF, TABLE = 5, 0.5, ((1, 2), (3, 4))


@jit(launch_bounds=32)
def _integers(y, z, a, b):
    y[0] = a + b * N - 3
    y[1] = a // b
    y[2] = a % b
    y[3] = (a << 3 | b & 7) ^ a >> 2
    y[4] = min(a, b, 7) * 2 - max(a, b, -7)
    y[5] = abs(a) - -b + ~a
    y[6] = (a < b) + (a == a) + (b if a > 0 else 1)
    y[7] = TABLE[0][1] * a + TABLE[b & 1][1]
    z[0] = i64(a) * b
    z[1] = i64(a) * 1000000007 + b
    total = 0
    for k in range(b):
        for j in range(3, k, 2):
            total += j - a
    for k in range(N, -3, -1):
        total ^= k * b
    y[8] = total


def test_int32_and_int64():
    for a, b in ((123456, 7), (-123457, 7), (-8, 3), (2 ** 22, 31)):
        y, z = np.zeros(9, np.int32), np.zeros(2, np.int64)
        launch(_integers, 1, 1, y, z, a, b)
        total = sum(j - a for k in range(b) for j in range(3, k, 2))
        for k in range(N, -3, -1):
            total ^= k * b
        expected = [a + b * N - 3, a // b, a % b, (a << 3 | b & 7) ^ a >> 2, min(a, b, 7) * 2 - max(a, b, -7), abs(a) + b + ~a,
                    (a < b) + 1 + (b if a > 0 else 1), 2 * a + TABLE[b & 1][1], total]
        assert y.tolist() == expected and z.tolist() == [a * b, a * 1000000007 + b], (a, b)


@device_function
def _mixed(x, word):
    """Of Murmur's hash: products and rotations that wrap."""
    word = word * 0xCC9E2D51
    word = (word << 15 | word >> 17) * 0x1B873593
    x = x ^ word
    return (x << 13 | x >> 19) * 5 + 0xE6546B64


@jit(launch_bounds=32)
def _hash(words, y, seed, count):
    x = seed
    for k in range(count):
        x = _mixed(x, words[k])
    y[0] = x
    y[1] = x // 10 + x % 10
    y[2] = (x + 0xFFFFFFFF) >> 1
    y[3] = 1 if x - seed > 0x80000000 else 0
    y[4] = -x
    y[5] = ~x >> 3
    y[6] = max(x - 1, seed)
    y[7] = (seed - x) * 3 >> 5


def test_uint32_wraps():
    mask, words = 0xFFFFFFFF, np.random.default_rng(3).integers(0, 2 ** 32, 9, np.uint32)
    for seed in (0, 1, 0x80000000, mask):
        y, x = np.zeros(8, np.uint32), seed
        launch(_hash, 1, 1, words, y, np.uint32(seed), len(words))
        for word in words.tolist():
            word = word * 0xCC9E2D51 & mask
            x ^= (word << 15 | word >> 17) * 0x1B873593 & mask
            x = ((x << 13 & mask | x >> 19) * 5 + 0xE6546B64) & mask
        expected = [x, x // 10 + x % 10, (x - 1 & mask) >> 1, (x - seed & mask) > 0x80000000, -x & mask, (~x & mask) >> 3,
                    max(x - 1 & mask, seed), ((seed - x & mask) * 3 & mask) >> 5]
        assert y.tolist() == expected, seed


@jit(launch_bounds=32)
def _overflows(y, a, b):
    y[0] = wrapping(a * b + 7 - (a << 4))
    y[1] = wrapping(a + a) >> 3


def test_wrapping():
    for a, b in ((2 ** 31 - 1, 12345), (-2 ** 31, -77), (5, 6)):
        y = np.zeros(2, np.int32)
        launch(_overflows, 1, 1, y, a, b)
        expected = [v + 2 ** 31 & 0xFFFFFFFF for v in (a * b + 7 - (a << 4), a + a)]
        assert y.tolist() == [expected[0] - 2 ** 31, expected[1] - 2 ** 31 >> 3]


@jit(launch_bounds=32)
def _floats(x, y, n):
    total, count, largest = 0.0, 0, f32(0)
    for k in range(n):
        total += x[k] * 2.1 + 1.3
        count = count + x[k] / 7
        largest = max(largest, x[k])
    y[0] = total
    y[1] = count
    y[2] = largest * HALF - HALF / 4
    y[3] = (HALF + 0.1) * 3


def test_float32_beside_literals():
    x, y = np.random.default_rng(5).standard_normal(40, np.float32), np.zeros(4, np.float32)
    launch(_floats, 1, 1, x, y, len(x))
    total = count = np.float32(0)
    for v in x:
        total, count = total + (v * np.float32(2.1) + np.float32(1.3)), count + v / np.float32(7)
    # Where compiled, products and sums are fused; in float64 they would be right to 1e-15 of the exact sums, whose distance this is not.
    assert abs(y[0] - total) < 1e-4 and abs(y[1] - count) < 1e-5
    assert y[2] == np.float32(max(0, x.max())) * np.float32(0.5) - np.float32(0.125) and y[3] == np.float32(0.6 * 3)


class State(NamedTuple):
    slot: u32
    phase: u32
    count: i32


@device_function
def _next(state, slots):
    slot = state.slot + 1
    if slot == slots:
        return State(u32(0), state.phase ^ 1, state.count - 1)
    return State(slot, phase=state.phase, count=state.count + 2)


@jit(launch_bounds=32)
def _ring(y, z, n, slots):
    state = State(u32(0), u32(1), 7)
    pair = (0, 1)
    for k in range(n):
        state = _next(state, slots)
        pair = (pair[1], pair[0] + pair[1])
    y[0], y[1] = state.slot, state.phase
    z[0], z[1] = state.count, pair[0]


def test_named_tuples_and_tuples_in_loops():
    y, z = np.zeros(2, np.uint32), np.zeros(2, np.int32)
    launch(_ring, 1, 1, y, z, 23, np.uint32(4))
    assert y.tolist() == [23 % 4, 1 ^ (23 // 4) & 1] and z.tolist() == [7 + 2 * (23 - 5) - 5, 28657]


@jit(launch_bounds=64)
def _arrays(x, y, rows, columns):
    tile, mine = cuda.shared.array((4, 8 * N), f32), cuda.local.array(2 * N, i32)
    for k in range(2 * N):
        mine[k] = k * rows
    i = cuda.blockIdx.x * cuda.blockDim.x + cuda.threadIdx.x
    if i < rows * columns:
        tile[i % rows, i // rows] = x[(i % rows) * columns + i // rows]
    cuda.syncthreads()
    if i < rows * columns:
        y[i] = tile[i % rows, i // rows] + f32(mine[i % (2 * N)]) * HALF


def test_indices_and_arrays():
    x, y = np.arange(60, dtype=np.float32), np.zeros(60, np.float32)
    launch(_arrays, 1, 64, x, y, 3, 20)
    assert y.tolist() == [x.reshape(3, 20)[k % 3, k // 3] + k % 10 * 3 * 0.5 for k in range(60)]


# ---- NamedTuples as kernel parameters

class Window(NamedTuple):
    taps: i32
    steps: "int64x3"  # noqa: F821 (a name of several)


class Pool(NamedTuple):
    n: i32
    seed: u32
    scale: f32
    window: Window
    offset: "float64"  # noqa: F821


@device_function
def _weighted(pool, k):
    return pool.scale * f32(k * pool.window.taps) + HALF


@jit(launch_bounds=32)
def _structured(x, y, z, pool, n):
    n, seed, scale, window, offset = pool
    for k in range(n):
        x[k] = _weighted(pool, k)
    y[0] = seed + 1
    y[1] = pool.seed >> 4
    z[0] = pool.window.steps[2] * n - window.steps[0]
    z[1] = i64(offset) + n


POOL = Pool(4, 2 ** 32 - 1, 0.1, Window(3, (2 ** 40, -1, 5)), 7.5)


def _structured_result():
    scale = np.float32(0.1)
    return [scale * np.float32(k * 3) + np.float32(0.5) for k in range(4)], [0, 0xFFFFFFF], [20 - 2 ** 40, 11]


def test_named_tuples_as_parameters():
    x, y, z = np.zeros(4, np.float32), np.zeros(2, np.uint32), np.zeros(2, np.int64)
    launch(_structured, 1, 1, x, y, z, POOL, 9)
    np.testing.assert_allclose(x, _structured_result()[0], rtol=1e-6)
    assert [y.tolist(), z.tolist()] == [*_structured_result()[1:]]


def test_named_tuples_of_a_plan():
    if not HOST_MEMORY:
        pytest.skip("plans on a GPU: test_host_launch")
    if SIMULATED:
        from dnnkern.host.launch import SimulatedExecutable as Executable
    else:
        from dnnkern.host.cpu import CpuExecutable as Executable
    arrays = np.zeros(4, np.float32), np.zeros(2, np.uint32), np.zeros(2, np.int64)
    arguments = [Argument(f"{a.dtype}*", name) for a, name in zip(arrays, "xyz")]
    each = Launch(_structured, (1, 1, 1), (1, 1, 1), (*arguments, Argument(Pool, POOL), Argument("int32", "n")))
    Executable([each], [*((name, "pointer") for name in "xyz"), ("n", "int32")], 0).execute((*arrays, 9), 0)
    np.testing.assert_allclose(arrays[0], _structured_result()[0], rtol=1e-6)
    assert [a.tolist() for a in arrays[1:]] == [*_structured_result()[1:]]


def test_fields_that_no_parameter_has():
    class Wrong(NamedTuple):
        n: i32
        size: int
    for value, message in ((Wrong(1, 2), "Wrong.size: 'int'; expected a cast such as i32"),
                           (POOL._replace(window=Window(1, (1, 2))), "2 numbers, expected 3"), (POOL._replace(window=(1,)), "shorter")):
        with pytest.raises((TypeError, ValueError), match=message):
            flattened(type(value), value)


Group = structure("Group", ("float32*", "int32", "uint16*"))


@jit(launch_bounds=32)
def _grouped(y, n, group, nothing):
    i = cuda.threadIdx.x
    if i < n:
        y[i] = group[0][i * group.at1] + f32(group[2][i])


def test_pointers_among_the_members():
    """Pointers of several types in one parameter, and one of no members."""
    y, x, words = np.zeros(4, np.float32), np.arange(8, dtype=np.float32), np.arange(4, dtype=np.uint16) + 10
    launch(_grouped, 1, 32, y, 4, Group(x, 2, words), structure("Nothing", ())())
    np.testing.assert_array_equal(y, x[::2] + words)


def test_dynamic_members_of_a_plan():
    if not HOST_MEMORY:
        pytest.skip("plans on a GPU: test_host_launch")
    if SIMULATED:
        from dnnkern.host.launch import SimulatedExecutable as Executable
    else:
        from dnnkern.host.cpu import CpuExecutable as Executable
    y, x, words = np.zeros(4, np.float32), np.arange(8, dtype=np.float32), np.arange(4, dtype=np.uint16) + 10
    nothing = structure("Nothing", ())
    group = Argument(Group, Group(Argument("float32*", "x", offset=4), Argument("int32", "step"), Argument("uint16*", "words")))
    each = Launch(_grouped, (1, 1, 1), (32, 1, 1), (Argument("float32*", "y"), Argument("int32", 4), group, Argument(nothing, nothing())))
    assert [a.value for a in each.parameters] == ["y", 4, "x", "step", "words", ()]
    parameters = [*((name, "pointer") for name in ("y", "x", "words")), ("step", "int32")]
    Executable([each], parameters, 0).execute((y, x, words, 1), 0)
    np.testing.assert_array_equal(y, x[1:5] + words)
    with pytest.raises(TypeError, match=r"a member of Group is Argument\(type='uint16\*', value='x'.*expected the type float32\*"):
        Argument(Group, Group(Argument("uint16*", "x"), 1, Argument("uint16*", "words"))).members
