"""Graphs that are built beside the same arithmetic in float64."""
import numpy as np
from graphs import DTYPE, T, array_of, channels_last, execute, like, new_graph

import dnnkern.graph as cudnn
from dnnkern.host.dtypes import ROUNDOFF, numpy_dtype

TRAINING = cudnn.norm_forward_phase.TRAINING
EPSILON = 1e-3


class Both:
    """A graph, and the float64 values of its tensors: {tensor: array}."""

    def __init__(self, io=T.HALF, intermediate=T.FLOAT):
        self.graph, self.io, self.random = new_graph(io, intermediate), io, np.random.default_rng(7)
        self.pack, self.values, self.results = {}, {}, []

    def input(self, shape, io=None, order=np.asarray, low=-1.0, high=1.0):
        """A tensor of random values; integers are from -8 to 8."""
        dtype = numpy_dtype(DTYPE[io or self.io])
        values = self.random.integers(-8, 9, shape) if dtype.kind in "iu" else self.random.uniform(low, high, shape)
        return self.given(order(values.astype(dtype)))

    def given(self, array):
        t = like(self.graph, array)
        self.pack[t], self.values[t] = array, array.astype(float)
        return t

    def weight(self, channels, rank=4, low=-1.0, high=1.0, io=T.FLOAT):
        """(1, C, 1, ..)"""
        return self.input((1, channels, *(1,) * (rank - 2)), io, low=low, high=high)

    def number(self, value, rank=4):
        """Passed by value."""
        t = self.graph.tensor([1] * rank, [1] * rank, T.FLOAT, is_pass_by_value=True)
        self.pack[t], self.values[t] = np.full([1] * rank, value, np.float32), np.float64(np.float32(value))
        return t

    def rounded(self, t, dtype=np.float16):
        """A tensor of this type: what reads it reads what is stored."""
        t.set_data_type(dtype)
        self.values[t] = self.values[t].astype(dtype).astype(float)
        return t

    def node(self, method, value, *operands, **more):
        """One node with one result, and its value: a function of those of the operands."""
        t = getattr(self.graph, method)(*operands, **more)
        given = operands[0] if isinstance(operands[0], list) else operands
        self.values[t] = value(*[self.values[o] for o in given if isinstance(o, cudnn.tensor)])
        return t

    def known(self, tensors, values):
        """Results of a node with several."""
        self.values.update((t, np.asarray(v, float)) for t, v in zip(tensors, values) if t is not None)
        return tensors

    def output(self, *tensors, dtype=None):
        for t in tensors:
            t.set_output(True)
            if dtype is not None:
                t.set_data_type(dtype)
            self.results.append(t)

    # ---- functions

    def relu(self, x):
        return self.node("relu", lambda v: np.maximum(v, 0), x)

    def swish(self, x):
        return self.node("swish", lambda v: v / (1 + np.exp(-v)), x)

    def binary(self, name, a, b):
        return self.node(name, {"add": np.add, "mul": np.multiply, "sub": np.subtract, "bias": np.add, "scale": np.multiply}[name], a, b)

    # ---- normalizations

    def batchnorm(self, x, scale, bias, running=()):
        axes, v = (0, *range(2, self.values[x].ndim)), self.values[x]
        mean, var = v.mean(axes, keepdims=True), v.var(axes, keepdims=True)
        epsilon, momentum = self.number(EPSILON), self.number(0.25) if running else None
        outs = self.graph.batchnorm(x, scale, bias, *(running or (None, None)), epsilon, momentum)
        rstd, count = 1 / np.sqrt(var + self.values[epsilon]), v.size // v.shape[1]
        moved = [0.75 * self.values[t] + 0.25 * new for t, new in zip(running, (mean, var * count / (count - 1)))]
        return self.known(outs, ((v - mean) * rstd * self.values[scale] + self.values[bias], mean, rstd, *moved))

    def rows(self, method, x, scale, bias=None):
        """Layer or RMS normalization of (N, C, 1, 1), training."""
        v = self.values[x]
        mean = v.mean(1, keepdims=True) if method != "rmsnorm" else 0.0
        epsilon = self.number(EPSILON)
        rstd = 1 / np.sqrt(((v - mean) ** 2).mean(1, keepdims=True) + self.values[epsilon])
        outs = getattr(self.graph, method)(TRAINING, x, scale, bias, epsilon)
        y = (v - mean) * rstd * self.values[scale] + (0 if bias is None else self.values[bias])
        return self.known(outs, (y, mean, rstd) if method != "rmsnorm" else (y, rstd))

    # ---- running

    def check(self, steps=None, launches=None, factor=4.0):
        """Build and run it; results are within roundings of their types. `steps` are the operations of the plan's steps."""
        self.graph.build([cudnn.heur_mode.A, cudnn.heur_mode.FALLBACK])
        ops = [part.op for part in self.graph.explain().parts]
        assert not steps or ops == steps, str(self.graph.explain())
        if launches is not None:
            assert count_launches(self.graph) == launches, str(self.graph.explain())
        arrays = {t: array_of(t) for t in self.results}
        execute(self.graph, {**self.pack, **arrays})
        for t, got in arrays.items():
            want = self.values[t]
            bound = factor * max(ROUNDOFF.get(got.dtype.name, 0), 2.0 ** -24 * 16) * max(np.abs(want).max(), 1e-3)
            worst = np.abs(got.astype(float) - want).max()
            assert got.shape == want.shape and worst <= bound, (t.get_name(), worst, bound)


def count_launches(graph):
    """Kernels of the plan that runs."""
    plan = graph._engines.first()
    return sum(len(a.build(step.problem, plan.device, a.config)) for step, a in zip(plan.steps, plan.algorithms) if a)


def image(both, order=channels_last, **more):
    return both.input((3, 8, 4, 5), order=order, **more)


class Patterns(dict):
    """Name -> (function that makes the pattern of a `Both`, operations of the steps, launches of all of them, type in memory)."""

    def __call__(self, *steps, launches=None, io=T.HALF):
        """Decorate a function that makes a pattern."""
        def define(function):
            self[function.__name__] = function, list(steps), launches, io
            return function
        return define

    def check(self, name):
        """Values against float64, and the steps."""
        function, steps, launches, io = self[name]
        both = Both(io)
        function(both)
        both.check(steps, launches)
