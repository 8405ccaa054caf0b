"""Element types against NumPy's float16 and ml_dtypes, bit for bit: every stored word, and floats at and around every tie."""
import ml_dtypes
import numpy as np
import pytest
from kit import launch

from dnnkern.device import cuda, f32, f64, i32, numeric, u32
from dnnkern.device.convert import element
from dnnkern.device.numeric import bits_float, double_words, float_bits, float_to_int32, words_double

THREADS = 128
HOST = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
LARGEST = {"e4m3": 448.0, "e5m2": 57344.0}
CANONICAL = {"float16": 0x7FFF, "bfloat16": 0x7FFF, "e4m3": 0x7F, "e5m2": 0x7F}
ALL = ["float64", "float32", "float16", "bfloat16", "int8", "uint8", "int32", "e4m3", "e5m2"]


def _each(function):
    """Kernel y[i] = function(x[i]) over n elements by one block."""
    @cuda.jit(launch_bounds=THREADS)
    def kernel(x, y, n):
        for i in range(i32(cuda.threadIdx.x), n, THREADS):
            y[i] = function(x[i])
    return kernel


def _map(function, x, dtype):
    y = np.zeros(len(x), dtype)
    launch(_each(function), 1, THREADS, x, y, len(x))
    return y


def _words(name):
    bits = 8 * element(name).storage.itemsize
    return np.arange(1 << bits).astype(element(name).storage)


@pytest.mark.parametrize("name", HOST)
def test_every_word_widens_exactly(name):
    words = _words(name)
    got, expected = _map(element(name).widen, words, np.float32), words.view(HOST[name]).astype(np.float32)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(got[~nan].view(np.uint32), expected[~nan].view(np.uint32))


def _around_every_tie(name):
    """Float32 values: each representable one, the ties between neighbours, and the floats next to both; the limits."""
    with np.errstate(all="ignore"):
        values = _words(name).view(HOST[name]).astype(np.float64)
    values = np.unique(values[np.isfinite(values)])
    values = values[values >= 0]
    ties = (values[1:] + values[:-1]) / 2
    with np.errstate(all="ignore"):
        base = np.concatenate([values, ties, [values[-1] + (values[-1] - values[-2]) / 2 * k for k in (0.999, 1, 1.001, 2, 100)],
                               [1e30, 3.4e38, 1e-30, 1e-45]]).astype(np.float32)
        near = np.concatenate([base, np.nextafter(base, np.float32(np.inf)), np.nextafter(base, np.float32(-np.inf))])
    return np.concatenate([near, -near, np.array([np.inf, -np.inf, 0.0, -0.0], np.float32)])


def _narrowed(name, x):
    """The expected words of finite and infinite x; fp8 saturates."""
    with np.errstate(all="ignore"):
        limit = LARGEST.get(name)
        x = np.clip(x, -limit, limit) if limit else x
        return x.astype(HOST[name]).view(element(name).storage)


@pytest.mark.parametrize("name", HOST)
def test_narrowing_rounds_to_nearest_even(name):
    x = _around_every_tie(name)
    np.testing.assert_array_equal(_map(element(name).narrow, x, element(name).storage), _narrowed(name, x))


@pytest.mark.parametrize("name", HOST)
def test_every_word_survives_a_round_trip(name):
    words = _words(name)
    nan = np.isnan(words.view(HOST[name]).astype(np.float32))
    x = words.view(HOST[name]).astype(np.float32)
    keep = ~nan & (np.isfinite(x) | (name in ("float16", "bfloat16")))
    np.testing.assert_array_equal(_map(element(name).narrow, x[keep], words.dtype), words[keep])


@pytest.mark.parametrize("name", HOST)
def test_nan_narrows_to_the_canonical_nan(name):
    x = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF812345, 0x7FFFFFFF], np.uint32).view(np.float32)
    np.testing.assert_array_equal(_map(element(name).narrow, x, element(name).storage), np.full(5, CANONICAL[name]))


@pytest.mark.parametrize("name", ["e4m3", "e5m2"])
def test_fp8_rounding_of_architectures_without_the_instruction(name):
    x = _around_every_tie(name)
    rounded = _map({"e4m3": numeric._round_e4m3, "e5m2": numeric._round_e5m2}[name], x, np.uint32)
    np.testing.assert_array_equal(rounded, _narrowed(name, x))


def test_pairs_of_e4m3_as_pairs_of_float16():
    """Every number, in both places of a pair."""
    low = np.arange(256, dtype=np.uint16)
    words = low | (255 - low) << 8
    halves = _map(numeric.e4m3x2_to_half2, words, np.uint32).view(np.float16)
    np.testing.assert_array_equal(halves, words.view(np.uint8).view(HOST["e4m3"]).astype(np.float16))


def test_e4m3_widening_of_architectures_without_the_instruction():
    words = _words("e4m3")
    np.testing.assert_array_equal(_map(numeric._e4m3_to_float_sm75, words, np.float32), words.view(HOST["e4m3"]).astype(np.float32))


@pytest.mark.parametrize("name", ["int8", "uint8", "int32"])
def test_integers_round_to_even_and_saturate(name):
    info = np.iinfo(name)
    e = element(name)
    compute = np.dtype(e.compute)
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 0.49999, 126.5, 127.5, 254.5, 255.5, -128.5, -129, 300, -300, 1e20, -1e20, np.inf,
                  -np.inf, np.nan, 7, -7, 0], compute)
    expected = np.array([0 if np.isnan(v) else int(np.rint(np.clip(v, info.min, info.max))) for v in x.astype(np.float64)]).astype(name)
    np.testing.assert_array_equal(_map(e.narrow, x, name), expected)
    words = _words(name) if e.storage.itemsize == 1 else np.array([info.min, -1, 0, 1, info.max], name)
    np.testing.assert_array_equal(_map(e.widen, words, compute), words.astype(compute))


def test_float_to_int32():
    x = np.array([2.5, -3.5, 2**31, -2.0**31, 3e9, -3e9, np.nan, np.inf, 8388609.0], np.float32)
    expected = np.array([2, -4, 2**31 - 1, -2**31, 2**31 - 1, -2**31, 0, 2**31 - 1, 8388609], np.int32)
    np.testing.assert_array_equal(_map(float_to_int32, x, np.int32), expected)


@pytest.mark.parametrize("name", ALL)
def test_load_and_store(name):
    e = element(name)
    load, store, T = e.load, e.store, f64 if e.compute == "float64" else f32

    @cuda.jit(launch_bounds=THREADS)
    def kernel(x, y):
        i = i32(cuda.threadIdx.x)
        store(y, i, load(x, i) * T(0.5))
    values = (2 * np.arange(THREADS) % 58).astype(np.float64)
    if name in HOST:
        x = values.astype(HOST[name]).view(e.storage)
        expected = (x.view(HOST[name]).astype(np.float32) * np.float32(0.5)).astype(HOST[name]).view(e.storage)
    else:
        x, expected = values.astype(e.storage), (values / 2).astype(e.storage)
    y = np.full(THREADS, 0xAA).astype(e.storage)
    launch(kernel, 1, THREADS, x, y)
    np.testing.assert_array_equal(y, expected)


@pytest.mark.parametrize("name", [n for n in ALL if n != "float64"])
def test_words_take_elements_lowest_first(name):
    e = element(name)
    unpack, pack, per_word, T = e.unpack, e.pack, e.per_word, f64 if e.compute == "float64" else f32

    @cuda.jit(launch_bounds=THREADS)
    def kernel(x, values, y):
        i = i32(cuda.threadIdx.x)
        if per_word == 1:
            a = unpack(x[i])
            values[i] = a
            y[i] = pack(a)
        if per_word == 2:
            a, b = unpack(x[i])
            values[i32(2 * i)] = a
            values[i32(2 * i + 1)] = b
            y[i] = pack(a, b)
        if per_word == 4:
            a, b, c, d = unpack(x[i])
            values[i32(4 * i)] = a
            values[i32(4 * i + 1)] = b
            values[i32(4 * i + 2)] = c
            values[i32(4 * i + 3)] = d
            y[i] = pack(a, b, c, d)
    x = np.random.default_rng(4).integers(0, 2**32, THREADS).astype(np.uint32)
    narrow = x.view(e.storage)
    host = narrow.view(HOST[name]) if name in HOST else narrow
    with np.errstate(all="ignore"):
        expected = host.astype(e.compute)
    values, y = np.zeros(per_word * THREADS, e.compute), np.zeros_like(x)
    launch(kernel, 1, THREADS, x if name != "int32" else x.view(np.int32), values, y)
    np.testing.assert_array_equal(values, expected)
    usual = np.isfinite(expected)
    np.testing.assert_array_equal(y.view(e.storage)[usual], narrow[usual])
    assert T is not None and usual.sum() > THREADS / 2


@pytest.mark.parametrize("name", ALL)
def test_chunks(name):
    e = element(name)
    unpack, pack, n, T = e.unpack_chunk, e.pack_chunk, e.per_chunk, f64 if e.compute == "float64" else f32
    size = 2 * n

    @cuda.jit(launch_bounds=32)
    def kernel(x, values, y):
        i = i32(cuda.threadIdx.x)
        words, numbers = cuda.local.array(8, u32), cuda.local.array(size, T)
        for k in range(4):
            words[4 + k] = x[i32(4 * i + k)]
        unpack(numbers, n, words, 4)
        for k in range(n):
            values[i32(n * i + k)] = numbers[n + k]
            numbers[k] = numbers[2 * n - 1 - k]
        pack(words, 0, numbers, 0)
        for k in range(4):
            y[i32(4 * i + k)] = words[k]
    x = np.random.default_rng(5).integers(1, 50, 32 * n)
    x = x.astype(HOST[name]).view(e.storage) if name in HOST else x.astype(e.storage)
    values, y = np.zeros(32 * n, e.compute), np.zeros(128, np.uint32)
    launch(kernel, 1, 32, x.view(np.uint32), values, y)
    host = x.view(HOST[name]) if name in HOST else x
    np.testing.assert_array_equal(values, host.astype(e.compute))
    np.testing.assert_array_equal(y.view(e.storage).reshape(32, n), x.reshape(32, n)[:, ::-1])


def test_bit_patterns():
    @cuda.jit(launch_bounds=THREADS)
    def kernel(x, bits, back, d, words, again):
        i = i32(cuda.threadIdx.x)
        bits[i] = float_bits(x[i])
        back[i] = bits_float(float_bits(x[i]))
        low, high = double_words(d[i])
        words[i32(2 * i)] = low
        words[i32(2 * i + 1)] = high
        again[i] = words_double(low, high)
    rng = np.random.default_rng(6)
    x, d = rng.standard_normal(THREADS).astype(np.float32), rng.standard_normal(THREADS)
    bits, back = np.zeros(THREADS, np.uint32), np.zeros(THREADS, np.float32)
    words, again = np.zeros(2 * THREADS, np.uint32), np.zeros(THREADS)
    launch(kernel, 1, THREADS, x, bits, back, d, words, again)
    np.testing.assert_array_equal(bits, x.view(np.uint32))
    np.testing.assert_array_equal(back, x)
    np.testing.assert_array_equal(words, d.view(np.uint32))
    np.testing.assert_array_equal(again, d)


def test_round_tf32():
    rng = np.random.default_rng(3)
    bits = np.append(rng.integers(0x0C800000, 0x72800000, 500), rng.integers(0x0C800, 0x72800, 500) << 12).astype(np.uint32)  # ties, half
    x = np.append(bits, bits | np.uint32(1 << 31)).view(np.float32)
    mantissa, exponent = np.frexp(np.abs(x).astype(np.float64))
    expected = np.copysign(np.ldexp(np.floor(mantissa * 2048 + 0.5), exponent - 11), x)
    upper = np.uint32(0xFFFFE000)  # what a tensor core reads
    assert np.array_equal((_map(numeric.round_tf32, x.view(np.uint32), np.uint32) & upper).view(np.float32), expected)
    special = np.array([np.inf, -np.inf, 0.0, -0.0], np.float32).view(np.uint32)
    assert np.array_equal(_map(numeric.round_tf32, special, np.uint32) & upper, special & upper)
    nans = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFFFFF], np.uint32)
    assert np.isnan((_map(numeric.round_tf32, nans, np.uint32) & upper).view(np.float32)).all()


def test_permute_bytes():
    @cuda.jit(launch_bounds=1)
    def kernel(a, b, s, y):
        y[0] = numeric.permute_bytes(a[0], b[0], s[0])
    for selector, expected in ((0x6420, 0x77553311), (0x7531, 0x88664422), (0x3210, 0x44332211), (0x0000, 0x11111111)):
        y = np.zeros(1, np.uint32)
        launch(kernel, 1, 1, *(np.array([v], np.uint32) for v in (0x44332211, 0x88776655, selector)), y)
        assert y[0] == expected


def test_descriptors():
    assert element("bfloat16") is element(ml_dtypes.bfloat16) is element(np.dtype(ml_dtypes.bfloat16))
    assert element(np.float32) is element("float32") and element(ml_dtypes.float8_e4m3fn) is element("e4m3")
    assert [(element(n).pointer, element(n).per_word, element(n).per_chunk) for n in ("float64", "bfloat16", "e5m2", "int8")] == [
        ("float64*", 0, 2), ("uint16*", 2, 8), ("uint8*", 4, 16), ("int8*", 4, 16)]
    with pytest.raises(TypeError, match="no element type 'complex64'"):
        element("complex64")
