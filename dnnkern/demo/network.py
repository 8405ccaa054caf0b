"""The perceptron: two layers, forward and backward through `dnnkern.matmul` and its epilogues."""
import importlib.util

import numpy as np

from .. import dispatch
from ..device import SIMULATED
from ..host.arrays import kind_of
from ..matmul import matmul
from ..matmul._problem import make_problem
from . import kernels


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


def initial_weights(inputs, hidden, classes, seed):
    """He's initialisation, biases 0; float32."""
    rng = np.random.default_rng(seed)
    w1 = rng.normal(0, np.sqrt(2 / inputs), (inputs, hidden))
    w2 = rng.normal(0, np.sqrt(2 / hidden), (hidden, classes))
    return [a.astype(np.float32) for a in (w1, np.zeros(hidden), w2, np.zeros(classes))]


class Network:
    """Weights and velocities on the device; `train` makes one step.

    Attributes
    ----------
    problems : dict
        Name of each product -> its matmul problem, filled in as they run.
    """

    def __init__(self, weights, arrays, batch, rate, momentum):
        self.arrays, self.batch, self.rate, self.momentum = arrays, batch, float(rate), float(momentum)
        self.weights = [arrays.put(w) for w in weights]
        self.velocities = [arrays.put(np.zeros_like(w)) for w in weights]
        self.hidden, self.classes = weights[2].shape
        self.ones = arrays.put(np.ones(batch, np.float32))
        self.problems = {}

    def product(self, name, a, b, **options):
        """`matmul`, remembered under a name for the report."""
        if name not in self.problems:
            self.problems[name] = _problem(a, b, **options)
        return matmul(a, b, **options)

    def logits(self, x, name=""):
        """(hidden layer, logits); bias and ReLU are the products' epilogues."""
        w1, b1, w2, b2 = self.weights
        h = self.product("forward 1" + name, x, w1, bias=b1, activation="relu")
        return h, self.product("forward 2" + name, h, w2, bias=b2)

    def train(self, x, targets, losses):
        """One step of SGD with momentum; `losses` gets the loss of each row.

        A gradient and its velocity are one product: ``velocity = a.T @ b / batch + momentum * velocity``, in place. That of a bias is
        a product with ones.
        """
        w2 = self.weights[2]
        v1, vb1, v2, vb2 = self.velocities
        h, logits = self.logits(x)
        d_logits = self.empty_like(logits)
        kernels.run(kernels.softmax_cross_entropy, -(-self.batch // kernels.ROWS), (logits, targets, losses, d_logits),
                    (("int32", self.batch), ("int32", self.classes)))
        dh = self.product("backward h", d_logits, w2, transpose_b=True)
        n = self.batch * self.hidden
        kernels.run(kernels.relu_gradient, -(-n // kernels.THREADS), (h, dh), (("int32", n),))
        for name, a, b, v in (("gradient w2", h, d_logits, v2), ("gradient w1", x, dh, v1)):
            self.product(name, a, b, transpose_a=True, alpha=1 / self.batch, c=v, beta=self.momentum, out=v)
        for name, b, v in (("gradient b2", d_logits, vb2), ("gradient b1", dh, vb1)):
            self.product(name, self.ones, b, alpha=1 / self.batch, c=v, beta=self.momentum, out=v)
        for w, v in zip(self.weights, self.velocities):
            n = int(np.prod(w.shape))
            kernels.run(kernels.step, -(-n // kernels.THREADS), (w, v), (("int32", n), ("float32", self.rate)))

    def empty_like(self, a):
        """An uninitialised array from the framework's allocator."""
        kind = kind_of(a)
        device = kind.device(a)
        return kind.empty(tuple(a.shape), "float32", device, kind.stream(device))

    def accuracy(self, x, targets):
        """Share of rows whose largest logit is the target's."""
        _, logits = self.logits(self.arrays.put(x), " (test)")
        return float(np.mean(self.arrays.get(logits).argmax(axis=1) == targets))


def _problem(a, b, *, bias=None, c=None, out=None, alpha=1.0, beta=1.0, transpose_a=False, transpose_b=False, activation=None):
    tensors = tuple(None if t is None else kind_of(t).tensor(t) for t in (a, b, bias, c, None, None))
    y = None if out is None else kind_of(out).tensor(out)
    return make_problem(tensors, y, transpose_a, transpose_b, activation, None, None, alpha != 1,
                        beta != 1 if c is not None else None, aliases=frozenset({"c"}) if out is not None else frozenset())


def choices(problems):
    """(name, problem, chosen candidate, measured milliseconds or None) of every product."""
    from .. import find
    from ..host.device import current_device, device
    rows = []
    for name, problem in problems.items():
        chosen = next(c for c in dispatch.explain("matmul", problem) if c.chosen)
        measured = {algo: ms for ms, _, algo, _ in reversed(find.load("matmul", problem, device(current_device())))}
        rows.append((name, problem, chosen, measured.get(chosen.algo)))
    return rows
