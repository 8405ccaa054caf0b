"""The same training in NumPy, in float64, from the formulas: what the losses of the demo are checked against."""
import numpy as np


def train(weights, batches, rate, momentum):
    """Losses of successive batches.

    Parameters
    ----------
    weights : list of array
        w1, b1, w2, b2; not changed.
    batches : iterable of (x, targets)
    """
    weights = [w.astype(np.float64) for w in weights]
    velocities = [np.zeros_like(w) for w in weights]
    losses = []
    for x, targets in batches:
        w1, b1, w2, b2 = weights
        rows = np.arange(len(x))
        x = x.astype(np.float64)
        h = np.maximum(x @ w1 + b1, 0)
        logits = h @ w2 + b2
        shifted = logits - logits.max(axis=1, keepdims=True)
        log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        losses.append(-log_p[rows, targets].mean())
        d_logits = np.exp(log_p)
        d_logits[rows, targets] -= 1
        d_logits /= len(x)
        dh = (d_logits @ w2.T) * (h > 0)
        gradients = x.T @ dh, dh.sum(axis=0), h.T @ d_logits, d_logits.sum(axis=0)
        velocities = [momentum * v + g for v, g in zip(velocities, gradients)]
        weights = [w - rate * v for w, v in zip(weights, velocities)]
    return np.array(losses)
