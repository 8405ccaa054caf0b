"""Random graphs of about twenty nodes of what kernels run together: prologues, chains with side outputs behind products, convolutions and
normalizations, reductions of these and among pointwise nodes, casts to 8 bits. Each tensor has its value in float64, and a bound of the
error that roundings on the way to it may make, element by element; so what is computed elsewhere, or of another operand, is beyond it."""
import math
import random

import numpy as np
from graphs import DTYPE, T, array_of, execute, new_graph
from test_graph_random import ERF, check, seeds

import dnnkern.graph as cudnn
from dnnkern import dispatch
from dnnkern.host.dtypes import ROUNDOFF, numpy_dtype

COUNT, NODES = 12, 20
U = 2.0 ** -22  # of functions in float32
UNARY = {"relu": (lambda x: np.maximum(x, 0), 1), "tanh": (np.tanh, 1), "sigmoid": (lambda x: 1 / (1 + np.exp(-x)), 0.25),
         "neg": (np.negative, 1), "abs": (np.abs, 1), "gelu": (lambda x: x * (1 + ERF(x / math.sqrt(2))) / 2, 1.2),
         "swish": (lambda x: x / (1 + np.exp(-x)), 1.2)}
SMALLEST = {T.FP8_E4M3: 2.0 ** -10, T.FP8_E5M2: 2.0 ** -17, T.HALF: 2.0 ** -25}


def pytest_generate_tests(metafunc):
    metafunc.parametrize("seed", seeds(metafunc.config, COUNT, 200))


class Fused:
    """A graph, its inputs, and of all its tensors the values and bounds of their errors."""

    def __init__(self, seed):
        self.random, self.numbers = random.Random(seed), np.random.default_rng(seed)
        self.io = self.random.choice([T.FLOAT, T.HALF, T.BFLOAT16, T.BFLOAT16])
        self.images = self.random.random() < 0.4
        self.graph, self.inputs, self.known, self.outputs = new_graph(self.io), {}, {}, []
        self.at = self.input(self.whole())
        while len(self.graph.nodes) < NODES:
            self.random.choice([self.product, self.product, self.chain, self.chain, self.rows, self.norm, self.eight_bits])()
            if self.random.random() < 0.3:
                self.reduced()
        self.output(self.unary(self.at, "relu"))  # which nothing has read: what an output's readers read is rounded

    def whole(self):
        if self.images:
            return self.random.choice([1, 2]), self.random.choice([8, 16]), self.random.choice([3, 6]), self.random.choice([4, 5])
        return self.random.choice([1, 2]), self.random.choice([4, 16, 17]), self.random.choice([8, 16, 24])

    # ---- tensors

    def input(self, dim, io=None, scale=1.0):
        """Images have channels last."""
        dtype = numpy_dtype(DTYPE[io or self.io])
        values = self.numbers.integers(-3, 4, dim) if dtype.kind == "i" else self.numbers.uniform(-scale, scale, dim)
        array = values.astype(dtype)
        if len(dim) == 4:
            array = np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1)
        t = self.graph.tensor(dim, [s // dtype.itemsize for s in array.strides], io or self.io, name=f"in{len(self.inputs)}")
        self.inputs[t] = array
        self.known[t] = array.astype(float), np.zeros(dim)
        return t

    def add(self, t, value, error):
        """A result, which as float32 is rounded once more; it may be a side output."""
        self.known[t] = value, error + U * (np.abs(value) + error)
        if self.random.random() < 0.15 and t.get_data_type() is T.NOT_SET:
            self.output(t)
        return t

    def typed(self, t, kind):
        """A result of this type: what reads it reads what is rounded."""
        t.set_data_type(kind)
        value, error = self.known[t]
        self.known[t] = value, error + 1.01 * ROUNDOFF[DTYPE[kind]] * (np.abs(value) + error) + SMALLEST.get(kind, 0)
        return t

    def output(self, t):
        if all(u is not t for u, _ in self.outputs):
            t.set_output(True)
            kind = t.get_data_type() if t.get_data_type() is not T.NOT_SET else self.io
            if t.get_data_type() is T.NOT_SET:
                self.typed(t, kind)
            self.outputs.append((t, self.known[t][0]))

    # ---- nodes

    def unary(self, t, name=None):
        name = name or self.random.choice(list(UNARY))
        (v, e), (function, slope) = self.known[t], UNARY[name]
        return self.add(getattr(self.graph, name)(t), function(v), slope * e + 4 * U)

    def binary(self, t, u, name=None):
        name = name or self.random.choice(["add", "sub", "max", "min", "mul"])
        (v, e), (w, f) = self.known[t], self.known[u]
        found = {"add": v + w, "sub": v - w, "max": np.maximum(v, w), "min": np.minimum(v, w), "mul": v * w}[name]
        error = np.abs(v) * f + np.abs(w) * e + e * f if name == "mul" else e + f
        return self.add(getattr(self.graph, name)(t, u), found, np.broadcast_to(error, found.shape))

    def scaled(self, t, number):
        v, e = self.known[t]
        scalar = self.graph.tensor_scalar(float(number), cudnn.scalar_type.COMPILE_TIME_CONST)
        return self.add(self.graph.mul(t, scalar), v * number, e * abs(number))

    def small(self, t):
        """The same in a small range."""
        largest = np.abs(self.known[t][0]).max(initial=0)
        return self.scaled(t, 2.0 ** -math.ceil(math.log2(largest))) if largest > 4 else t

    def beside(self):
        """Something that broadcasts to the tensor at hand: a new input, or what is known."""
        dim = self.known[self.at][0].shape
        fits = [t for t, (v, _) in self.known.items() if len(v.shape) == len(dim) and all(m in (1, n) for m, n in zip(v.shape, dim))]
        if fits and self.random.random() < 0.5:
            return self.random.choice(fits)
        return self.input(tuple(n if self.random.random() < 0.6 else 1 for n in dim), self.random.choice([self.io, T.FLOAT]))

    # ---- what is fused

    def chain(self):
        for _ in range(self.random.randint(1, 4)):
            self.at = self.unary(self.at) if self.random.random() < 0.5 else self.binary(self.at, self.beside())
        self.at = self.small(self.at)

    def prologue(self, t):
        """What a product reads, by nodes of its own."""
        for _ in range(self.random.randint(0, 2)):
            t = self.unary(t, self.random.choice(["relu", "neg", "tanh"])) if self.random.random() < 0.5 else self.scaled(t, 0.5)
        return self.typed(self.graph_identity(t), self.io) if self.io is not T.FLOAT else t

    def graph_identity(self, t):
        v, e = self.known[t]
        y = self.graph.identity(t)
        self.known[y] = v, e
        return y

    def product(self):
        self.at = self.prologue(self.at)
        (v, e), io = self.known[self.at], self.random.choice([self.io, self.io, T.INT8])
        if self.images:
            k, width, padding = self.random.choice([8, 16]), self.random.choice([1, 3]), None
            padding = width // 2
            weight = self.input((k, v.shape[1], width, width), io, 1 / math.sqrt(v.shape[1] * width * width))
        else:
            weight = self.input((self.random.choice([1, v.shape[0]]), v.shape[2], self.random.choice([8, 16, 24])), io,
                                1 / math.sqrt(v.shape[2]))
        given = weight
        if io is T.INT8:
            given = self.scaled(weight, 0.125)
            given = given if self.io is T.FLOAT else self.typed(given, self.io)
        w, f = self.known[given]
        if self.images:
            def multiply(a, b):
                windows = np.lib.stride_tricks.sliding_window_view(np.pad(a, ((0, 0), (0, 0), (padding,) * 2, (padding,) * 2)),
                                                                   (width, width), (2, 3))
                return np.einsum("ncpqrs,kcrs->nkpq", windows, b)
            t = self.graph.conv_fprop(self.at, given, padding=[padding] * 2, stride=[1, 1], dilation=[1, 1])
        else:
            multiply, t = np.matmul, self.graph.matmul(self.at, given)
        size = np.abs(v) + e
        error = multiply(e, np.abs(w)) + multiply(size, f) + 64 * U * multiply(size, np.abs(w) + f)
        self.at = self.small(self.add(t, multiply(v, w), error))
        if self.random.random() < 0.7:
            self.chain()

    def reduced(self):
        """Rows, columns or all of what is at hand, as a result, or read by what follows."""
        v, e = self.known[self.at]
        rank = v.ndim
        columns = 1 if self.images else rank - 1
        axes = self.random.choice([(columns,), tuple(a for a in range(rank) if a != columns), tuple(range(rank))])
        mode = self.random.choice(["ADD", "AVG", "MAX", "AMAX", "NORM2"])
        count = math.prod(v.shape[a] for a in axes)
        functions = {"ADD": np.sum, "AVG": np.mean, "MAX": np.max, "AMAX": lambda x, **k: np.abs(x).max(**k),
                     "NORM2": lambda x, **k: np.sqrt((x * x).sum(**k))}
        found = functions[mode](v, axis=axes, keepdims=True)
        total = e.sum(axis=axes, keepdims=True) + 16 * U * np.abs(v).sum(axis=axes, keepdims=True)
        error = {"ADD": total, "AVG": total / count, "NORM2": total}.get(mode, e.max(axis=axes, keepdims=True))
        y = self.graph.reduction(self.at, cudnn.reduction_mode[mode]).set_dim(list(found.shape))
        y.set_data_type(T.FLOAT)
        self.add(y, found, error)
        if self.random.random() < 0.5:
            self.output(y)
        else:
            self.at = self.small(self.binary(self.at, y, self.random.choice(["sub", "max", "add"])))

    def rows(self):
        """Softmax or a normalization written with nodes, along the last dim."""
        v, e = self.known[self.at]
        axis = v.ndim - 1

        def along(t, mode):
            (w, f), dim = self.known[t], [*v.shape[:-1], 1]
            y = self.graph.reduction(t, cudnn.reduction_mode[mode]).set_dim(dim).set_data_type(T.FLOAT)
            found = w.max(axis, keepdims=True) if mode == "MAX" else w.mean(axis, keepdims=True)
            return self.add(y, found, f.max(axis, keepdims=True) + 16 * U * np.abs(w).max(axis, keepdims=True))
        if self.random.random() < 0.5:
            least = self.binary(self.at, along(self.at, "MAX"), "sub")
            (w, f), t = self.known[least], self.graph.exp(least)
            top = self.add(t, np.exp(w), np.exp(w) * np.expm1(np.minimum(f, 5)) + 4 * U)
            mean = along(top, "AVG")
        else:
            top = self.at
            square = self.binary(top, top, "mul")
            mean = along(square, "AVG")
            one = self.graph.tensor_scalar(1.0, cudnn.scalar_type.COMPILE_TIME_CONST)
            w, f = self.known[mean]
            more = self.add(self.graph.add(mean, one), w + 1, f)
            w, f = self.known[more]
            mean = self.add(self.graph.sqrt(more), np.sqrt(w), f / 2 + 4 * U)
        (w, f), (d, g) = self.known[top], self.known[mean]
        self.at = self.add(self.graph.div(top, mean), w / d, (f + np.abs(w / d) * g) / np.maximum(d - g, 1e-3) + 4 * U * np.abs(w / d))

    def norm(self):
        """Of the last dim, or of channels; pointwise nodes in front of and behind it."""
        self.chain()
        v, e = self.known[self.at]
        axis = 1 if self.images else v.ndim - 1
        dim = tuple(n if a == axis else 1 for a, n in enumerate(v.shape))
        scale, bias = self.input(dim, T.FLOAT), self.input(dim, T.FLOAT)
        s, b = self.known[scale][0], self.known[bias][0]
        if self.images:
            mean, rstd = self.input(dim, T.FLOAT), self.input(dim, T.FLOAT)
            m, r = self.known[mean][0], self.known[rstd][0]
            t = self.graph.batchnorm_inference(self.at, mean, rstd, scale, bias)
            self.at = self.add(t, (v - m) * r * s + b, (e + 4 * U * (np.abs(v) + np.abs(m))) * np.abs(r * s) + 4 * U)
        else:
            epsilon = self.graph.tensor_scalar(1.0, cudnn.scalar_type.COMPILE_TIME_CONST)
            t = self.graph.layernorm(cudnn.norm_forward_phase.INFERENCE, self.at, scale, bias, epsilon)[0]
            c = v - v.mean(axis, keepdims=True)
            worst = e.max(axis, keepdims=True) + 16 * U * (1 + np.abs(v).max(axis, keepdims=True))
            # of c / sqrt(mean(c**2) + 1): its slope in each of the elements is at most 3, and all of them change
            self.at = self.add(t, c / np.sqrt((c * c).mean(axis, keepdims=True) + 1) * s + b,
                               6 * worst * (1 + np.abs(c)) * np.abs(s) + 4 * U)
        self.chain()

    def eight_bits(self):
        """A cast to an 8-bit float, which may be a result, and what reads it."""
        t = self.small(self.at)
        t = self.typed(self.graph_identity(t), self.random.choice([T.FP8_E4M3, T.FP8_E5M2]))
        if self.random.random() < 0.5:
            self.output(t)
        self.at = self.scaled(t, 0.5)

    # ---- as `test_graph_random.check` takes it

    def value(self, t):
        return self.known[t][0]

    def bound(self, t):
        return self.known[t][1]

    def run(self, graph):
        results = {t: array_of(t) for t, _ in self.outputs}
        execute(graph, {**self.inputs, **results})
        return list(results.values())


def test_random_graphs_of_what_is_fused(seed):
    """By the algorithms that a GPU would choose for one of twelve, which take long to simulate; by the naive ones for the others."""
    made = Fused(seed)
    with dispatch.prefer("device" if seed % 12 == 0 else "naive"):
        check(made, made.graph)
