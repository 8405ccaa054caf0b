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
INPUT, FORGET, CELL, OUTPUT = range(4)            # gates of an LSTM
RESET, UPDATE, NEW, NEW_RECURRENT = range(4)      # slots of a GRU: two gates, and the input and the recurrent half of n


class Cell(NamedTuple):
    """Device functions of a cell and type. `sums` are those of a unit's gates, input and recurrent parts and biases together, GRU's
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
            kept[0] = dh * (1 - h * h)
        else:
            kept[0] = dh if h > T(0) else T(0)
        return T(0)

    @device_function
    def lstm(sums, state):
        i, f, g, o = sigmoid(sums[INPUT]), sigmoid(sums[FORGET]), tanh(sums[CELL]), sigmoid(sums[OUTPUT])
        after = f * state + i * g
        if CLIPPED:
            after = minimum(maximum(after, T(LOW)), T(HIGH))
        sums[INPUT], sums[FORGET], sums[CELL], sums[OUTPUT] = i, f, g, o
        return after, o * tanh(after)

    @device_function
    def lstm_back(kept, state, before, dh, dstate):
        i, f, g, o = kept[INPUT], kept[FORGET], kept[CELL], kept[OUTPUT]
        across = tanh(state)
        d = dstate + dh * o * (1 - across * across)
        if CLIPPED:
            if not (state > T(LOW) and state < T(HIGH)):
                d = T(0)
        kept[INPUT] = d * g * (i * (1 - i))
        kept[FORGET] = d * before * (f * (1 - f))
        kept[CELL] = d * i * (1 - g * g)
        kept[OUTPUT] = dh * across * (o * (1 - o))
        return d * f

    @device_function
    def gru(sums, state):
        r, z, half = sigmoid(sums[RESET]), sigmoid(sums[UPDATE]), sums[NEW_RECURRENT]
        n = tanh(sums[NEW] + r * half)
        sums[RESET], sums[UPDATE], sums[NEW] = r, z, n
        h = (1 - z) * n + z * state
        return h, h

    @device_function
    def gru_back(kept, state, before, dh, dstate):
        r, z, n, half = kept[RESET], kept[UPDATE], kept[NEW], kept[NEW_RECURRENT]
        d = dh * (1 - z) * (1 - n * n)
        kept[RESET] = d * half * (r * (1 - r))
        kept[UPDATE] = dh * (before - n) * (z * (1 - z))
        kept[NEW] = d
        kept[NEW_RECURRENT] = d * r
        return dh * z
    return {"lstm": Cell(lstm, lstm_back), "gru": Cell(gru, gru_back)}.get(cell, Cell(plain, plain_back))
