"""The same network in PyTorch, from the same weights on the same batches: what the demo's time and accuracy are compared with."""
import importlib.util
import time

import numpy as np

from ..device import HOST_MEMORY
from .network import EPS, SIDE


def possible() -> bool:
    """PyTorch is installed, and can use the device that this library uses."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch
    return HOST_MEMORY or torch.cuda.is_available()


def build(weights, dropout):
    """The network as a `torch.nn.Sequential`, channels first; weights in the order of `network.NAMES`."""
    import torch
    nn, layers = torch.nn, []
    for filters, gamma, beta in (weights[:3], weights[3:6]):
        count, _, _, channels = filters.shape
        convolution, norm = nn.Conv2d(channels, count, 3, padding=1, bias=False), nn.BatchNorm2d(count, eps=EPS)
        _fill(convolution.weight, filters.transpose(0, 3, 1, 2)), _fill(norm.weight, gamma), _fill(norm.bias, beta)
        layers += [convolution, norm, nn.ReLU(), nn.MaxPool2d(2)]
    matrix, bias = weights[6:]
    side = SIDE // 4
    classifier = nn.Linear(*matrix.shape)
    _fill(classifier.weight, matrix.reshape(side, side, -1, len(bias)).transpose(3, 2, 0, 1).reshape(len(bias), -1))
    _fill(classifier.bias, bias)
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(dropout), classifier)


def train(weights, batches, plan, seed):
    """Train on the device that this library uses: (network, losses, seconds for the first batch, seconds for the others)."""
    import torch
    torch.manual_seed(seed)
    device = "cpu" if HOST_MEMORY else "cuda"
    started = time.perf_counter()
    network = build(weights, plan.dropout).to(device)
    step = torch.optim.AdamW(network.parameters(), lr=plan.rate, weight_decay=plan.decay)
    losses, first = [], None
    for x, targets in batches:
        step.zero_grad()
        loss = torch.nn.functional.cross_entropy(network(_images(x, device)), torch.from_numpy(targets).long().to(device))
        loss.backward()
        step.step()
        losses.append(loss.detach())
        if first is None:
            losses[0].item()
            first = time.perf_counter() - started
    values = np.array([loss.item() for loss in losses])
    return network, values, first, time.perf_counter() - started - first


def predict(network, x):
    """The most likely class of each image, as NumPy."""
    import torch
    with torch.no_grad():
        return network.eval()(_images(x, next(network.parameters()).device)).argmax(dim=1).cpu().numpy()


def _images(x, device):
    import torch
    return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2))).to(device)


def _fill(parameter, values):
    import torch
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(np.ascontiguousarray(values)))
