"""Groups of neighbouring elements between memory and registers, in accesses of 16 bytes or what alignment leaves of them."""
import functools

from ..device import cuda, device_function, f32, f64, i32, u32
from ..device.convert import double_words, element, words_double
from ..device.epilogue import activation_function
from ..device.fastmath import fma
from ..device.vec import (advance, as_u32, load1_if_into, load1_nc_if_into, load2_if_into, load2_nc_if_into, load4_if_into,
                          load4_nc_if_into, store2_from, store4_from)
from ..host.dtypes import ITEMSIZE

_LOADS = {(4, True): load4_nc_if_into, (2, True): load2_nc_if_into, (1, True): load1_nc_if_into,
          (4, False): load4_if_into, (2, False): load2_if_into, (1, False): load1_if_into}


def access_words(tensor, count, steps):
    """32-bit words of one access where groups of `count` elements are `steps` elements apart; 0: elements one by one."""
    itemsize = ITEMSIZE[tensor.dtype]
    for words in (4, 2, 1):
        size = 4 * words
        if not (count * itemsize % size or tensor.alignment % size or any(s * itemsize % size for s in steps)) and size >= itemsize:
            return 0 if words == 2 and itemsize == 8 else words
    return 0


def scalar_of(dtype):
    """Kernel type in which elements of `dtype` are computed with."""
    return f64 if dtype == "float64" else f32


@functools.cache
def make_reader(dtype, count, words, constant=True):
    """(type, length, fetch, unpack) of groups of `count` elements read `words` 32-bit words at a time, 0 for one by one.

    ``fetch(buffer, k, p, i, ok)`` reads p[i:i+count] into a raw buffer from k on, zeros where not `ok`; ``unpack(values, k, buffer, j)``
    converts it. The buffer is a local array of `type`, of `length` a group. With `constant` nobody writes the memory meanwhile.
    """
    e, T, itemsize = element(dtype), scalar_of(dtype), ITEMSIZE[dtype]
    if not words:
        load = e.load

        @device_function
        def fetch(buffer, k, p, i, ok):
            for v in range(count):
                value = T(0)
                if ok:
                    value = T(load(p, i32(i + v)))
                buffer[k + v] = value

        @device_function
        def unpack(values, k, buffer, j):
            for v in range(count):
                values[k + v] = buffer[j + v]
        return T, count, fetch, unpack
    length, load_into, unpack_word = count * itemsize // 4, _LOADS[words, constant], e.unpack
    accesses = length // words

    @device_function
    def fetch(buffer, k, p, i, ok):
        for a in range(accesses):
            load_into(buffer, i32(k + a * words), as_u32(advance(p, i)), i32(a * words), i32(ok))

    if itemsize == 8:
        def unpack(values, k, buffer, j):
            for v in range(count):
                values[k + v] = words_double(buffer[j + 2 * v], buffer[j + 2 * v + 1])
    elif itemsize == 4:
        def unpack(values, k, buffer, j):
            for v in range(count):
                values[k + v] = unpack_word(buffer[j + v])
    else:
        def unpack(values, k, buffer, j):
            for w in range(length):
                values[k + 2 * w], values[k + 2 * w + 1] = unpack_word(buffer[j + w])
    return u32, length, fetch, device_function(unpack)


@functools.cache
def make_writer(dtype, count, words):
    """Device function ``put(p, i, values, k)``: values[k:k+count], rounded, to p[i:i+count]."""
    e, itemsize = element(dtype), ITEMSIZE[dtype]
    store, pack, length = e.store, e.pack, count * itemsize // 4
    if not words:
        def put(p, i, values, k):
            for v in range(count):
                store(p, i32(i + v), values[k + v])
        return device_function(put)

    @device_function
    def packed(buffer, values, k):
        if itemsize == 8:
            for v in range(count):
                buffer[2 * v], buffer[2 * v + 1] = double_words(values[k + v])
        elif itemsize == 4:
            for v in range(count):
                buffer[v] = pack(f32(values[k + v]))
        else:
            for w in range(length):
                buffer[w] = pack(values[k + 2 * w], values[k + 2 * w + 1])

    @device_function
    def put(p, i, values, k):
        buffer = cuda.local.array(length, u32)
        packed(buffer, values, k)
        q = as_u32(advance(p, i))
        for a in range(length // words):
            if words == 4:
                store4_from(q, i32(a * words), buffer, i32(a * words))
            elif words == 2:
                store2_from(q, i32(a * words), buffer, i32(a * words))
            else:
                q[a] = buffer[a]
    return put


@functools.cache
def make_finish(spec, count, words, residual_words):
    """Device function ``finish(acc, k, y, at, biases, alpha, beta, residual, residual_at)``: acc[k:k+count] through the epilogue `spec` to
    y[at:at+count]. `biases` holds `count` values in the epilogue's compute type; beta reads y itself."""
    T = f64 if spec.compute == "float64" else f32
    has_alpha, has_c, has_beta = spec.alpha, spec.c is not None, spec.beta
    has_residual, has_bias = spec.residual is not None, spec.bias is not None
    prior_type, prior_length, fetch_prior, unpack_prior = make_reader(spec.c or spec.output, count, words, False)
    kind, length, fetch_residual, unpack_residual = make_reader(spec.residual or spec.output, count, residual_words)
    Prior, Residual = scalar_of(spec.c or spec.output), scalar_of(spec.residual or spec.output)
    activate, put = activation_function(spec.activation, spec.compute), make_writer(spec.output, count, words)

    @device_function
    def finish(acc, k, y, at, biases, alpha, beta, residual, residual_at):
        values = cuda.local.array(count, T)
        for v in range(count):
            values[v] = T(acc[k + v])
            if has_alpha:
                values[v] = T(values[v] * T(alpha))
        if has_c:
            raw, addends = cuda.local.array(prior_length, prior_type), cuda.local.array(count, Prior)
            fetch_prior(raw, i32(0), y, at, True)
            unpack_prior(addends, i32(0), raw, i32(0))
            for v in range(count):
                values[v] = fma(T(addends[v]), T(beta), values[v]) if has_beta else T(values[v] + T(addends[v]))
        if has_residual:
            more, extra = cuda.local.array(length, kind), cuda.local.array(count, Residual)
            fetch_residual(more, i32(0), residual, residual_at, True)
            unpack_residual(extra, i32(0), more, i32(0))
            for v in range(count):
                values[v] = T(values[v] + T(extra[v]))
        for v in range(count):
            if has_bias:
                values[v] = T(values[v] + biases[v])
            values[v] = T(activate(values[v]))
        put(y, at, values, i32(0))
    return finish


@functools.cache
def make_biases(spec, count, one):
    """Device function ``load_biases(biases, bias, stride, channel)``: the `count` values that `finish` adds, of neighbouring channels, or
    with `one` that of a single channel."""
    T, load, has_bias = (f64 if spec.compute == "float64" else f32), element(spec.bias_dtype).load, spec.bias is not None

    @device_function
    def load_biases(biases, bias, stride, channel):
        for v in range(count):
            biases[v] = T(0)
            if has_bias:
                biases[v] = T(load(bias, i32(i32(channel + (0 if one else v)) * i32(stride))))
    return load_biases
