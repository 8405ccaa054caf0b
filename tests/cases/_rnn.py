"""What the cases of the three passes of recurrent networks share."""
import math
from dataclasses import dataclass, field

import numpy as np

from . import Case, lay, rounded
from ._rnn_net import GATES, SLOTS, Bounded, Net

SHORT = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "float64": "f64"}
KEYWORDS = "num_layers", "bidirectional", "proj_size", "bias", "input_mode", "dropout", "clip", "math"


@dataclass(frozen=True)
class _Rnn(Case):
    """One call; `spec` are keywords of `RnnSpec`, `absent` names of operands that are left out, layouts are keywords of `lay`; `read` are
    which of seed and offset are in memory."""
    id: str
    cell: str
    sizes: tuple   # input, hidden
    steps: int
    samples: int
    dtype: str = "float32"
    spec_words: tuple = ()
    lengths: tuple | None = None
    layout: str = "TNC"
    absent: frozenset = frozenset()
    training: bool = True
    offset: int = 0
    read: tuple = ()
    arrays: dict = field(default_factory=dict, hash=False)
    trivial = True  # states of relu, sequences without steps
    seed = 11

    @property
    def spec(self):
        from dnnkern.rnn import RnnSpec
        return RnnSpec(self.cell, *self.sizes, dtype=self.dtype, **dict(self.spec_words))

    @property
    def exact(self):
        """Sums of integers stay integers in relu alone."""
        return self.cell == "relu" and self.dtype in ("float32", "float64") and not self.spec.math

    @property
    def net(self):
        lengths = self.lengths if self.lengths is not None else (self.steps,) * self.samples
        return Net(self.spec, self.steps, lengths, self.seed, self.offset, self.training)

    @property
    def work(self):
        return 3 * self.problem().flops

    def states(self, size):
        s = self.spec
        return s.num_layers * s.directions, self.samples, size

    def shapes(self):
        """{name: shape} of all arrays."""
        from dnnkern.rnn._problem import regions
        s = self.spec
        whole = (self.steps, self.samples) if self.layout == "TNC" else (self.samples, self.steps)
        h, c, y = self.states(s.state_size), self.states(s.hidden_size), (*whole, s.output_size)
        return {"x": (*whole, s.input_size), "h0": h, "c0": c, "weights": (s.weight_size,), "lengths": (self.samples,), "y": y, "hn": h,
                "cn": c, "reserve": (regions(s, self.steps, self.samples)[1],), "dy": y, "dhn": h, "dcn": c, "dx": (*whole, s.input_size),
                "dh0": h, "dc0": c, "dweights": (s.weight_size,), "seed": (1,), "offset": (1,)}

    def missing(self, name):
        lstm = self.cell == "lstm"
        return (name in self.absent or name in ("c0", "cn", "dcn", "dc0") and not lstm or name == "lengths" and self.lengths is None
                or name == "reserve" and not self.training or name in ("seed", "offset") and name not in self.read)

    def place_of(self, name):
        dtype = {"lengths": "int32", "seed": "int64", "offset": "int64"}.get(name, self.dtype)
        return lay(self.shapes()[name], dtype, **self.arrays.get(name, {}))

    def inputs(self):
        return {name: None if self.missing(name) else self.place_of(name) for name in self.names}

    def outputs(self):
        return {name: self.place_of(name) for name in self.results if not self.missing(name)}

    def tensors(self, names):
        """Descriptors by name."""
        from dnnkern.host.tensor import Tensor
        places = {name: None if self.missing(name) else self.place_of(name) for name in names}
        return tuple(None if p is None else Tensor(p.shape, p.strides, p.dtype, p.alignment) for p in places.values())

    def given(self, mode):
        """Values of x, the first states, the weights and the gradients: integers that stay small, or random ones."""
        rng, s, found = np.random.default_rng(list(self.id.encode())), self.spec, {}
        shapes = self.shapes()
        for name in ("x", "h0", "c0", "dy", "dhn", "dcn"):
            value = rng.integers(-2, 3, shapes[name]).astype(float) if mode == "exact" else rng.standard_normal(shapes[name])
            found[name] = np.zeros(shapes[name]) if self.missing(name) else rounded(value, self.dtype)
        weights = np.zeros(s.weight_size)
        for m in s.matrices:
            if mode == "float":
                value = rng.uniform(-1, 1, m.shape) * min(1.0, 2.5 / m.shape[-1])
            elif m.name.startswith("w_hh"):  # a permutation with signs: states neither grow nor die out
                value = np.eye(*m.shape)[:, rng.permutation(m.shape[1])] * rng.choice([-1.0, 1.0, 1.0], m.shape[1])
            else:
                value = rng.integers(-1, 2, m.shape) * (rng.random(m.shape) < 0.6)
            weights[m.first:m.first + m.size] = value.reshape(-1)
        found["weights"] = rounded(weights, self.dtype)
        found["lengths"] = np.asarray(self.lengths if self.lengths is not None else (), float)
        found.update(seed=np.array([self.seed], float), offset=np.array([self.offset], float))
        return found

    def by_steps(self, array):
        """(T, N, ...) of an array in the case's layout, or back."""
        return array if self.layout == "TNC" else array.swapaxes(0, 1)

    def run_forward(self, given):
        return self.net.forward(self.by_steps(given["x"]), given["h0"], given["c0"], given["weights"])

    def flat(self, saved):
        """A reserve as one array: (values, errors)."""
        from dnnkern.rnn._problem import regions
        where, size = regions(self.spec, self.steps, self.samples)
        value, error = np.zeros(size), np.zeros(size)
        assert set(where) == set(saved), (sorted(where), sorted(saved))
        for key, first in where.items():
            b = saved[key]
            value[first:first + b.value.size], error[first:first + b.value.size] = b.value.reshape(-1), b.error.reshape(-1)
        return value, error

    def apart(self, reserve):
        """The parts of a reserve that is one array."""
        from dnnkern.rnn._problem import regions
        s, where = self.spec, regions(self.spec, self.steps, self.samples)[0]
        sizes = {"gates": SLOTS[s.cell] * s.hidden_size, "cells": s.hidden_size, "hidden": s.hidden_size, "projected": s.proj_size,
                 "outputs": s.output_size, "kept": s.output_size}
        shape = self.steps, self.samples
        return {key: Bounded(reserve[first:first + math.prod(shape) * sizes[key[0]]].reshape(*shape, sizes[key[0]]))
                for key, first in where.items()}

    def after_forward(self, given):
        """What the passes backward are given: {y, reserve}, rounded."""
        y, _, _, saved = self.run_forward(given)
        return {"y": rounded(self.by_steps(y.value), self.dtype), "reserve": rounded(self.flat(saved)[0], self.dtype)}

    def run_backward(self, values):
        """The definition's backward pass on given values."""
        names = ("dhn", "dcn", "h0", "c0")
        zeros = {name: values[name] if values.get(name) is not None else np.zeros(self.shapes()[name]) for name in names}
        return self.net.backward(self.by_steps(values["dy"]), zeros["dhn"], zeros["dcn"], zeros["h0"], zeros["c0"],
                                 self.by_steps(values["y"]), values["weights"], self.apart(values["reserve"]))

    def chosen(self, values, mode):
        """Only this operation's operands, None for those that are left out; integers in exact mode, whatever the cell makes of such."""
        values = {name: None if self.missing(name) else values[name] for name in self.names}
        return {name: np.rint(v) if mode == "exact" and v is not None else v for name, v in values.items()}

    def loss(self, given, **changed):
        """sum(y * dy) + sum(hn * dhn) + sum(cn * dcn), in float64."""
        given = {**given, **changed}
        y, hn, cn, _ = self.run_forward(given)
        total = (self.by_steps(y.value) * given["dy"]).sum() + (hn.value * given["dhn"]).sum()
        return total + ((cn.value * given["dcn"]).sum() if self.cell == "lstm" else 0)

    def differences(self, names, analytic):
        """Derivatives along a direction, of the operands in turn."""
        given, rng = self.given("float"), np.random.default_rng(3)
        for name, gradient in zip(names, analytic(given)):
            v, step = rng.uniform(-1, 1, gradient.shape), 1e-6
            above, below = (self.loss(given, **{name: given[name] + sign * step * v}) for sign in (1, -1))
            bound = 1e-5 * (1 + np.abs(gradient).sum())
            yield np.asarray((gradient * v).sum()), np.asarray((above - below) / (2 * step)), np.asarray(bound)

    @property
    def differentiable(self):
        return self.steps * self.samples * self.spec.weight_size <= 4000 and self.samples and not self.spec.clip

    def backward_of(self, given):
        """(gradients, the reserve afterwards) in float64 from unrounded values."""
        y, _, _, saved = self.run_forward(given)
        exact = {key: Bounded(b.value) for key, b in saved.items()}
        dx, dh0, dc0, after = self.net.backward(self.by_steps(given["dy"]), given["dhn"], given["dcn"], given["h0"], given["c0"], y.value,
                                                given["weights"], exact)
        return (self.by_steps(dx.value), dh0.value, dc0.value), y.value, {key: Bounded(b.value) for key, b in after.items()}


class Forward(_Rnn):
    """A sequence through a network."""
    op = "rnn_fwd"
    names, results = ("x", "h0", "c0", "weights", "lengths", "seed", "offset"), ("y", "hn", "cn", "reserve")

    def problem(self):
        from dnnkern.rnn._problem import make_forward
        outs = tuple(t for t in self.tensors(self.results) if t is not None)
        return make_forward(self.tensors(self.names), outs, self.spec, self.layout, self.training, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import rnn_fwd
        results = rnn_fwd(self.spec, arrays["x"], arrays["h0"], arrays["c0"], arrays["weights"], lengths=arrays["lengths"],
                          layout=self.layout, training=self.training, out=out,
                          **{name: getattr(self, name) if arrays[name] is None else arrays[name] for name in ("seed", "offset")}, **tail)
        return tuple(r for r in results if r is not None)

    def values(self, mode):
        return self.chosen(self.given(mode), mode)

    def reference(self, values, tensor_cores=False):
        zeros = {name: values[name] if values[name] is not None else np.zeros(self.shapes()[name]) for name in ("h0", "c0")}
        y, hn, cn, saved = self.run_forward({**values, **zeros})
        y = Bounded(self.by_steps(y.value), self.by_steps(y.error))
        found = {"y": y, "hn": hn, "cn": cn, "reserve": Bounded(*self.flat(saved)) if self.training else None}
        return ({name: found[name].value for name in self.outputs()}, {name: found[name].error for name in self.outputs()})


class Data(_Rnn):
    """The gradients by x and the first states."""
    op = "rnn_bwd_data"
    names = ("dy", "dhn", "dcn", "x", "h0", "c0", "y", "weights", "reserve", "lengths")
    results = ("dx", "dh0", "dc0", "reserve")

    def in_place(self):
        return {"reserve": "reserve"}

    def problem(self):
        from dnnkern.rnn._problem import make_data
        outs = tuple(t for t in self.tensors(self.results[:3]) if t is not None)
        return make_data(self.tensors(self.names), outs, self.spec, self.layout, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import rnn_bwd_data
        a = arrays
        results = rnn_bwd_data(self.spec, a["dy"], a["dhn"], a["dcn"], a["x"], a["h0"], a["c0"], a["y"], a["weights"], a["reserve"],
                               lengths=a["lengths"], layout=self.layout, out=out and out[:-1], **tail)
        return tuple(r for r in results if r is not None)

    def values(self, mode):
        given = self.given(mode)
        return self.chosen({**given, **self.after_forward(given)}, mode)

    def reference(self, values, tensor_cores=False):
        dx, dh0, dc0, after = self.run_backward(values)
        dx = Bounded(self.by_steps(dx.value), self.by_steps(dx.error))
        found = {"dx": dx, "dh0": dh0, "dc0": dc0, "reserve": Bounded(*self.flat(after))}
        return ({name: found[name].value for name in self.outputs()}, {name: found[name].error for name in self.outputs()})

    @property
    def gradient(self):
        if not self.differentiable:
            return None
        names = tuple(n for n in ("x", "h0", "c0") if not self.missing(n))
        order = {"x": 0, "h0": 1, "c0": 2}
        return lambda values: self.differences(names, lambda given: [self.backward_of(given)[0][order[n]] for n in names])


class Weights(_Rnn):
    """The gradient by the weights."""
    op = "rnn_bwd_weights"
    names, results = ("x", "h0", "y", "reserve", "lengths"), ("dweights",)

    def problem(self):
        from dnnkern.rnn._problem import make_weights
        return make_weights(self.tensors(self.names), self.tensors(self.results)[0], self.spec, self.layout, frozenset())

    def call(self, arrays, out=None, **tail):
        from dnnkern import rnn_bwd_weights
        return rnn_bwd_weights(self.spec, arrays["x"], arrays["h0"], arrays["y"], arrays["reserve"], lengths=arrays["lengths"],
                               layout=self.layout, out=out[0] if isinstance(out, tuple) else out, **tail)

    def values(self, mode):
        given = self.given(mode)
        given = {**given, **self.after_forward(given)}
        *_, after = self.run_backward(given)
        return self.chosen({**given, "reserve": rounded(self.flat(after)[0], self.dtype)}, mode)

    def reference(self, values, tensor_cores=False):
        h0 = values["h0"] if values["h0"] is not None else np.zeros(self.shapes()["h0"])
        found = self.net.weights_gradient(self.by_steps(values["x"]), h0, self.by_steps(values["y"]), self.apart(values["reserve"]))
        return {"dweights": found.value}, {"dweights": found.error}

    @property
    def gradient(self):
        if not self.differentiable:
            return None

        def analytic(given):
            _, y, after = self.backward_of(given)
            return [self.net.weights_gradient(self.by_steps(given["x"]), given["h0"], y, after).value]
        return lambda values: self.differences(("weights",), analytic)


def table(kind):
    """The cases of a pass."""
    def case(name, cell, sizes, steps, samples, dtype="float32", training=True, **more):
        words = {k: more.pop(k) for k in list(more) if k in KEYWORDS}
        text = f"{name}-{cell}-t{steps}n{samples}i{sizes[0]}h{sizes[1]}" + "-inference" * (not training)
        found.append(kind(f"{text}-{SHORT[dtype]}", cell, sizes, steps, samples, dtype, tuple(words.items()), training=training, **more))

    found, dtypes = [], ("float32", "float16", "bfloat16", "float64")
    for k, cell in enumerate(GATES):
        for j, dtype in enumerate(dtypes):
            case("plain", cell, (3 + j, 5), 4, 2, dtype)
        case("two-layers-both-ways", cell, (3, 4), 3, 2, dtypes[k], num_layers=2, bidirectional=True)
        case("lengths", cell, (2, 4), 4, 4, dtypes[(k + 1) % 4], lengths=(2, 4, 0, 3), bidirectional=k % 2 == 0)
        case("dropout", cell, (3, 3), 3, 3, dtypes[(k + 2) % 4], num_layers=3, dropout=0.5)
        case("ntc", cell, (3, 4), 3, 2, dtypes[(k + 3) % 4], layout="NTC", lengths=(3, 1) if k % 2 else None)
        case("skip", cell, (4, 4), 3, 2, dtypes[k], input_mode="skip", bidirectional=k % 2 == 1)
        case("no-states", cell, (3, 4), 3, 2, dtypes[(k + 1) % 4], absent=frozenset(("h0", "c0", "dhn", "dcn")))
        for bias in ("none", "single_input", "single_rec"):
            case(f"bias-{bias}", cell, (2, 3), 2, 2, dtypes[k], bias=bias)
    for j, dtype in enumerate(dtypes):
        case("projection", "lstm", (3, 5), 3, 2, dtype, proj_size=2, num_layers=1 + j % 2, bidirectional=j > 1)
        case("clip", "lstm", (3, 5), 4, 2, dtype, clip=0.2 if j % 2 else (-0.1, 0.4))
    for k, cell in enumerate(GATES):
        for j, dtype in enumerate(dtypes):
            case("whole-units", cell, (3, 8), 3, 3, dtype, bidirectional=j == k, lengths=(1, 3, 2) if (j + k) % 2 else None)
    case("projection-lengths-dropout", "lstm", (3, 5), 3, 3, proj_size=3, num_layers=2, bidirectional=True, lengths=(1, 3, 2), dropout=0.25)
    case("one-step", "gru", (4, 8), 1, 1)
    case("one-unit", "lstm", (1, 1), 5, 3)
    case("wide", "gru", (16, 32), 2, 5)
    case("wide", "lstm", (8, 40), 2, 3, "float16")
    case("wide", "gru", (8, 16), 2, 3, "bfloat16", bidirectional=True, lengths=(2, 0, 1))
    case("wide-projection", "lstm", (5, 32), 3, 3, "float16", proj_size=16, bidirectional=True, lengths=(3, 0, 2))
    case("wide-projection", "lstm", (4, 16), 3, 2, proj_size=8, num_layers=2)
    case("layers", "lstm", (5, 16), 4, 3, "float16", num_layers=3, lengths=(4, 0, 2))
    case("layers", "gru", (6, 8), 3, 2, num_layers=2)
    for k, cell in enumerate(GATES):
        case("tf32", cell, (8, 16), 3, 4, math="tf32", bidirectional=k == 1, num_layers=1 + k // 2)
    case("tf32-projection", "lstm", (8, 16), 2, 4, math="tf32", proj_size=8)
    case("tf32-wide", "gru", (8, 36), 2, 9, math="tf32", lengths=(2, 0, 1, 2, 2, 1, 2, 2, 1))
    case("tf32-means-nothing", "gru", (8, 8), 2, 2, "float16", math="tf32")
    case("no-steps", "lstm", (3, 4), 0, 2, num_layers=2)
    case("no-sequences", "gru", (3, 4), 3, 0)
    strided = {"x": {"step": 2, "gap": 1}, "y": {"gap": 3}, "h0": {"step": 2}, "c0": {"gap": 1}, "hn": {"gap": 2}, "cn": {"step": 3},
               "dy": {"order": (1, 0, 2), "gap": 2}, "dx": {"step": 2}, "dhn": {"gap": 1}, "dcn": {"flip": (1,)}, "dh0": {"gap": 5},
               "dc0": {"gap": 1}}
    case("strided", "lstm", (3, 4), 3, 2, arrays=strided, bidirectional=True)
    case("backwards", "gru", (3, 4), 3, 2, "bfloat16", arrays={"x": {"flip": (0, 2)}, "dy": {"flip": (1,)}, "h0": {"flip": (0,)}})
    case("misaligned", "lstm", (8, 8), 2, 2, "float16", arrays={name: {"misaligned": 1} for name in strided})
    opaque = "weights", "reserve", "dweights"
    case("misaligned-reserve", "lstm", (8, 8), 3, 2, "float16", num_layers=2, arrays={name: {"misaligned": 1} for name in opaque})
    case("misaligned-reserve", "gru", (8, 8), 3, 2, num_layers=2, arrays={name: {"misaligned": 1} for name in opaque[1:]})
    case("reserve-of-odd-parts", "lstm", (8, 9), 3, 1, "bfloat16", num_layers=2, proj_size=8)
    if kind is Forward:
        for k, cell in enumerate(GATES):
            case("plain", cell, (3, 5), 3, 2, dtypes[k], training=False, num_layers=1 + k, bidirectional=k == 2)
        case("projection", "lstm", (3, 5), 3, 2, training=False, proj_size=2, num_layers=2, lengths=(3, 1))
        case("layers", "gru", (4, 16), 3, 2, "bfloat16", training=False, num_layers=4)
        case("no-dropout", "gru", (3, 4), 2, 2, training=False, num_layers=2, dropout=0.5)
        case("no-dropout-read", "gru", (3, 4), 2, 2, training=False, num_layers=2, dropout=0.5, read=("seed", "offset"))
        for k, read in enumerate((("seed",), ("offset",), ("seed", "offset"))):
            offset = (0, -2, 2 ** 40 + 1)[k]
            case("dropout-read", "lstm", (3, 4), 3, 2, dtypes[k], num_layers=3 - k // 2, dropout=0.5, offset=offset, read=read)
    return found


def large(kind):
    """Cases for a GPU."""
    found = []
    for k, cell in enumerate(GATES):
        for dtype in ("float32", "bfloat16", "float16"):
            for sizes, steps, samples, words in (((64, 128), 20, 33, {}), ((48, 64), 9, 7, {"num_layers": 2, "bidirectional": True}),
                                                 ((100, 200), 5, 3, {})):
                lengths = tuple(int(v) for v in np.random.default_rng(k).integers(0, steps + 1, samples)) if words else None
                text = f"larger-{cell}-t{steps}n{samples}i{sizes[0]}h{sizes[1]}-{SHORT[dtype]}"
                found.append(kind(text, cell, sizes, steps, samples, dtype, tuple(words.items()), lengths=lengths))
    return found
