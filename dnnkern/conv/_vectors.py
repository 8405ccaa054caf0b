"""The epilogue of groups of neighbouring elements, and the biases it adds."""
import functools

from ..device import cuda, device_function, f32, f64
from ..device.convert import element
from ..device.epilogue import activation_function
from ..device.fastmath import fma
from ..device.groups import make_reader, make_writer, scalar_of


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
    activate, put = activation_function(spec.activation, spec.compute, spec.short), make_writer(spec.output, count, words)

    @device_function
    def finish(acc, k, y, at, biases, alpha, beta, residual, residual_at):
        values = cuda.local.array(count, T)
        for v in range(count):
            values[v] = T(acc[k + v])
            if has_alpha:
                values[v] = T(values[v] * T(alpha))
        if has_c:
            raw, addends = cuda.local.array(prior_length, prior_type), cuda.local.array(count, Prior)
            fetch_prior(raw, 0, y, at, True)
            unpack_prior(addends, 0, raw, 0)
            for v in range(count):
                values[v] = fma(T(addends[v]), T(beta), values[v]) if has_beta else T(values[v] + T(addends[v]))
        if has_residual:
            more, extra = cuda.local.array(length, kind), cuda.local.array(count, Residual)
            fetch_residual(more, 0, residual, residual_at, True)
            unpack_residual(extra, 0, more, 0)
            for v in range(count):
                values[v] = T(values[v] + T(extra[v]))
        for v in range(count):
            if has_bias:
                values[v] = T(values[v] + biases[v])
            values[v] = T(activate(values[v]))
        put(y, at, values, 0)
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
                biases[v] = T(load(bias, (channel + (0 if one else v)) * stride))
    return load_biases
