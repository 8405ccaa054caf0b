"""What the PyTorch peers of moves and conversions share."""
from bench.peers import Peer
from bench.torch_arrays import TorchContender, tensors

NAME = "torch"


def make_peer(bind, output, case, operands, clock, name=NAME, **how):
    """The peer whose call on one set of tensors is ``bind(problem, tensors)``; None where PyTorch refuses it. `output` is the name of
    the result, or a tuple of names where the call gives several; `how` are keywords of `TorchContender`."""
    names = (output,) if isinstance(output, str) else output
    arrays = [tensors(operands, k) for k in range(len(operands))]
    calls = [bind(case.problem, a) for a in arrays]
    try:
        calls[0]()
    except (RuntimeError, NotImplementedError):  # a dtype that its kernel lacks
        return None
    contender = TorchContender(name, calls, clock, **how)

    def write():
        with contender.on_stream():
            found = calls[0]()
            for name, result in zip(names, found if isinstance(found, tuple) else (found,), strict=True):
                y = arrays[0][name]
                if result.data_ptr() != y.data_ptr():
                    y.copy_(result.reshape(y.shape))
        clock.synchronize()
    return Peer(contender, write)
