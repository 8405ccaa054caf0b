"""Programs that ask for a GPU, without one: "cuda" stands for the CPU, on which this library's kernels run."""
import contextlib

import torch
from torch.overrides import TorchFunctionMode

_TO_DEVICE = frozenset({torch.Tensor.cuda, torch.Tensor.pin_memory})


def mapped(value):
    """The CPU in place of a CUDA device; anything else as it is.

    >>> mapped("cuda:1"), mapped(torch.device("cuda")), mapped("cudagraphs"), mapped(3)
    ('cpu', device(type='cpu'), 'cudagraphs', 3)
    """
    if type(value) is str:
        return "cpu" if value == "cuda" or value.startswith("cuda:") else value
    if type(value) is torch.device and value.type == "cuda":
        return torch.device("cpu")
    return value


class CudaIsCpu(TorchFunctionMode):
    """Maps devices among the arguments of all functions of PyTorch; ``x.cuda()`` and ``x.pin_memory()`` are x."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in _TO_DEVICE:
            return args[0]
        kwargs = {name: mapped(value) for name, value in kwargs.items()} if kwargs else {}
        if function is torch.Tensor.to and type(kwargs.get("device")) is int:
            kwargs["device"] = "cpu"
        return function(*map(mapped, args), **kwargs)


@contextlib.contextmanager
def cuda_is_cpu():
    """In the block a program that names CUDA devices runs on the CPU. `torch.cuda.is_available` still tells the truth: what a program does
    only where it says yes, with streams or events, is left out."""
    before = torch.cuda.synchronize
    torch.cuda.synchronize = lambda device=None: None
    try:
        with CudaIsCpu():
            yield
    finally:
        torch.cuda.synchronize = before
