"""The network, with nothing but calls of the library: images as (N, H, W, C), two stages of convolution, batch normalisation with ReLU and
max pooling, then dropout and a classifier."""
import importlib.util

import numpy as np

from .. import dispatch
from ..conv import conv_bwd_data, conv_bwd_filter, conv_fwd
from ..device import HOST_MEMORY
from ..dropout import dropout_bwd, dropout_fwd
from ..loss import cross_entropy_bwd, cross_entropy_fwd
from ..matmul import matmul
from ..norm import batch_norm_bwd, batch_norm_infer, batch_norm_train_fwd
from ..optim import adamw_step
from ..pool import max_pool_bwd, max_pool_fwd
from ..reduce import reduce

LAST = dict(layout="NHWC")
SIDE = 8           # pixels of an image's side
EPS = 1e-5         # of the normalisations
NAMES = ("filter1", "gamma1", "beta1", "filter2", "gamma2", "beta2", "matrix", "bias")


class Arrays:
    """Whose the arrays are: Numba's, whose outputs come from the library's pool on a GPU; torch's; NumPy's where there is no GPU."""

    def __init__(self, framework=None):
        self.framework = framework or "numba"
        if self.framework == "numpy" and not HOST_MEMORY:
            raise ValueError("demo: --framework numpy, and the device is a GPU; expected numba or torch, or DNNKERN_DEVICE=cpu")
        if self.framework == "torch" and importlib.util.find_spec("torch") is None:
            raise ValueError("demo: --framework torch: PyTorch is not installed")

    def put(self, a):
        """A copy of a NumPy array on the device."""
        a = np.array(a, order="C")
        if self.framework == "torch":
            import torch
            t = torch.from_numpy(a)
            return t if HOST_MEMORY else t.cuda()
        if self.framework == "numba":
            from ..device import cuda
            return cuda.to_device(a)
        return a

    def get(self, a):
        """The values, as NumPy."""
        if self.framework == "torch":
            return a.cpu().numpy()
        return a.copy_to_host() if self.framework == "numba" else a


def initial_weights(channels, classes, seed):
    """Arrays in the order of `NAMES`, float32: filters 3x3 and the classifier by He's initialisation, gamma 1, beta and bias 0."""
    rng = np.random.default_rng(seed)
    weights, before = [], 1
    for c in channels:
        weights += [rng.normal(0, np.sqrt(2 / (9 * before)), (c, 3, 3, before)), np.ones(c), np.zeros(c)]
        before = c
    features = (SIDE // 2 ** len(channels)) ** 2 * before
    weights += [rng.normal(0, np.sqrt(2 / features), (features, classes)), np.zeros(classes)]
    return [a.astype(np.float32) for a in weights]


class Network:
    """Weights, moments and running statistics on the device; `train` makes one step of AdamW.

    Attributes
    ----------
    problems : dict
        Name of each operation -> its problem, filled in as they run.
    chosen : list
        For each of the first `checked` steps and each stage what ReLU and the maxima chose: (which values are positive, which of the four
        in its window each maximum is).
    """

    def __init__(self, weights, arrays, batch, rate, decay, dropout, seed, checked=0):
        self.arrays, self.batch, self.rate, self.decay, self.dropout, self.seed = arrays, batch, rate, decay, dropout, seed
        self.weights = [arrays.put(w) for w in weights]
        self.gradients, self.m, self.v = ([arrays.put(np.zeros_like(w)) for w in weights] for _ in range(3))
        self.running = [(arrays.put(np.zeros_like(g)), arrays.put(np.ones_like(g))) for g in (weights[1], weights[4])]
        self.one = arrays.put(np.ones((), np.float32))
        self.problems, self.spaces, self.steps = {}, {}, 0
        self.checked, self.chosen = checked, []
        dispatch.choices_changed()  # so that every call of this network is reported once

    def run(self, name, function, *operands, **options):
        """A call of the library, its problem remembered under a name for the report."""
        if name in self.problems:
            return function(*operands, **options)
        with dispatch.watch() as problems:
            result = function(*operands, **options)
        self.problems.update({name: problem for problem in problems})
        return result

    # ---- forward and backward

    def stage(self, n, x):
        """(convolution, normalised, pooled, what the gradients need besides) of stage n, 0 or 1."""
        filters, gamma, beta = self.weights[3 * n:3 * n + 3]
        mean, var = self.running[n]
        y = self.run(f"conv{n + 1}", conv_fwd, x, filters, padding=1, **LAST)
        z, *statistics = self.run(f"norm{n + 1}", batch_norm_train_fwd, y, gamma, beta, mean, var, eps=EPS, activation="relu", **LAST)
        pooled, index = self.run(f"pool{n + 1}", max_pool_fwd, z, 2, return_index=True, **LAST)
        return y, z, pooled, (index, *statistics)

    def stage_gradients(self, n, x, stage, d_pooled, wanted):
        """Those of stage n's weights, into `gradients`, and of x where it is `wanted`."""
        y, z, _, (index, mean, rstd) = stage
        filters, gamma, _ = self.weights[3 * n:3 * n + 3]
        d_filters, d_gamma, d_beta = self.gradients[3 * n:3 * n + 3]
        dz = self.run(f"pool{n + 1} dx", max_pool_bwd, d_pooled, index, tuple(z.shape), 2, **LAST)
        dy, _, _ = self.run(f"norm{n + 1} dx", batch_norm_bwd, dz, y, gamma, mean, rstd, activation="relu", y=z,
                            out=(self.like(n, y), d_gamma, d_beta), **LAST)
        self.run(f"conv{n + 1} dw", conv_bwd_filter, x, dy, tuple(filters.shape), padding=1, out=d_filters, **LAST)
        return self.run(f"conv{n + 1} dx", conv_bwd_data, dy, filters, tuple(x.shape), padding=1, **LAST) if wanted else None

    def choices(self, stage):
        """See `chosen`. The library's index is a maximum's position in its image."""
        z, index = self.arrays.get(stage[1]), self.arrays.get(stage[3][0])
        row, column = np.divmod(index, z.shape[2])
        return z > 0, row % 2 * 2 + column % 2

    def like(self, n, y):
        """An array for the gradient of stage n's convolution, the same one at every step."""
        if n not in self.spaces:
            self.spaces[n] = self.arrays.put(np.zeros(tuple(y.shape), np.float32))
        return self.spaces[n]

    def train(self, x, targets):
        """One step; returns the loss, on the device."""
        self.steps += 1
        matrix, bias = self.weights[6:]
        d_matrix, d_bias = self.gradients[6:]
        first = self.stage(0, x)
        second = self.stage(1, first[2])
        if len(self.chosen) < self.checked:
            self.chosen.append([self.choices(stage) for stage in (first, second)])
        rows, mask = self.run("dropout", dropout_fwd, _rows(second[2]), self.dropout, self.seed, offset=self.steps * 2 ** 32)
        logits = self.run("classifier", matmul, rows, matrix, bias=bias)
        loss, lse = self.run("loss", cross_entropy_fwd, logits, targets)
        d_logits = self.run("loss dx", cross_entropy_bwd, self.one, logits, targets, lse)
        self.run("classifier dw", matmul, rows, d_logits, transpose_a=True, out=d_matrix)
        self.run("classifier db", reduce, d_logits, "add", axes=0, out=d_bias)
        d_rows = self.run("classifier dx", matmul, d_logits, matrix, transpose_b=True)
        d_rows = self.run("dropout dx", dropout_bwd, d_rows, mask, self.dropout)
        d_first = self.stage_gradients(1, first[2], second, d_rows.reshape(*second[2].shape), True)
        self.stage_gradients(0, x, first, d_first, False)
        self.run("step", adamw_step, self.weights, self.gradients, self.m, self.v, lr=self.rate, weight_decay=self.decay, step=self.steps)
        return loss

    def predict(self, x):
        """The class of each image's largest logit, as NumPy; by the running statistics, without dropout."""
        x = self.arrays.put(x)
        for n in range(2):
            filters, gamma, beta = self.weights[3 * n:3 * n + 3]
            y = self.run(f"conv{n + 1} (test)", conv_fwd, x, filters, padding=1, **LAST)
            z = self.run(f"norm{n + 1} (test)", batch_norm_infer, y, gamma, beta, *self.running[n], eps=EPS, activation="relu", **LAST)
            x = self.run(f"pool{n + 1} (test)", max_pool_fwd, z, 2, **LAST)
        logits = self.run("classifier (test)", matmul, _rows(x), self.weights[6], bias=self.weights[7])
        return self.arrays.get(logits).argmax(axis=1)


def kept(shape, dropout, seed, step):
    """Which features dropout keeps in a step, and what it multiplies them by: a float64 array, from the call itself, on ones."""
    ones = Arrays().put(np.ones(shape, np.float32))
    return np.asarray(Arrays().get(dropout_fwd(ones, dropout, seed, offset=step * 2 ** 32)[0]), np.float64)


def _rows(a):
    """An image's values as a row."""
    return a.reshape(a.shape[0], a.shape[1] * a.shape[2] * a.shape[3])
