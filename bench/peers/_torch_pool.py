"""What the PyTorch peers of pooling share: its own functions in channels-first order, on permuted views of channels-last arrays."""
import torch
import torch.nn.functional as F

from bench.peers import Peer
from bench.torch_arrays import TorchContender, tensors

NAME = "torch"


def make(case, operands, clock):
    """The case in PyTorch; None for what it lacks: uneven or wide padding, dilated averages, a divisor in one dimension."""
    p = case.problem
    even = all(a == b and 2 * a <= w for (a, b), w in zip(p.padding, p.window))
    if not even or not p.is_max and set(p.dilation) != {1} or p.divisor and len(p.window) == 1:
        return None
    arrays = [tensors(operands, k) for k in range(len(operands))]
    try:
        calls = [bind(p, a) for a in arrays]
        calls[0]()
    except (RuntimeError, NotImplementedError):  # a dtype that its kernel lacks
        return None
    contender = TorchContender(NAME, calls, clock)
    names = ("y", "index") if p.is_forward and p.index is not None else ("y",) if p.is_forward else ("dx",)

    def write():
        with contender.on_stream():
            found = calls[0]()
            for name, result in zip(names, found if isinstance(found, tuple) else (found,)):
                result = result.movedim(1, -1) if p.layout == "NHWC" else result
                arrays[0][name].copy_(result.reshape(arrays[0][name].shape))
        clock.synchronize()
    return Peer(contender, write)


def bind(p, t):
    """The call of a problem on one set of tensors; backward by the operators that autograd runs, whose index is int64."""
    def first(name):
        tensor = t[name]
        return tensor.movedim(-1, 1) if p.layout == "NHWC" else tensor
    dims, places = len(p.window), p.spatial(p.y.shape)
    pads, aten = [a for a, _ in p.padding], torch.ops.aten
    window = p.window, p.stride, pads
    if p.is_forward:
        x = first("x")
        if p.adaptive:
            run = getattr(F, f"adaptive_{'max' if p.is_max else 'avg'}_pool{dims}d")
            return (lambda: run(x, places, return_indices=True)) if p.index is not None else lambda: run(x, places)
        if p.is_max:
            run, wanted = getattr(F, f"max_pool{dims}d"), p.index is not None
            return lambda: run(x, *window, p.dilation, p.ceil_mode, wanted)
        run = getattr(F, f"avg_pool{dims}d")
        return lambda: run(x, *window, p.ceil_mode, p.count_include_pad, *([p.divisor] if dims > 1 else []))
    dy, x = first("dy"), torch.empty_like(first("dx"))
    if dims == 1:  # it has backward operators for two and three dimensions
        x, dy = x.unsqueeze(2), dy.unsqueeze(2)
        window, dilation, dims = ((1, *p.window), (1, *p.stride), [0, *pads]), (1, *p.dilation), 2
    else:
        dilation = p.dilation
    if p.is_max:
        index = first("index").long().reshape(dy.shape)
        if p.adaptive:
            run = getattr(aten, f"adaptive_max_pool{dims}d_backward")
            return lambda: run(dy, x, index)
        run = getattr(aten, f"max_pool{dims}d_with_indices_backward")
        return lambda: run(dy, x, *window, dilation, p.ceil_mode, index)
    if p.adaptive:
        run = getattr(aten, f"_adaptive_avg_pool{dims}d_backward")
        return lambda: run(dy, x)
    run = getattr(aten, f"avg_pool{dims}d_backward")
    return lambda: run(dy, x, *window, p.ceil_mode, p.count_include_pad, p.divisor)
