"""cuBLAS through PyTorch: matmul, addmm, cuBLASLt's fused bias with ReLU or GELU, and its products of 8-bit floats.

float32 is exact: TF32 is off unless the case allows it. Scales by block are laid out beforehand as cuBLASLt wants them.
"""
import torch
import torch.nn.functional as F

from bench.peers import Peer
from bench.torch_arrays import TorchContender, tensors

from ._torch_program import follow, is_known

NAME = "torch"
_ACTIVATIONS = {"relu": torch.relu_, "gelu": F.gelu, "gelu_tanh": lambda y: F.gelu(y, approximate="tanh"),
                "swish": lambda y: F.silu(y, inplace=True), "sigmoid": torch.sigmoid_, "tanh": torch.tanh_}


def make(case, operands, clock):
    """The case in PyTorch; None for what it lacks (another output dtype; batched int8; 8-bit types in layouts it cannot take)."""
    p = case.problem
    fp8 = p.a.dtype.startswith("float8")
    integers = p.a.dtype == "int8"
    if integers and (p.y.dtype != "int32" or p.y.ndim != 2 or p.bias or p.c) or p.y.dtype != p.a.dtype and not (fp8 or integers):
        return None
    if p.activation.mode != "identity" and p.activation.mode not in _ACTIVATIONS or not is_known(p.program):
        return None
    arrays = [tensors(operands, k) for k in range(len(operands))]
    calls = [_bind(p, a) for a in arrays]
    if fp8 or integers:
        try:
            calls[0]()
        except (RuntimeError, ValueError):  # two e5m2, a batch, rows that are no multiple of 16 bytes, scales that this version has not
            return None
    torch.backends.cuda.matmul.allow_tf32 = p.math is not None
    contender = TorchContender(NAME, calls, clock)

    def write():
        with contender.on_stream():
            result = calls[0]()
            if result.data_ptr() != arrays[0]["y"].data_ptr():
                arrays[0]["y"].copy_(result)
        clock.synchronize()
    return Peer(contender, write)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return _bind(case.problem, arrays)


def _bind(p, t):
    """The call on one set of tensors, everything looked up beforehand."""
    if p.program is None:
        return _bind_anchor(p, t)
    product, program = _bind_anchor(p, t), follow(p.program, t)
    return lambda: program(product())


def _bind_anchor(p, t):
    """The same without the program."""
    a = t["a"].mT if p.transpose_a else t["a"]
    b = t["b"].mT if p.transpose_b else t["b"]
    bias, y, mode = t["bias"], t["y"], p.activation.mode
    if p.a.dtype.startswith("float8"):
        return _bind_scaled(p, a, b, t)
    if p.a.dtype == "int8":
        return lambda: torch._int_mm(a, b, out=y)
    matrices = a.ndim == 2 and b.ndim == 2
    if bias is None and mode == "identity" and t["c"] is None:
        return lambda: torch.matmul(a, b, out=y)
    if bias is not None and t["c"] is None and matrices and bias.ndim == 1 and mode in ("relu", "gelu_tanh"):
        gelu = mode == "gelu_tanh"
        return lambda: torch._addmm_activation(bias, a, b, use_gelu=gelu)
    if bias is not None and matrices:
        product = lambda: torch.addmm(bias, a, b, out=y)  # noqa: E731
    elif bias is not None:
        product = lambda: torch.matmul(a, b, out=y).add_(bias)  # noqa: E731
    else:
        product = lambda: torch.matmul(a, b, out=y)  # noqa: E731
    if t["c"] is not None:
        sum_of, c = product, t["c"]
        product = lambda: sum_of().add_(c)  # noqa: E731
    if mode == "identity":
        return product
    activation = _ACTIVATIONS[mode]
    return lambda: activation(product())


def _bind_scaled(p, a, b, t):
    """8-bit floats: a scale for each operand, for each row and column, or for each block."""
    one = torch.ones((), device=a.device)
    scale_a, scale_b = (one if s is None else s for s in (t["scale_a"], t["scale_b"]))
    if p.scales.by_block:
        scale_a, scale_b = scale_a.T.contiguous().T, scale_b.T.contiguous().T
    dtype, bias, mode = getattr(torch, p.y.dtype), t["bias"], p.activation.mode
    activation = _ACTIVATIONS.get(mode)

    def call():
        y = torch._scaled_mm(a, b, scale_a, scale_b, bias=bias, out_dtype=dtype)
        return y if activation is None else activation(y)
    return call
