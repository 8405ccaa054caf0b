"""Programs that ask for a GPU, without one: "cuda" stands for the CPU, on which this library's kernels run."""
import contextlib
import time

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


def _name(device=None):
    from ..host.device import current_device
    from ..host.device import device as device_of
    return device_of(current_device()).name


class _Event:
    """The time at which it is recorded: what was called before is done by then."""

    def __init__(self, enable_timing=False, blocking=False, interprocess=False):
        self.recorded = None

    def record(self, stream=None):
        self.recorded = time.perf_counter()

    def elapsed_time(self, end):
        if self.recorded is None or end.recorded is None:
            raise RuntimeError("elapsed_time: an event has not been recorded; expected two that have")
        return 1e3 * (end.recorded - self.recorded)

    def synchronize(self):
        pass

    def wait(self, stream=None):
        pass

    def query(self):
        return True


# What takes devices or needs a GPU, and is no function that a mode is told of: (whose, name, instead).
_INSTEAD = ((torch.cuda, "synchronize", lambda device=None: None), (torch.cuda, "set_device", lambda device: None),
            (torch.cuda, "reset_peak_memory_stats", lambda device=None: None), (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "get_device_name", _name), (torch.cuda, "Event", _Event), (torch, "load", _load), (torch.nn.Module, "to", _to))
_theirs = {name: getattr(owner, name) for owner, name, _ in _INSTEAD}


@contextlib.contextmanager
def cuda_is_cpu():
    """In the block a program that names CUDA devices runs on the CPU. `torch.cuda.is_available` still tells the truth: what a program does
    only where it says yes, with streams for example, is left out."""
    for owner, name, instead in _INSTEAD:
        setattr(owner, name, instead)
    try:
        with CudaIsCpu():
            yield
    finally:
        for owner, name, _ in _INSTEAD:
            setattr(owner, name, _theirs[name])
