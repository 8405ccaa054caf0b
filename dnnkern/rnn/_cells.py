"""What a cell does to a hidden unit: from sums of products to gates and states, and back. Every algorithm calls these.

Sums are in float32, or float64 for float64, and so are the gates in between; sigmoid and tanh are accurate ones.
"""
import functools
import math
from typing import Callable, NamedTuple

from ..device import device_function, f32, f64
from ..device.epilogue import Activation, activation_function
from ..device.fastmath import maximum, minimum, tanh

TYPES = {"float32": f32, "float64": f64}


class Cell(NamedTuple):
    """Device functions of a cell and type. `sums` are those of a unit's gates, input and recurrent halves and biases together, GRU's
    fourth the recurrent half of n; `kept` its slots in a reserve; all are local arrays.

    forward(sums, state) -> (state, h)
        `sums` become what is kept. `state` is the cell state of an LSTM, else h.
    backward(kept, state, before, dh, dstate) -> what the state before gets without the products with matrices
        `kept` become the gradients before the gates' functions; `before` is the state before, dh the gradient of h and `dstate` of the
        cell state.
    """
    forward: Callable
    backward: Callable


@functools.cache
def make_cell(cell, compute, clip=None) -> Cell:
    """The device functions."""
    T, sigmoid = TYPES[compute], activation_function(Activation("sigmoid"), compute)
    simple = activation_function(Activation(cell if cell in ("relu", "tanh") else "identity"), compute)
    CLIPPED = clip is not None
    LOW, HIGH = clip or (-math.inf, math.inf)

    @device_function
    def plain(sums, state):
        sums[0] = simple(sums[0])
        return sums[0], sums[0]

    @device_function
    def plain_back(kept, state, before, dh, dstate):
        h = kept[0]
        if cell == "tanh":
            kept[0] = T(dh * T(T(1) - T(h * h)))
        else:
            kept[0] = dh if h > T(0) else T(0)
        return T(0)

    @device_function
    def lstm(sums, state):
        i, f, g, o = sigmoid(sums[0]), sigmoid(sums[1]), tanh(sums[2]), sigmoid(sums[3])
        after = T(T(f * state) + T(i * g))
        if CLIPPED:
            after = minimum(maximum(after, T(LOW)), T(HIGH))
        sums[0], sums[1], sums[2], sums[3] = i, f, g, o
        return after, T(o * tanh(after))

    @device_function
    def lstm_back(kept, state, before, dh, dstate):
        i, f, g, o = kept[0], kept[1], kept[2], kept[3]
        across = tanh(state)
        d = T(dstate + T(dh * o) * T(T(1) - T(across * across)))
        if CLIPPED:
            if not (state > T(LOW) and state < T(HIGH)):
                d = T(0)
        kept[0] = T(T(d * g) * T(i * T(T(1) - i)))
        kept[1] = T(T(d * before) * T(f * T(T(1) - f)))
        kept[2] = T(T(d * i) * T(T(1) - T(g * g)))
        kept[3] = T(T(dh * across) * T(o * T(T(1) - o)))
        return T(d * f)

    @device_function
    def gru(sums, state):
        r, z, half = sigmoid(sums[0]), sigmoid(sums[1]), sums[3]
        n = tanh(T(sums[2] + T(r * half)))
        sums[0], sums[1], sums[2] = r, z, n
        h = T(T(T(T(1) - z) * n) + T(z * state))
        return h, h

    @device_function
    def gru_back(kept, state, before, dh, dstate):
        r, z, n, half = kept[0], kept[1], kept[2], kept[3]
        d = T(T(dh * T(T(1) - z)) * T(T(1) - T(n * n)))
        kept[0] = T(T(d * half) * T(r * T(T(1) - r)))
        kept[1] = T(T(dh * T(before - n)) * T(z * T(T(1) - z)))
        kept[2] = d
        kept[3] = T(d * r)
        return T(dh * z)
    return {"lstm": Cell(lstm, lstm_back), "gru": Cell(gru, gru_back)}.get(cell, Cell(plain, plain_back))
