"""The same training in NumPy, in float64, from the formulas: what the losses of the demo are checked against."""
import numpy as np

EPS, BETAS, ADAM_EPS = 1e-5, (0.9, 0.999), 1e-8


def _shifted(x):
    """For each tap, row by row, the padded image shifted by the tap. [N, H, W, C]"""
    h, w = x.shape[1:3]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    return [padded[:, r:r + h, s:s + w] for r in range(3) for s in range(3)]


def convolution(x, w):
    """x [N, H, W, C], w [K, 3, 3, C], a border of zeros."""
    return sum(part @ tap.T for part, tap in zip(_shifted(x), np.moveaxis(w, 0, 2).reshape(9, *w.shape[::3])))


def filter_gradient(x, dy):
    """[K, 3, 3, C]"""
    taps = [np.einsum("npqk,npqc->kc", dy, part) for part in _shifted(x)]
    return np.stack(taps, axis=1).reshape(dy.shape[3], 3, 3, x.shape[3])


def image_gradient(dy, w):
    """[N, H, W, C]"""
    n, height, width, _ = dy.shape
    padded = np.zeros((n, height + 2, width + 2, w.shape[3]))
    for r in range(3):
        for s in range(3):
            padded[:, r:r + height, s:s + width] += dy @ w[:, r, s]
    return padded[:, 1:-1, 1:-1]


def _quarters(x):
    """The four pixels of each window 2x2, in its order: [N, H/2, W/2, 4, C]"""
    n, h, w, c = x.shape
    return x.reshape(n, h // 2, 2, w // 2, 2, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, h // 2, w // 2, 4, c)


def pool(x):
    """(maxima of windows 2x2, which of the four each is: the first of the largest, the four)"""
    windows = _quarters(x)
    return windows.max(axis=3), windows.argmax(axis=3), windows


def pool_gradient(dy, which, shape):
    """Each maximum's gradient where it was."""
    n, h, w, c = shape
    windows = np.where(np.arange(4)[:, None] == which[:, :, :, None], dy[:, :, :, None], 0.0)
    return windows.reshape(n, h // 2, w // 2, 2, 2, c).transpose(0, 1, 3, 2, 4, 5).reshape(shape)


def normalisation(x, gamma, beta):
    """(the batch normalised, before its ReLU, the normalised values, 1 / standard deviation)"""
    axes = (0, 1, 2)
    r = 1 / np.sqrt(x.var(axis=axes) + EPS)
    n = (x - x.mean(axis=axes)) * r
    return n * gamma + beta, n, r


def normalisation_gradients(dz, z, n, r, gamma):
    """(dx, dgamma, dbeta)"""
    dz, axes = dz * (z > 0), (0, 1, 2)
    d_gamma, d_beta = (dz * n).sum(axis=axes), dz.sum(axis=axes)
    count = dz.size // dz.shape[3]
    return gamma * r * (dz - d_beta / count - n * d_gamma / count), d_gamma, d_beta


def loss_and_gradients(weights, x, targets, kept=1.0, compared=None):
    """Mean cross-entropy of a batch, and its gradient for each of the weights; `kept` multiplies the features.

    To `compared`, a list, is appended what ReLU and the maxima choose by: for each stage (values before ReLU, the four of each window).
    """
    x, stages, by = x.astype(np.float64), [], []
    for filters, gamma, beta in (weights[:3], weights[3:6]):
        before, n, r = normalisation(convolution(x, filters), gamma, beta)
        z = np.maximum(before, 0)
        pooled, which, windows = pool(z)
        stages.append((x, z, n, r, which))
        by.append((before, windows))
        x = pooled
    if compared is not None:
        compared.append(by)
    flat = x.reshape(len(x), -1) * kept
    logits = flat @ weights[6] + weights[7]
    shifted, rows = logits - logits.max(axis=1, keepdims=True), np.arange(len(x))
    log_p = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    d_logits = np.exp(log_p)
    d_logits[rows, targets] -= 1
    d_logits /= len(x)
    gradients = [flat.T @ d_logits, d_logits.sum(axis=0)]
    d = (d_logits @ weights[6].T * kept).reshape(x.shape)
    for k in (1, 0):
        x, z, n, r, which = stages[k]
        dy, d_gamma, d_beta = normalisation_gradients(pool_gradient(d, which, z.shape), z, n, r, weights[3 * k + 1])
        gradients = [filter_gradient(x, dy), d_gamma, d_beta, *gradients]
        d = image_gradient(dy, weights[3 * k])
    return -log_p[rows, targets].mean(), gradients


def train(weights, batches, rate, decay, kept=lambda step, features: 1.0, compared=None):
    """Losses of successive batches, with steps of AdamW.

    Parameters
    ----------
    weights : list of array
        In the order of `network.NAMES`; not changed.
    batches : iterable of (x, targets)
    kept : callable(step, (batch, features)) -> array
        What multiplies the features, step 1 being the first.
    compared : list, optional
        See `loss_and_gradients`; one entry a step.
    """
    weights = [w.astype(np.float64) for w in weights]
    m, v, losses = [0.0] * len(weights), [0.0] * len(weights), []
    for step, (x, targets) in enumerate(batches, 1):
        loss, gradients = loss_and_gradients(weights, x, targets, kept(step, (len(x), len(weights[6]))), compared)
        losses.append(loss)
        m = [BETAS[0] * a + (1 - BETAS[0]) * g for a, g in zip(m, gradients)]
        v = [BETAS[1] * a + (1 - BETAS[1]) * g * g for a, g in zip(v, gradients)]
        for k, w in enumerate(weights):
            up, down = m[k] / (1 - BETAS[0] ** step), np.sqrt(v[k] / (1 - BETAS[1] ** step)) + ADAM_EPS
            weights[k] = w - rate * decay * w - rate * up / down
    return np.array(losses)
