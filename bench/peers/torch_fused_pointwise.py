"""PyTorch's functions, one after another, each a kernel of its own."""
from bench.peers import Peer
from bench.torch_arrays import TorchContender, tensors

from ._torch_program import follow, is_known

NAME = "torch"


def make(case, operands, clock):
    """The case in PyTorch; None where it lacks a function, or there are several results."""
    if not is_known(case.problem.program, results=1):
        return None
    arrays = [tensors(operands, k) for k in range(len(operands))]
    calls = [plain_call(case, a) for a in arrays]

    def write():
        with contender.on_stream():
            arrays[0]["y0"].copy_(calls[0]())
        clock.synchronize()
    contender = TorchContender(NAME, calls, clock)
    return Peer(contender, write)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return follow(case.problem.program, arrays)
