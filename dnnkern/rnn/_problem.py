"""The problems of recurrent networks: validation, shapes, and what a reserve holds from one pass to the next."""
import functools
from dataclasses import dataclass

import numpy as np

from ..host import seeds
from ..host.choices import one_of
from ..host.dtypes import compute_dtype
from ..host.tensor import Tensor
from ._spec import RnnSpec

OPS = "rnn_fwd", "rnn_bwd_data", "rnn_bwd_weights"
LAYOUTS = "TNC", "NTC"
LIMIT = 2 ** 31 - 2 ** 20


@functools.lru_cache(maxsize=256)
def regions(spec, steps, samples):
    """({(name, layer, direction): first element}, elements) of a reserve, whose arrays follow each other without gaps.

    =============  =====================  =====================================================================================
    gates          (T, N, slots, hidden)  i, f, g, o; or r, z, n and the recurrent half of n; or h. `rnn_bwd_data` puts the gradients
                                          before the gates' functions in their place, GRU's fourth is that of the recurrent half
    cells          (T, N, hidden)         LSTM: the cell state
    hidden         (T, N, hidden)         with a projection: what it is of
    projected      (T, N, projection)     with a projection: h; `rnn_bwd_data` puts its gradient in its place
    outputs        (T, N, output)         of a layer but the last, both directions: h
    kept           (T, N, output)         of a layer but the last, with dropout: 1 or 0
    =============  =====================  =====================================================================================

    All are 0 after a sequence's end.
    """
    found, first, rows = {}, 0, steps * samples
    for part, size in spec.reserve_parts:
        found[part] = first
        first += rows * size
    return found, first


class _Rnn:
    """What the three passes share; x is (T, N, input), or (N, T, input)."""
    names = results = ()
    seed_array = offset_array = None

    def _check(self):
        op, spec = self.op, self.spec
        if not isinstance(spec, RnnSpec):
            raise TypeError(f"{op}: spec is a {type(spec).__name__}; expected an RnnSpec")
        one_of(op, "layout", self.layout, LAYOUTS)
        if self.x.ndim != 3 or self.x.shape[2] != spec.input_size:
            raise ValueError(f"{op}: x has shape {self.x.shape}; expected ({', '.join(self.layout[:2])}, {spec.input_size})")
        if spec.cell != "lstm":
            for name in ("c0", "dcn"):
                if getattr(self, name, None) is not None:
                    raise ValueError(f"{op}: {name} is given; expected None: {spec.cell} has no cell state")
        state, cell = self.state_shape(spec.state_size), self.state_shape(spec.hidden_size)
        whole = (self.steps, self.samples) if self.layout == "TNC" else (self.samples, self.steps)
        wanted = {"x": self.x.shape, "h0": state, "c0": cell, "weights": (spec.weight_size,), "y": (*whole, spec.output_size),
                  "hn": state, "cn": cell, "reserve": (regions(spec, self.steps, self.samples)[1],), "dx": self.x.shape, "dhn": state,
                  "dcn": cell, "dh0": state, "dc0": cell, "dy": (*whole, spec.output_size), "dweights": (spec.weight_size,)}
        for name in self.names:
            t = getattr(self, name)
            if t is None or name == "lengths":
                continue
            label = name if name not in self.results else f"out ({name})" if len(self.results) > 1 else "out"
            if t.dtype != spec.dtype:
                raise TypeError(f"{op}: {label} is {t.dtype}; expected the spec's dtype, {spec.dtype}")
            if t.shape != wanted[name]:
                raise ValueError(f"{op}: {label} has shape {t.shape}; expected {wanted[name]}")
            if name in ("weights", "reserve", "dweights") and not t.is_packed:
                raise ValueError(f"{op}: {label} has strides {t.strides}; expected it packed")
        if self.lengths is not None:
            if self.lengths.dtype != "int32":
                raise TypeError(f"{op}: lengths is {self.lengths.dtype}; expected int32")
            if self.lengths.shape != (self.samples,):
                raise ValueError(f"{op}: lengths has shape {self.lengths.shape}; expected one a sequence, ({self.samples},)")
        for out in self.outputs:
            out.check_addresses(op)
        if max(self.steps, self.samples, self.steps * self.samples) >= LIMIT:
            raise ValueError(f"{op}: {self.steps} steps of {self.samples} sequences; expected a product below {LIMIT}")

    def state_shape(self, size):
        """Of the states before the first or after the last step."""
        return self.spec.num_layers * self.spec.directions, self.samples, size

    @property
    def steps(self):
        """T, of the longest sequence."""
        return self.x.shape[self.layout.index("T")]

    @property
    def samples(self):
        """N."""
        return self.x.shape[self.layout.index("N")]

    @property
    def dtype(self):
        return self.spec.dtype

    @property
    def compute(self):
        """What is summed in."""
        return compute_dtype(self.dtype)

    @property
    def math(self):
        """The spec's."""
        return self.spec.math

    scalar_type = "float32"

    def strides_of(self, t):
        """Element strides along (t, n, channel) of an array like x or y."""
        return t.strides if self.layout == "TNC" else (t.strides[1], t.strides[0], t.strides[2])

    def region(self, name, layer, direction=0):
        """Where in the reserve an array begins, in bytes; None if there is none."""
        first = regions(self.spec, self.steps, self.samples)[0].get((name, layer, direction))
        return None if first is None else first * self.x.itemsize

    @property
    def outputs(self):
        return tuple(getattr(self, name) for name in self.results if getattr(self, name) is not None)

    @property
    def is_empty(self):
        return not any(t.size for t in self.outputs)

    @property
    def flops(self):
        """Of the products with matrices."""
        return 2 * self.steps * self.samples * sum(m.size for m in self.spec.matrices if len(m.shape) == 2)

    @property
    def bytes(self):
        """Bytes that must move: each distinct element read, each written."""
        return sum(getattr(self, name).nbytes for name in self.names if getattr(self, name) is not None)

    def operand_values(self, name):
        """Weights that neither die out nor explode; lengths that fit; a reserve as a forward pass leaves it."""
        from ..host.dtypes import STORAGE, numpy_dtype
        if name == "lengths":
            return -(-np.arange(1, self.samples + 1) * self.steps // self.samples)
        if name == "weights":
            bound = self.spec.hidden_size ** -0.5
            values = np.random.default_rng(4).uniform(-bound, bound, self.spec.weight_size)
        elif name == "reserve":
            values = self._reserve_values()
        else:
            return None
        return values.astype(numpy_dtype(self.dtype)).view(STORAGE[self.dtype])

    def _reserve_values(self):
        """Gates and states between 0 and 1, kept elements 1 or 0, and zeros past each sequence's end."""
        steps, samples = self.steps, self.samples
        where, size = regions(self.spec, steps, samples)
        values, ends = np.random.default_rng(5).uniform(0.1, 0.9, size), [*where.values(), size][1:]
        past = None if self.lengths is None else np.arange(steps)[:, None] >= self.operand_values("lengths")
        for ((name, _, _), first), end in zip(where.items(), ends):
            part = values[first:end].reshape(steps, samples, -1)
            if name == "kept":
                part[...] = part > 0.5
            if past is not None:
                part[past] = 0
        return values

    def __str__(self):
        strided = "".join(f" {name} strides {getattr(self, name).strides}" for name in self.names
                          if getattr(self, name) is not None and not getattr(self, name).is_packed)
        ways = " lengths" * (self.lengths is not None) + " training" * getattr(self, "training", False) + seeds.in_words(self)
        return f"{self.op} {self.steps}x{self.samples} {self.spec} {self.layout}{ways}{strided}"


@dataclass(frozen=True)
class RnnProblem(_Rnn):
    """Sequences through a network.

    Attributes
    ----------
    spec : RnnSpec
    x, h0, c0, weights, lengths, y, hn, cn, reserve : Tensor
        None where there is none; `reserve` is there in training.
    layout : "TNC" or "NTC"
    seed_array, offset_array : Tensor or None
        Where dropout's seed and offset are read from; None: they are numbers of the call.
    """
    spec: RnnSpec
    x: Tensor
    h0: Tensor | None
    c0: Tensor | None
    weights: Tensor
    lengths: Tensor | None
    y: Tensor
    hn: Tensor
    cn: Tensor | None = None
    reserve: Tensor | None = None
    layout: str = "TNC"
    seed_array: Tensor | None = None
    offset_array: Tensor | None = None
    op, results = OPS[0], ("y", "hn", "cn", "reserve")
    names = ("x", "h0", "c0", "weights", "lengths", *results)
    scalar_types = {"seed": "uint64", "offset": "uint64"}

    def __post_init__(self):
        self._check()
        seeds.check(self.op, self.seed_array, self.offset_array)

    @property
    def training(self):
        return self.reserve is not None


@dataclass(frozen=True)
class RnnDataProblem(_Rnn):
    """The gradients of `RnnProblem` by x and the first states; the reserve is updated.

    Attributes
    ----------
    spec : RnnSpec
    dy, dhn, dcn, x, h0, c0, y, weights, reserve, lengths, dx, dh0, dc0 : Tensor
        None where there is none.
    layout : "TNC" or "NTC"
    """
    spec: RnnSpec
    dy: Tensor
    dhn: Tensor | None
    dcn: Tensor | None
    x: Tensor
    h0: Tensor | None
    c0: Tensor | None
    y: Tensor
    weights: Tensor
    reserve: Tensor
    lengths: Tensor | None
    dx: Tensor
    dh0: Tensor
    dc0: Tensor | None = None
    layout: str = "TNC"
    op, results = OPS[1], ("dx", "dh0", "dc0")
    names = ("dy", "dhn", "dcn", "x", "h0", "c0", "y", "weights", "reserve", "lengths", *results)

    def __post_init__(self):
        self._check()


@dataclass(frozen=True)
class RnnWeightsProblem(_Rnn):
    """The gradient of `RnnProblem` by the weights, after `RnnDataProblem`.

    Attributes
    ----------
    spec : RnnSpec
    x, h0, y, reserve, lengths, dweights : Tensor
        None where there is none.
    layout : "TNC" or "NTC"
    """
    spec: RnnSpec
    x: Tensor
    h0: Tensor | None
    y: Tensor
    reserve: Tensor
    lengths: Tensor | None
    dweights: Tensor
    layout: str = "TNC"
    op, results = OPS[2], ("dweights",)
    names = ("x", "h0", "y", "reserve", "lengths", *results)

    def __post_init__(self):
        self._check()


def _shapes(op, spec, tensors, layout):
    """(T, N) of a call, once what they are read from has been looked at."""
    for name, t in tensors.items():
        if t is None:
            raise TypeError(f"{op}: {name}: got NoneType; expected an array")
    if not isinstance(spec, RnnSpec):
        raise TypeError(f"{op}: spec is a {type(spec).__name__}; expected an RnnSpec")
    one_of(op, "layout", layout, LAYOUTS)
    x = tensors["x"]
    if x.ndim != 3:
        raise ValueError(f"{op}: x has shape {x.shape}; expected ({', '.join(layout[:2])}, {spec.input_size})")
    return x.shape[layout.index("T")], x.shape[layout.index("N")]


def make_forward(tensors, outs, spec, layout, training, aliases):
    """`RnnProblem` of a call; `outs` is (y, hn[, cn][, reserve])."""
    x, h0, c0, weights, lengths, *arrays = tensors
    steps, samples = _shapes(OPS[0], spec, {"x": x, "weights": weights}, layout)
    states, lstm = spec.num_layers * spec.directions, spec.cell == "lstm"
    if outs is None:
        outs = [Tensor.packed((*x.shape[:2], spec.output_size), spec.dtype), Tensor.packed((states, samples, spec.state_size), spec.dtype)]
        outs += [Tensor.packed((states, samples, spec.hidden_size), spec.dtype)] * lstm
        outs += [Tensor.packed((regions(spec, steps, samples)[1],), spec.dtype)] * training
    y, hn, *rest = outs
    return RnnProblem(spec, x, h0, c0, weights, lengths, y, hn, rest[0] if lstm else None, rest[-1] if training else None, layout,
                      *arrays)


def make_data(tensors, outs, spec, layout, aliases):
    """`RnnDataProblem` of a call; `outs` is (dx, dh0[, dc0])."""
    dy, dhn, dcn, x, h0, c0, y, weights, reserve, lengths = tensors
    given = {"dy": dy, "x": x, "y": y, "weights": weights, "reserve": reserve}
    _, samples = _shapes(OPS[1], spec, given, layout)
    states, lstm = spec.num_layers * spec.directions, spec.cell == "lstm"
    if outs is None:
        outs = [Tensor.packed(x.shape, spec.dtype), Tensor.packed((states, samples, spec.state_size), spec.dtype)]
        outs += [Tensor.packed((states, samples, spec.hidden_size), spec.dtype)] * lstm
    dx, dh0, *rest = outs
    return RnnDataProblem(spec, dy, dhn, dcn, x, h0, c0, y, weights, reserve, lengths, dx, dh0, rest[0] if lstm else None, layout)


def make_weights(tensors, out, spec, layout, aliases):
    """`RnnWeightsProblem` of a call; `out` is dweights."""
    x, h0, y, reserve, lengths = tensors
    _shapes(OPS[2], spec, {"x": x, "y": y, "reserve": reserve}, layout)
    dweights = out if out is not None else Tensor.packed((spec.weight_size,), spec.dtype)
    return RnnWeightsProblem(spec, x, h0, y, reserve, lengths, dweights, layout)


def check_lengths(problem, arrays):
    """ValueError where a length is negative or more than T; waits for the device."""
    if arrays.get("lengths") is None:
        return
    from ..host.check import to_host
    lengths = to_host(arrays["lengths"])
    wrong = np.flatnonzero((lengths < 0) | (lengths > problem.steps))
    if wrong.size:
        raise ValueError(f"{problem.op}: lengths[{wrong[0]}] is {lengths[wrong[0]]}; expected 0 to {problem.steps}")
