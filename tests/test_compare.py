"""The largest difference of two results: by the kernel as on the host, for every dtype."""
import math

import numpy as np
import pytest

from dnnkern.device import SIMULATED
from dnnkern.host.compare import kernel, largest_difference_on_host
from dnnkern.host.dtypes import ITEMSIZE, STORAGE, numpy_dtype

pytestmark = pytest.mark.skipif(not SIMULATED, reason="the simulator's own pointers")


def test_largest_difference():
    x, y = np.array([1, 2, np.nan, np.inf, 5.0]), np.array([1, 2.5, np.nan, np.inf, -8.0])
    assert largest_difference_on_host(x, y) == (13.0, 8.0)
    assert largest_difference_on_host(np.array([np.nan]), np.array([1.0]))[0] == math.inf
    assert largest_difference_on_host(np.array([1.0]), np.array([np.nan]))[0] == math.inf
    assert largest_difference_on_host(np.empty(0), np.empty(0)) == (0.0, 0.0)


def test_the_comparison_kernel_agrees_with_the_host():
    from dnnkern.device.sim import Pointer
    rng = np.random.default_rng(0)
    x = rng.standard_normal(100).astype(np.float32)
    y = (x + 1e-3 * rng.standard_normal(100)).astype(np.float32)
    x[7] = y[7] = np.nan
    for change, expected in ((None, None), (11, math.inf)):
        if change is not None:
            x[change] = np.nan
        differences, magnitudes = np.zeros(64), np.zeros(64)
        arguments = [Pointer(x), Pointer(y), 100, Pointer(differences), Pointer(magnitudes)]
        kernel("float32").simulate((2, 1, 1), (32, 1, 1), arguments)
        assert (differences.max(), magnitudes.max()) == pytest.approx(largest_difference_on_host(x, y))
        assert expected is None or differences.max() == expected


@pytest.mark.parametrize("dtype", sorted(ITEMSIZE))
def test_every_dtype_is_compared_on_the_device(dtype):
    """As on the host: floats as what they are, truth and scales as bytes."""
    from dnnkern.device.sim import Pointer
    rng = np.random.default_rng(1)
    words = np.dtype(STORAGE[dtype])
    x, y = (rng.integers(0, 256, 64 * words.itemsize, np.uint8).view(words) for _ in range(2))
    y[:40] = x[:40]
    differences, magnitudes = np.zeros(32), np.zeros(32)
    kernel(dtype).simulate((1, 1, 1), (32, 1, 1), [Pointer(x), Pointer(y), 64, Pointer(differences), Pointer(magnitudes)])
    got, expected = (a.view(words if dtype in ("bool", "float8_e8m0fnu") else numpy_dtype(dtype)) for a in (x, y))
    assert (differences.max(), magnitudes.max()) == pytest.approx(largest_difference_on_host(got, expected)) and differences.max() > 0
