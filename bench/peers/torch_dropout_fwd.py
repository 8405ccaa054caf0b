"""PyTorch's dropout, whose mask has a byte an element. Its random numbers are its own, so that there is nothing to compare: the check is of
ours."""
from bench.peers import Peer
from bench.torch_arrays import TorchContender, tensors

NAME = "torch"


def make(case, operands, clock):
    """The case in PyTorch; None in place, which it has not with a mask."""
    if case.problem.in_place:
        return None
    arrays = [tensors(operands, k) for k in range(len(operands))]
    contender = TorchContender(NAME, [plain_call(case, a) for a in arrays], clock)

    def write():
        with contender.on_stream():
            case.call(arrays[0], algo="naive")
        clock.synchronize()
    return Peer(contender, write)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    import torch
    x = arrays["x"]
    return lambda: torch.native_dropout(x, 0.5, True)
