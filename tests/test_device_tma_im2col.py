"""Bulk copies of pixels, for convolutions: what lands where, in the simulator and on a GPU."""
import numpy as np
import pytest
from kit import needs
from test_device_tma import loaded, numbers

from dnnkern.host.tensormap import Im2colMap

pytestmark = needs(9)


def _pixels(x, spec, coordinates, offsets):
    """An im2col copy, pixel by pixel; coordinates and offsets innermost first."""
    out = np.zeros(spec.counts, x.dtype)
    c, *place, image = coordinates
    sizes, lower, upper, steps = x.shape[-2:0:-1], spec.lower[::-1], spec.upper[::-1], spec.every[-2:0:-1]
    for row in range(spec.pixels):
        at = [p + o for p, o in zip(place, offsets)]
        if 0 <= image < len(x) and all(0 <= a < n for a, n in zip(at, sizes)):
            for k in range(spec.channels):
                if 0 <= c + k < x.shape[-1]:
                    out[row, k] = x[(image, *reversed(at), c + k)]
        for d in range(len(place)):  # the next pixel of the box
            place[d] += steps[d]
            if place[d] < sizes[d] + upper[d]:
                break
            place[d] = lower[d]
        else:
            image += 1
    return out


# images, [depth,] [height,] width, channels; corners; steps; coordinates and offsets, innermost first
IM2COL = {
    "1-D": ((3, 9, 8), (-1,), (-1,), None, (0, -1, 0), (2,)),
    "2-D, 3x3 filter": ((2, 5, 6, 16), (-1, -1), (-1, -1), None, (8, 3, -1, 0), (2, 0)),
    "2-D, different corners": ((2, 7, 5, 8), (-2, -1), (-1, -3), None, (0, 1, -2, 1), (1, 3)),
    "2-D, strides": ((2, 9, 8, 8), (-1, -1), (-1, -1), (1, 2, 3, 1), (0, 2, 1, 0), (1, 2)),
    "3-D": ((2, 4, 3, 5, 8), (-1, 0, -1), (-1, -1, -1), (1, 2, 1, 2, 1), (4, 1, 1, 1, 0), (2, 1, 0)),
}


@pytest.mark.parametrize("name", IM2COL)
def test_im2col(name):
    shape, lower, upper, steps, coordinates, offsets = IM2COL[name]
    strides = tuple(int(np.prod(shape[k + 1:])) for k in range(len(shape)))
    spec, x = Im2colMap("float32", shape, strides, lower, upper, 8, 32, steps=steps), numbers("float32", shape)
    expected = _pixels(x, spec, coordinates, offsets)
    assert expected.any() and not expected.all(axis=1).all()
    np.testing.assert_array_equal(loaded(x, spec, coordinates, offsets), expected.view(np.uint8))


def test_im2col_swizzled():
    spec = Im2colMap("bfloat16", (2, 6, 6, 64), (2304, 384, 64, 1), (-1, -1), (-1, -1), 64, 16, swizzle=128)
    x = numbers("bfloat16", (2, 6, 6, 64))
    expected = _pixels(x, spec, (0, -1, 0, 0), (0, 1)).view(np.uint8).reshape(-1, 16)
    k = np.arange(len(expected))
    np.testing.assert_array_equal(loaded(x, spec, (0, -1, 0, 0), (0, 1)).reshape(-1, 16), expected[k ^ (k >> 3 & 7)])
