"""cuDNN through PyTorch: what the peers of the four convolution operations share.

cuDNN's own search is on (``torch.backends.cudnn.benchmark``); TF32 is off unless the case allows it. Arrays with channels last are handed
over as PyTorch's channels_last, in one dimension as images of height 1, which is where PyTorch has a fast path. Padding that differs before
and after is the larger on both sides, and the surplus of the result is cut off.
"""
import torch
import torch.nn.functional as F

from bench.peers import Peer
from bench.torch_arrays import TorchContender, tensors

ACTIVATIONS = {"identity": lambda y: y, "relu": torch.relu_, "gelu": F.gelu, "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
               "swish": lambda y: F.silu(y, inplace=True), "sigmoid": torch.sigmoid_, "tanh": torch.tanh_}
FLOATS = ("float64", "float32", "float16", "bfloat16")


def plain(p):
    """Whether PyTorch has the case at all: floats, one dtype, nothing it would have to add beforehand."""
    return (p.x.dtype in FLOATS and p.x.dtype == p.w.dtype == p.y.dtype and not (p.beta or p.scaled or p.flip)
            and p.activation.mode in ACTIVATIONS)


def make_peer(name, bind, p, operands, clock):
    """A `Peer` that calls what ``bind(problem, tensors)`` gives for each set; it returns the output as the library's own array lies."""
    torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = True, getattr(p, "math", None) is not None
    arrays = [tensors(operands, k) for k in range(len(operands))]
    calls = [bind(p, a) for a in arrays]
    contender, output = TorchContender(name, calls, clock), next(iter(operands.outputs))

    def write():
        with contender.on_stream():
            result = calls[0]()
            arrays[0][output].copy_(back(p, result) if result.ndim > 1 else result)
        clock.synchronize()
    return Peer(contender, write)


def lifted(p):
    """Whether one-dimensional arrays are taken for images of height 1."""
    return p.layout == "NHWC" and p.spatial_dims == 1


def view(p, t):
    """A tensor in PyTorch's order of dimensions."""
    if t is None:
        return None
    t = t.movedim(-1, 1) if p.layout == "NHWC" else t
    return t.unsqueeze(2) if lifted(p) else t


def back(p, t):
    """A result in the library's order of dimensions."""
    t = t.squeeze(2) if lifted(p) else t
    return t.movedim(1, -1) if p.layout == "NHWC" else t


def window(p):
    """(stride, padding, dilation, slices of the result) as PyTorch takes them."""
    pads = [max(pair) for pair in p.padding]
    cut = tuple(slice((most - before) // s, (most - before) // s + size)
                for (before, _), most, s, size in zip(p.padding, pads, p.stride, p.out[-p.spatial_dims:]))
    one = [1] if lifted(p) else []
    zero, whole = [0] * len(one), (slice(None),) * len(one)
    even = all(before == after for before, after in p.padding)
    return one + list(p.stride), zero + pads, one + list(p.dilation), None if even else (..., *whole, *cut)


def padded(p, dy):
    """A function that gives dy as the convolution with one padding for both sides would have it: zeros where its surplus was cut off."""
    cut = window(p)[3]
    if cut is None:
        return lambda: dy
    widths = []
    for size, (pair, r, d, s), piece in zip(p.image[-p.spatial_dims:], zip(p.padding, p.filter[-p.spatial_dims:], p.dilation, p.stride),
                                            cut[-p.spatial_dims:]):
        full = (size + 2 * max(pair) - d * (r - 1) - 1) // s + 1
        widths = [piece.start, full - piece.stop, *widths]
    return lambda: F.pad(dy, widths)


def is_expressible(p):
    """Whether one padding for both sides gives every window: the surplus before is whole steps."""
    return all((max(pair) - pair[0]) % s == 0 for pair, s in zip(p.padding, p.stride))
