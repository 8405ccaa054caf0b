"""A training step of a network, on the device of this process: in the simulator with the simplest algorithms."""
import copy

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from test_torch_table import alone, assert_same, ran  # noqa: E402, F401 (a fixture)
from torch import nn  # noqa: E402
from torch_calls import DEVICE  # noqa: E402

import dnnkern.torch  # noqa: E402
from dnnkern import dispatch  # noqa: E402
from dnnkern.device import HOST_MEMORY, SIMULATED  # noqa: E402

OPS = {"convolution", "convolution_backward", "max_pool2d_with_indices", "max_pool2d_with_indices_backward", "addmm", "mm", "relu",
       "threshold_backward", "_fused_sgd_"} | ({"native_batch_norm", "native_batch_norm_backward"} if HOST_MEMORY else
                                               {"cudnn_batch_norm", "cudnn_batch_norm_backward"})


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3), nn.ReLU(),
                         nn.Flatten(), nn.Linear(16, 5)).to(DEVICE)


def trained(net, x, steps):
    """(losses, gradients, parameters and buffers) of some steps."""
    net = copy.deepcopy(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, fused=True)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), torch.arange(3, device=DEVICE))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [p.grad for p in net.parameters()], [t.detach() for t in net.state_dict().values()]


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last], ids=["first", "last"])
def test_a_training_step(memory_format):
    net, x = network().to(memory_format=memory_format), torch.randn(3, 2, 8, 8, device=DEVICE).to(memory_format=memory_format)
    steps = 1 if SIMULATED else 3
    theirs = trained(net, x, steps)
    with dnnkern.torch.enabled("all", strict=True), dispatch.prefer("naive" if SIMULATED else None):
        ours = trained(net, x, steps)
    assert ran() >= OPS
    for kind, mine, others in zip(("loss", "gradient", "state"), ours, theirs):
        for a, b in zip(mine, others, strict=True):
            assert_same(a, b, kind)
