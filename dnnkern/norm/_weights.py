"""gamma and beta, of which every row reads the same elements: by 16 bytes where they lie so, whatever their dtype is beside x's."""
import functools

from ..device import device_function
from ..device.convert import element
from ..device.groups import access_words, make_reader, scalar_of


def weight_words(tensor, step, count, unaligned):
    """32-bit words of a load of `count` elements that begin at a multiple of so many; 0: element by element."""
    return access_words(tensor, count, ()) if tensor is not None and (step == 1 or count == 1) and not unaligned else 0


@functools.cache
def make_weights(dtype, count, words):
    """(type, length, fetch, unpack) of groups of `count` weights, of which a local array of `type` takes `length` numbers each.

    ``fetch(buffer, k, p, i, step, ok)`` reads ``p[i * step], p[(i + 1) * step], ...``, 0 where not `ok`, into ``buffer[k:k + length]``;
    ``unpack(values, buffer, k)`` fills ``values[:count]``. With `words` of a load the step is 1.
    """
    T = scalar_of(dtype)
    if words:
        T, length, load_vector, take = make_reader(dtype, count, words)

        @device_function
        def fetch(buffer, k, p, i, step, ok):
            load_vector(buffer, k, p, i * step, ok)

        @device_function
        def unpack(values, buffer, k):
            take(values, 0, buffer, k)
        return T, length, fetch, unpack
    load = element(dtype).load

    @device_function
    def fetch(buffer, k, p, i, step, ok):
        for v in range(count):
            value = T(0)
            if ok:
                value = T(load(p, (i + v) * step))
            buffer[k + v] = value

    @device_function
    def unpack(values, buffer, k):
        for v in range(count):
            values[v] = buffer[k + v]
    return T, count, fetch, unpack
