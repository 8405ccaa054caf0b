"""`dnnkern.device.philox`: the known answers of Random123, the counter's layout, and the distributions."""
import hashlib

import numpy as np
import pytest
from kit import launch

from dnnkern.device import cuda, i32, i64
from dnnkern.device.philox import normal_pair, philox, philox_rounds, uniform

KNOWN = [  # counter, key, output: kat_vectors of Random123, philox4x32 with 10 rounds
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0), (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
]


@cuda.jit(launch_bounds=32)
def _rounds(x, y):
    if cuda.threadIdx.x == 0:
        a, b, c, d = philox_rounds(x[0], x[1], x[2], x[3], x[4], x[5])
        y[0] = a
        y[1] = b
        y[2] = c
        y[3] = d


@pytest.mark.parametrize("counter, key, expected", KNOWN)
def test_known_answers(counter, key, expected):
    y = np.zeros(4, np.uint32)
    launch(_rounds, 1, 32, np.array(counter + key, np.uint32), y)
    np.testing.assert_array_equal(y, np.array(expected, np.uint32))


@cuda.jit(launch_bounds=128)
def _draw(seeds, y):
    i = i32(cuda.threadIdx.x)
    a, b, c, d = philox(seeds[0], i64(seeds[1] + i), seeds[2])
    y[i32(4 * i)] = a
    y[i32(4 * i + 1)] = b
    y[i32(4 * i + 2)] = c
    y[i32(4 * i + 3)] = d


def _reference(seed, subsequence, offset):
    mask = 0xFFFFFFFF
    c, k = [offset & mask, offset >> 32, subsequence & mask, subsequence >> 32], [seed & mask, seed >> 32]
    for _ in range(10):
        p, q = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [q >> 32 ^ c[1] ^ k[0], q & mask, p >> 32 ^ c[3] ^ k[1], p & mask]
        k = [k[0] + 0x9E3779B9 & mask, k[1] + 0xBB67AE85 & mask]
    return c


@pytest.mark.parametrize("seed, subsequence, offset", [(0, 0, 0), (0x123456789ABCDEF0, 2**40 + 5, 2**33 + 7), (42, 2**32 - 64, 2**32 - 1)])
def test_seed_subsequence_and_offset_are_64_bits(seed, subsequence, offset):
    y = np.zeros(512, np.uint32)
    launch(_draw, 1, 128, np.array([seed, subsequence, offset], np.int64), y)
    np.testing.assert_array_equal(y.reshape(128, 4), np.array([_reference(seed, subsequence + i, offset) for i in range(128)], np.uint32))


@cuda.jit(launch_bounds=128)
def _uniforms(words, y, n):
    for i in range(i32(cuda.threadIdx.x), n, 128):
        y[i] = uniform(words[i])


def test_uniform_is_exact_and_never_zero():
    edge = [0, 255, 256, 2**31, 2**32 - 1, 2**32 - 257]
    words = np.concatenate([edge, np.random.default_rng(15).integers(0, 2**32, 2000)]).astype(np.uint32)
    y = np.zeros(len(words), np.float32)
    launch(_uniforms, 1, 128, words, y, len(words))
    np.testing.assert_array_equal(y, ((words >> 8).astype(np.float64) + 1) / 2**24)
    assert y.min() == 2.0**-24 and y.max() == 1


@cuda.jit(launch_bounds=128)
def _normals(words, y, n):
    for i in range(i32(cuda.threadIdx.x), n, 128):
        a, b = normal_pair(words[i32(2 * i)], words[i32(2 * i + 1)])
        y[i32(2 * i)] = a
        y[i32(2 * i + 1)] = b


def _normal_words():
    edge = np.array([0, 2**32 - 1, 2**29, 2**30, 3 * 2**29, 2**31, 3 * 2**30, 2**8, 2**32 - 512, 2**31 - 256], np.uint32)
    pairs = np.stack(np.meshgrid(edge, edge), -1).reshape(-1)
    return np.concatenate([pairs, np.array([_reference(16, i, 0) for i in range(2000)]).reshape(-1)]).astype(np.uint32)


def test_normals_are_box_and_mullers():
    words = _normal_words()
    y = np.zeros(len(words), np.float32)
    launch(_normals, 1, 128, words, y, len(words) // 2)
    u = ((words >> 8).astype(np.float64) + 1) / 2**24
    radius, angle = np.sqrt(-2 * np.log(u[0::2])), 2 * np.pi * u[1::2]
    np.testing.assert_allclose(y[0::2], radius * np.cos(angle), rtol=0, atol=1.5e-6)
    np.testing.assert_allclose(y[1::2], radius * np.sin(angle), rtol=0, atol=1.5e-6)
    random = y[200:]
    assert abs(random.mean()) < 4 / len(random)**0.5 and abs(random.var() - 1) < 4 * (2 / len(random))**0.5


def test_normals_have_the_same_bits_everywhere():
    words = _normal_words()
    y = np.zeros(len(words), np.float32)
    launch(_normals, 1, 128, words, y, len(words) // 2)
    assert hashlib.sha256(y.tobytes()).hexdigest()[:16] == "0154614e4a36a1ac"
