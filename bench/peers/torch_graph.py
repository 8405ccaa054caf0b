"""PyTorch's own kernels one after another, as a module would call them: what graphs are compared with."""
from bench.torch_arrays import TorchContender

NAME = "torch"


def make(case, sets, clock):
    """(contender, function of a set): a contender that calls the function on each set of arrays in turn."""
    function = case.eager()
    return TorchContender(NAME, [lambda arrays=arrays: function(arrays) for arrays in sets], clock), function
