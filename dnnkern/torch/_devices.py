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


def _of_device(value):
    """`mapped`, of what must be a device or a dtype: a number is that of a GPU."""
    return "cpu" if type(value) is int else mapped(value)


class CudaIsCpu(TorchFunctionMode):
    """Maps devices among the arguments of all functions of PyTorch; ``x.cuda()`` and ``x.pin_memory()`` are x."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in _TO_DEVICE:
            return args[0]
        kwargs = {name: _of_device(value) if name == "device" else mapped(value) for name, value in kwargs.items()} if kwargs else {}
        if function is torch.Tensor.to:
            return function(args[0], *map(_of_device, args[1:2]), *args[2:], **kwargs)
        return function(*map(mapped, args), **kwargs)


def _load(file, map_location=None, *args, **kwargs):
    if isinstance(map_location, dict):
        map_location = {source: mapped(target) for source, target in map_location.items()}
    return _theirs["load"](file, mapped(map_location), *args, **kwargs)


def _to(module, *args, **kwargs):
    if "device" in kwargs:
        kwargs["device"] = _of_device(kwargs["device"])
    return _theirs["to"](module, *map(_of_device, args[:1]), *args[1:], **kwargs)


# What takes devices and is no function that a mode is told of: (whose, name, instead).
_INSTEAD = ((torch.cuda, "synchronize", lambda device=None: None), (torch.cuda, "set_device", lambda device: None),
            (torch, "load", _load), (torch.nn.Module, "to", _to))
_theirs = {name: getattr(owner, name) for owner, name, _ in _INSTEAD}


@contextlib.contextmanager
def cuda_is_cpu():
    """In the block a program that names CUDA devices runs on the CPU. `torch.cuda.is_available` still tells the truth: what a program does
    only where it says yes, with streams or events, is left out."""
    for owner, name, instead in _INSTEAD:
        setattr(owner, name, instead)
    try:
        with CudaIsCpu():
            yield
    finally:
        for owner, name, _ in _INSTEAD:
            setattr(owner, name, _theirs[name])
