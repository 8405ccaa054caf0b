"""A problem's program (`dnnkern.device.program`) by PyTorch's functions, one after another."""
import torch
import torch.nn.functional as F

_FUNCTIONS = {"gelu": F.gelu, "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"), "swish": F.silu, "bias": torch.add, "scale": torch.mul,
              "max": torch.maximum, "min": torch.minimum, "identity": lambda y: y}


def is_known(program, results=0):
    """Whether PyTorch has the functions of a program that reads arrays and constants and stores so many results; None is one."""
    if program is None:
        return True
    modes = [step.function.mode for step in program.steps]
    return (len(program.stores) == results and all(access not in ("value", "index") for _, access in program.loads)
            and all(mode in _FUNCTIONS or hasattr(torch, mode) for mode in modes))


def follow(program, arrays):
    """A function of an anchor's result, if there is one, that computes the program of arrays, {name: tensor}; the identity for None."""
    if program is None:
        return lambda y: y
    numbers = iter(range(len(program.loads)))
    loads = [arrays[f"x{next(numbers)}"] if isinstance(access, str) else access for _, access in program.loads]
    steps = [(_FUNCTIONS.get(s.function.mode) or getattr(torch, s.function.mode), s.inputs) for s in program.steps]
    result = program.stores[0][0] if program.stores else program.result

    def run(*accumulators):
        values = [*accumulators, *loads]
        for function, inputs in steps:
            values.append(function(*[values[k] for k in inputs]))
        return values[result]
    return run
