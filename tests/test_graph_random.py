"""Random graphs: values against float64, the same twice to the last bit, and round trips as JSON and as serialized graphs."""
import math
import random

import numpy as np
import pytest
from graphs import T, array_of, execute, new_graph

import dnnkern.graph as cudnn
from dnnkern import dispatch
from dnnkern.device import HOST_MEMORY
from dnnkern.graph._engines import Engines
from dnnkern.graph._execute import Runner
from dnnkern.graph._ir import GraphSpec
from dnnkern.graph._partition import cuts

ERF = np.vectorize(math.erf)
UNARY = {"relu": lambda x: np.maximum(x, 0), "tanh": np.tanh, "sigmoid": lambda x: 1 / (1 + np.exp(-x)), "neg": np.negative, "abs": np.abs,
         "gelu": lambda x: x * (1 + ERF(x / math.sqrt(2))) / 2, "swish": lambda x: x / (1 + np.exp(-x))}
BINARY = {"add": np.add, "sub": np.subtract, "max": np.maximum, "min": np.minimum}
COUNT = 40


class Random:
    """A graph of random operations, its inputs, and the float64 values of all its tensors. None grows beyond a few units: errors stay those
    of single roundings, times the number of operations."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.io = self.random.choice([T.FLOAT, T.FLOAT, T.HALF, T.BFLOAT16])
        self.graph = new_graph(self.io)
        self.inputs, self.known = {}, []  # [(tensor, float64 values)]
        for _ in range(self.random.randint(1, 3)):
            self.input(tuple(self.random.choice([1, 2, 3, 5, 9]) for _ in range(3)))
        for _ in range(self.random.randint(1, 9)):
            self.random.choice([self.unary, self.unary, self.binary, self.binary, self.scaled, self.matmul, self.reduction, self.reshape,
                                self.transpose, self.slice, self.norm, self.softmax, self.conv, self.concatenate, self.positions])()
        read = {id(t) for node in self.graph.nodes for t in node.inputs.values()}
        self.outputs = [(t, v) for t, v in self.known if t not in self.inputs and (id(t) not in read or self.random.random() < 0.2)]
        if not self.outputs:
            self.unary()
            self.outputs = self.known[-1:]
        for t, _ in self.outputs:
            t.set_output(True)

    def input(self, dim, scale=1.0):
        from graphs import DTYPE

        from dnnkern.host.dtypes import numpy_dtype
        array = (self.numbers.uniform(-scale, scale, dim)).astype(numpy_dtype(DTYPE[self.io]))
        order = list(range(3))
        self.random.shuffle(order)
        array = np.ascontiguousarray(array.transpose(order)).transpose(np.argsort(order))
        stride = [s // array.itemsize for s in array.strides]
        t = self.graph.tensor(dim, stride, name=f"in{len(self.inputs)}")
        self.inputs[t] = array
        self.known.append((t, array.astype(float)))
        return self.known[-1]

    def any(self):
        return self.random.choice(self.known)

    def add(self, t, values):
        self.known.append((t, values))

    def unary(self):
        (t, v), name = self.any(), self.random.choice(list(UNARY))
        self.add(getattr(self.graph, name)(t), UNARY[name](v))

    def binary(self):
        (t, v), name = self.any(), self.random.choice(list(BINARY))
        fits = [(u, w) for u, w in self.known if all(m in (1, n) for m, n in zip(w.shape, v.shape))]
        u, w = self.random.choice(fits)
        self.add(getattr(self.graph, name)(t, u), np.clip(BINARY[name](v, w), -1e9, 1e9))

    def scaled(self):
        t, v = self.any()
        number = self.graph.tensor_scalar(self.random.choice([0.5, -0.25]), cudnn.scalar_type.COMPILE_TIME_CONST)
        self.add(self.graph.mul(t, number), v * number._value)

    def positions(self):
        (t, v), axis = self.any(), self.random.randrange(3)
        index = self.graph.gen_index(t, axis=axis).set_data_type(T.INT32)
        self.add(self.graph.min(t, index), np.minimum(v, np.indices(v.shape)[axis]))

    def matmul(self):
        t, v = self.any()
        u, w = self.input((self.random.choice([1, v.shape[0]]), v.shape[2], self.random.choice([1, 3, 8])), 1 / max(v.shape[2], 1))
        self.add(self.graph.matmul(t, u), v @ w)

    def conv(self):
        (t, v), padding = self.any(), self.random.choice([0, 1])
        width = self.random.randint(1, min(3, v.shape[2]))
        u, w = self.input((self.random.choice([1, 4, 8]), v.shape[1], width), 1 / (v.shape[1] * width))
        windows = np.lib.stride_tricks.sliding_window_view(np.pad(v, ((0, 0), (0, 0), (padding, padding))), width, 2)
        self.add(self.graph.conv_fprop(t, u, padding=[padding]), np.einsum("ncpr,kcr->nkp", windows, w))

    def concatenate(self):
        (t, v), axis = self.any(), self.random.randrange(3)
        fits = [(u, w) for u, w in self.known if (u is t or {u, t} <= set(self.inputs))
                and all(k == axis or m == n for k, (m, n) in enumerate(zip(w.shape, v.shape)))]  # of one type
        u, w = self.random.choice(fits)
        self.add(self.graph.concatenate([t, u], axis), np.concatenate([v, w], axis))

    def reduction(self):
        (t, v), mode = self.any(), self.random.choice(["AVG", "MAX", "AMAX", "MIN"])
        axes = tuple(sorted(self.random.sample(range(3), self.random.randint(1, 3))))
        function = {"AVG": np.mean, "MAX": np.max, "MIN": np.min, "AMAX": lambda x, axes, keepdims: np.abs(x).max(axes, keepdims=keepdims)}
        found = function[mode](v, axes, keepdims=True)
        y = self.graph.reduction(t, cudnn.reduction_mode[mode]).set_dim(list(found.shape))
        y.set_stride([found.shape[1] * found.shape[2], found.shape[2], 1])
        self.add(y, found)

    def reshape(self):
        t, v = self.any()
        dim = self.random.choice([(1, v.size, 1), (v.shape[1], v.shape[0], v.shape[2]), (1, 1, v.size)])
        y = self.graph.reshape(t, reshape_mode=cudnn.reshape_mode.LOGICAL).set_dim(list(dim))
        self.add(y, v.reshape(dim))

    def transpose(self):
        (t, v), order = self.any(), self.random.sample(range(3), 3)
        self.add(self.graph.transpose(t, order), v.transpose(order))

    def slice(self):
        t, v = self.any()
        parts = tuple(slice(self.random.randrange(n), n, self.random.choice([1, 2])) for n in v.shape)
        self.add(self.graph.slice(t, parts).set_stride([10 ** 6, 10 ** 3, 1]), v[parts])

    def norm(self):
        t, v = self.any()
        scale, s = self.input((1, 1, v.shape[2]))
        bias, b = self.input((1, 1, v.shape[2]))
        epsilon = self.graph.tensor_scalar(1.0, cudnn.scalar_type.COMPILE_TIME_CONST)
        y = self.graph.layernorm(cudnn.norm_forward_phase.INFERENCE, t, scale, bias, epsilon)[0]
        m = v.mean(2, keepdims=True)
        self.add(y, (v - m) / np.sqrt(((v - m) ** 2).mean(2, keepdims=True) + 1) * s + b)

    def softmax(self):
        (t, v), axis = self.any(), self.random.randrange(3)
        e = np.exp(v - v.max(axis, keepdims=True))
        self.add(self.graph.softmax(t, axis), e / e.sum(axis, keepdims=True))

    def value(self, t):
        """What an output is."""
        return next(v for u, v in self.outputs if u is t)

    def bound(self, t):
        """Of the error of an output. A half on the way, an output that others read, is rounded as a result of the type is."""
        rounding = {T.HALF: 2.0 ** -11, T.BFLOAT16: 2.0 ** -8, T.FLOAT: 2.0 ** -24}[self.io]
        return (2 * rounding + 2.0 ** -24 * 64 * len(self.graph.nodes)) * max(1.0, np.abs(self.value(t)).max(initial=0))

    def run(self, graph):
        results = {t: array_of(t) for t, _ in self.outputs}
        execute(graph, {**self.inputs, **results})
        return list(results.values())


def seeds(config, count, slow=0):
    """Parameters: `--seeds`, or `count` and so many slow ones."""
    asked = config.getoption("--seeds")
    return asked if asked is not None else [*range(count), *(pytest.param(k, marks=pytest.mark.slow) for k in range(count, slow))]


def pytest_generate_tests(metafunc):
    metafunc.parametrize("seed", seeds(metafunc.config, COUNT, 400))


def test_random_graphs(seed):
    """By the algorithms that a GPU would choose for one of eight, which take long to simulate; by the naive ones for the others."""
    made = Random(seed)
    with dispatch.prefer("device" if seed % 8 == 0 else "naive"):
        check(made, made.graph)


def uncut(made, graph):
    """The outputs by the cut of one node a part."""
    runner = Runner(Engines(graph.spec, cut=len(cuts(graph.spec)) - 1).first().build())
    results = {t: array_of(t) for t, _ in made.outputs}
    pack = {t.get_uid(): array for t, array in (*made.inputs.items(), *results.items())}
    runner.run(pack, np.empty(runner.plan.workspace, np.uint8), None)
    return list(results.values())


def check(made, graph):
    """Values, by the plan that is chosen and by one node a part; the same bytes twice, and of the graph serialized."""
    graph.build([cudnn.heur_mode.A])
    got, again = made.run(graph), made.run(graph)
    for (t, _), have, same in zip(made.outputs, got, again):
        assert have.tobytes() == same.tobytes()
        assert (np.abs(have.astype(float) - made.value(t)) <= made.bound(t)).all(), repr(graph)
    if HOST_MEMORY:
        for (t, _), have in zip(made.outputs, uncut(made, graph)):
            assert (np.abs(have.astype(float) - made.value(t)) <= made.bound(t)).all(), repr(graph)
    assert GraphSpec.from_json(repr(graph)) == graph.spec
    loaded = cudnn.pygraph()
    loaded.deserialize(graph.serialize())
    assert loaded.key() == graph.key()
    for have, same in zip(got, made.run(loaded)):
        assert have.tobytes() == same.tobytes()
