"""What every algorithm of `random_fill` does with four random words."""
import functools

from ..device import device_function
from ..device.fastmath import fma
from ..device.philox import normal_pair, uniform


@functools.cache
def make_fill(distribution):
    """Device function ``fill(values, k, words, first, second)``: values[k:k+4] from the four words of a call of Philox. The numbers are the
    lower end and the width, the mean and the deviation, or the probability."""
    if distribution == "uniform":
        @device_function
        def fill(values, k, words, first, second):
            for j in range(4):
                values[k + j] = fma(uniform(words[j]), second, first)
    elif distribution == "normal":
        @device_function
        def fill(values, k, words, first, second):
            for j in range(0, 4, 2):
                a, b = normal_pair(words[j], words[j + 1])
                values[k + j] = fma(a, second, first)
                values[k + j + 1] = fma(b, second, first)
    else:
        @device_function
        def fill(values, k, words, first, second):
            for j in range(4):
                values[k + j] = 1 if uniform(words[j]) <= first else 0
    return fill
