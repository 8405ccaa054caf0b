"""The network: two convolutions and a classifier, forward and backward through the library, images as (N, H, W, C)."""
import importlib.util

import numpy as np

from .. import dispatch
from ..conv import ConvBiasProblem, ConvProblem, conv_bwd_bias, conv_bwd_data, conv_bwd_filter, conv_fwd
from ..device import SIMULATED
from ..device.epilogue import Activation
from ..host.arrays import kind_of
from ..matmul import matmul
from ..matmul._problem import make_problem
from . import kernels

WINDOW = dict(padding=1, layout="NHWC")  # of both convolutions, 3x3
SIDE = 8                                 # pixels of an image's side


class Arrays:
    """Whose the arrays are: NumPy's in the simulator; on a GPU Numba's, whose outputs come from the library's pool; torch's on both."""

    def __init__(self, framework=None):
        self.framework = framework or ("numpy" if SIMULATED else "numba")
        if (self.framework == "numpy") != SIMULATED and self.framework != "torch":
            need = "a GPU" if SIMULATED else "the simulator (NUMBA_ENABLE_CUDASIM=1)"
            raise ValueError(f"demo: --framework {self.framework} needs {need}")
        if self.framework == "torch" and importlib.util.find_spec("torch") is None:
            raise ValueError("demo: --framework torch: PyTorch is not installed")

    def put(self, a):
        """A copy of a NumPy array on the device."""
        a = np.array(a, order="C")
        if self.framework == "torch":
            import torch
            t = torch.from_numpy(a)
            return t if SIMULATED else t.cuda()
        if self.framework == "numba":
            from ..device import cuda
            return cuda.to_device(a)
        return a

    def get(self, a):
        """The values, as NumPy."""
        if self.framework == "torch":
            return a.cpu().numpy()
        return a.copy_to_host() if self.framework == "numba" else a


def initial_weights(channels, strides, classes, seed):
    """Of two convolutions with so many filters, 3x3, and the classifier, with their biases: He's initialisation, biases 0; float32."""
    rng = np.random.default_rng(seed)
    shapes = (channels[0], 3, 3, 1), (channels[1], 3, 3, channels[0]), ((SIDE // strides[0] // strides[1]) ** 2 * channels[1], classes)
    weights = []
    for shape, inputs, outputs in zip(shapes, (9, 9 * channels[0], shapes[2][0]), (*channels, classes)):
        weights += [rng.normal(0, np.sqrt(2 / inputs), shape), np.zeros(outputs)]
    return [a.astype(np.float32) for a in weights]


class Network:
    """Weights and velocities on the device; `train` makes one step.

    Attributes
    ----------
    problems : dict
        Name of each product and convolution -> its problem, filled in as they run.
    """

    def __init__(self, weights, arrays, strides, batch, rate, momentum):
        self.strides = strides
        self.arrays, self.batch, self.rate, self.momentum = arrays, batch, float(rate), float(momentum)
        self.weights = [arrays.put(w) for w in weights]
        self.velocities = [arrays.put(np.zeros_like(w)) for w in weights]
        self.classes = weights[4].shape[1]
        self.ones = arrays.put(np.ones(batch, np.float32))
        self.problems = {}

    # ---- the library's operations, remembered under a name for the report

    def product(self, name, a, b, **options):
        """`matmul`."""
        if name not in self.problems:
            self.problems[name] = _product(a, b, **options)
        return matmul(a, b, **options)

    def convolution(self, name, x, w, bias, stride):
        """`conv_fwd` with bias and ReLU in its epilogue."""
        y = conv_fwd(x, w, bias, stride=stride, activation="relu", **WINDOW)
        if name not in self.problems:
            self.problems[name] = _convolution("conv_fwd", x, w, y, stride, bias=_tensor(bias), activation=Activation("relu"))
        return y

    def gradients(self, name, x, w, dy, stride, velocities, wanted):
        """Those of a convolution's filter and bias, added to their velocities, and of its image where it is `wanted`.

        A filter's gradient and its velocity are one operation: ``velocity = bwd_filter(x, dy) / batch + momentum * velocity``, in place.
        """
        v, v_bias = velocities
        if name + " dw" not in self.problems:
            filters = dict(scaled=True, beta=True)
            self.problems[name + " dw"] = _convolution("conv_bwd_filter", x, w, dy, stride, **filters)
            self.problems[name + " db"] = ConvBiasProblem(_tensor(dy), _tensor(v_bias), "NHWC")
            if wanted:
                self.problems[name + " dx"] = _convolution("conv_bwd_data", x, w, dy, stride)
        conv_bwd_filter(x, dy, tuple(w.shape), stride=stride, alpha=1 / self.batch, beta=self.momentum, out=v, **WINDOW)
        self.run(kernels.add_momentum, (v_bias, conv_bwd_bias(dy, layout="NHWC")), ("float32", self.momentum),
                 ("float32", 1 / self.batch))
        return conv_bwd_data(dy, w, tuple(x.shape), stride=stride, **WINDOW) if wanted else None

    # ---- forward and backward

    def logits(self, x, name=""):
        """(first layer, second layer, logits); bias and ReLU are epilogues."""
        w1, b1, w2, b2, w3, b3 = self.weights
        first = self.convolution("conv1 y" + name, x, w1, b1, self.strides[0])
        second = self.convolution("conv2 y" + name, first, w2, b2, self.strides[1])
        return first, second, self.product("classifier y" + name, _rows(second), w3, bias=b3)

    def train(self, x, targets, losses):
        """One step of SGD with momentum; `losses` gets the loss of each row."""
        _, _, w2, _, w3, _ = self.weights
        v1, vb1, v2, vb2, v3, vb3 = self.velocities
        first, second, logits = self.logits(x)
        d_logits = self.empty_like(logits)
        kernels.run(kernels.softmax_cross_entropy, -(-self.batch // kernels.ROWS), (logits, targets, losses, d_logits),
                    (("int32", self.batch), ("int32", self.classes)))
        d_rows = self.product("classifier dx", d_logits, w3, transpose_b=True)
        self.product("classifier dw", _rows(second), d_logits, transpose_a=True, alpha=1 / self.batch, c=v3, beta=self.momentum, out=v3)
        self.product("classifier db", self.ones, d_logits, alpha=1 / self.batch, c=vb3, beta=self.momentum, out=vb3)
        self.run(kernels.relu_gradient, (second, d_rows))
        d_first = self.gradients("conv2", first, w2, d_rows.reshape(*second.shape), self.strides[1], (v2, vb2), True)
        self.run(kernels.relu_gradient, (first, d_first))
        self.gradients("conv1", x, self.weights[0], d_first, self.strides[0], (v1, vb1), False)
        for w, v in zip(self.weights, self.velocities):
            self.run(kernels.step, (w, v), ("float32", self.rate))

    def run(self, kernel, arrays, *constants):
        """One of the demo's kernels that take an element a thread."""
        n = int(np.prod(arrays[0].shape))
        kernels.run(kernel, -(-n // kernels.THREADS), arrays, (("int32", n), *constants))

    def empty_like(self, a):
        """An uninitialised array from the framework's allocator."""
        kind = kind_of(a)
        device = kind.device(a)
        return kind.empty(tuple(a.shape), "float32", device, kind.stream(device))

    def accuracy(self, x, targets):
        """Share of rows whose largest logit is the target's."""
        logits = self.logits(self.arrays.put(x), " (test)")[2]
        return float(np.mean(self.arrays.get(logits).argmax(axis=1) == targets))


def _rows(a):
    """An image's values as a row."""
    return a.reshape(a.shape[0], a.shape[1] * a.shape[2] * a.shape[3])


def _tensor(a):
    return None if a is None else kind_of(a).tensor(a)


def _convolution(op, x, w, y, stride, **more):
    return ConvProblem(op, _tensor(x), _tensor(w), _tensor(y), stride=stride, **WINDOW, **more)


def _product(a, b, *, bias=None, c=None, out=None, alpha=1.0, beta=1.0, transpose_a=False, transpose_b=False, activation=None):
    tensors = tuple(map(_tensor, (a, b, bias, c, None, None)))
    return make_problem(tensors, _tensor(out), transpose_a, transpose_b, activation, None, None, alpha != 1,
                        beta != 1 if c is not None else None, aliases=frozenset({"c"}) if out is not None else frozenset())


def choices(problems):
    """(name, problem, chosen candidate, measured milliseconds or None) of every operation."""
    from .. import find
    from ..host.device import current_device, device
    rows = []
    for name, problem in problems.items():
        op = problem.op
        chosen = next(c for c in dispatch.explain(op, problem) if c.chosen)
        measured = {algo: ms for ms, _, algo, _ in reversed(find.load(op, problem, device(current_device())))}
        rows.append((name, problem, chosen, measured.get(chosen.algo)))
    return rows
