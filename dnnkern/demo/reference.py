"""The same training in NumPy, in float64, from the formulas: what the losses of the demo are checked against."""
import numpy as np


def _seen(x, places, stride):
    """For each tap, row by row: what it sees of the padded image from every place. [N, P, Q, C]"""
    p, q = places
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return [padded[:, r:r + (p - 1) * stride + 1:stride, s:s + (q - 1) * stride + 1:stride] for r in range(3) for s in range(3)]


def convolution(x, w, stride):
    """x [N, H, W, C], w [K, 3, 3, C]."""
    places = [-(-n // stride) for n in x.shape[1:3]]
    return sum(seen @ tap.T for seen, tap in zip(_seen(x, places, stride), np.moveaxis(w, 0, 2).reshape(9, *w.shape[::3])))


def filter_gradient(x, dy, stride):
    """[K, 3, 3, C]"""
    taps = [np.einsum("npqk,npqc->kc", dy, seen) for seen in _seen(x, dy.shape[1:3], stride)]
    return np.stack(taps, axis=1).reshape(dy.shape[3], 3, 3, x.shape[3])


def image_gradient(dy, w, shape, stride):
    """[N, H, W, C]"""
    n, height, width, c = shape
    padded = np.zeros((n, height + 2, width + 2, c))
    p, q = dy.shape[1:3]
    for r in range(3):
        for s in range(3):
            padded[:, r:r + (p - 1) * stride + 1:stride, s:s + (q - 1) * stride + 1:stride] += dy @ w[:, r, s]
    return padded[:, 1:-1, 1:-1]


def loss_and_gradients(weights, strides, x, targets):
    """Mean cross-entropy of a batch, and its gradient for each of the weights: w1, b1, w2, b2 of the convolutions, 3x3 with a border of
    zeros, w3, b3 of the classifier."""
    w1, b1, w2, b2, w3, b3 = weights
    x, rows = x.astype(np.float64), np.arange(len(x))
    first = np.maximum(convolution(x, w1, strides[0]) + b1, 0)
    second = np.maximum(convolution(first, w2, strides[1]) + b2, 0)
    flat = second.reshape(len(x), -1)
    logits = flat @ w3 + b3
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    d_logits = np.exp(log_p)
    d_logits[rows, targets] -= 1
    d_logits /= len(x)
    d_second = (d_logits @ w3.T).reshape(second.shape) * (second > 0)
    d_first = image_gradient(d_second, w2, first.shape, strides[1]) * (first > 0)
    gradients = (filter_gradient(x, d_first, strides[0]), d_first.sum(axis=(0, 1, 2)), filter_gradient(first, d_second, strides[1]),
                 d_second.sum(axis=(0, 1, 2)), flat.T @ d_logits, d_logits.sum(axis=0))
    return -log_p[rows, targets].mean(), gradients


def train(weights, strides, batches, rate, momentum):
    """Losses of successive batches.

    Parameters
    ----------
    weights : list of array
        As `loss_and_gradients` has them; not changed.
    strides : tuple of int
        Of the two convolutions.
    batches : iterable of (x, targets)
    """
    weights = [w.astype(np.float64) for w in weights]
    velocities = [np.zeros_like(w) for w in weights]
    losses = []
    for x, targets in batches:
        loss, gradients = loss_and_gradients(weights, strides, x, targets)
        losses.append(loss)
        velocities = [momentum * v + g for v, g in zip(velocities, gradients)]
        weights = [w - rate * v for w, v in zip(weights, velocities)]
    return np.array(losses)
