"""torch.compile of what `torch_graph` calls."""
import torch

from bench.torch_arrays import TorchContender

NAME = "torch.compile"


def make(case, sets, clock):
    """As `torch_graph.make`."""
    torch._dynamo.reset()  # a function for each case: none is compiled for sizes that may change
    function = torch.compile(case.eager(), dynamic=False)
    return TorchContender(NAME, [lambda arrays=arrays: function(arrays) for arrays in sets], clock), function
