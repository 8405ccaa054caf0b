"""What the PyTorch peers of batch and group normalisation share: its operators on permuted views of channels-last arrays."""
import torch

from bench.peers import Peer
from bench.torch_arrays import TorchContender, tensors
from dnnkern.host.operands import USUAL

IN_PLACE = {"identity": lambda y: y, "relu": torch.relu_, "swish": lambda y: torch.nn.functional.silu(y, inplace=True)}
NAME, EPS, MOMENTUM = "torch", USUAL["eps"], USUAL["momentum"]


def make(case, operands, clock):
    """The case in PyTorch; None for what it lacks: statistics of activations."""
    return make_with(bind, NAME, case, operands, clock)


def make_with(bind_one, name, case, operands, clock):
    """The peer whose call on one set of tensors is ``bind_one(problem, tensors)``."""
    p = case.problem
    if p.mode != "spatial":
        return None
    arrays = [tensors(operands, k) for k in range(len(operands))]
    try:
        calls = [bind_one(p, a) for a in arrays]
        calls[0]()
    except (RuntimeError, NotImplementedError):  # a dtype that its kernel lacks
        return None
    contender = TorchContender(name, calls, clock)
    names = [n for n in p.result_names if p.tensor(n) is not None]
    if p.op == "group_norm_fwd":  # PyTorch's function keeps the statistics, rounded as x, to itself
        names = names[:1]

    def write():
        with contender.on_stream():
            found = calls[0]()
            for result, value in zip(names, found):
                y = arrays[0][result]
                value = value.movedim(1, -1) if p.layout == "NHWC" and value.dim() > 2 else value
                y.copy_(value.reshape(y.shape))
        clock.synchronize()
    return Peer(contender, write, 1e-3 if p.op == "batch_norm_bwd" else None, names)  # its sums of 16-bit planes are off by up to 3e-4


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return bind(case.problem, arrays)


def bind(p, t):
    """The call of a problem; its results are in the order of ours, as many as PyTorch gives."""
    return {"batch_norm_train_fwd": training, "batch_norm_infer": inference, "batch_norm_bwd": gradients, "group_norm_fwd": groups,
            "group_norm_bwd": group_gradients}[p.op](p, t)


def first(p, tensor):
    """An image with its channels in front."""
    return tensor.movedim(-1, 1) if p.layout == "NHWC" and tensor is not None else tensor


def finished(p, y, residual):
    """With the residual and the activation."""
    if residual is not None:
        y = y.add_(residual)
    return IN_PLACE[p.activation.mode](y)


def training(p, t, operator="native_batch_norm"):
    """Forward in training."""
    x, residual, run = first(p, t["x"]), first(p, t["residual"]), getattr(torch.ops.aten, operator)
    operands = x, t["gamma"], t["beta"], t["running_mean"], t["running_var"]

    def call():
        y, mean, rstd = run(*operands, True, MOMENTUM, EPS)[:3]
        return finished(p, y, residual), mean, rstd
    return call


def inference(p, t):
    """By given statistics."""
    x, residual = first(p, t["x"]), first(p, t["residual"])
    operands = x, t["gamma"], t["beta"], t["mean"], t["var"]
    return lambda: (finished(p, torch.ops.aten.native_batch_norm(*operands, False, MOMENTUM, EPS)[0], residual),)


def past_activation(p, dy, y):
    """dy times the activation's derivative, found from what PyTorch keeps for it: y of relu, the argument of swish."""
    if p.activation.mode == "swish":
        return torch.ops.aten.silu_backward(dy, y)
    return torch.ops.aten.threshold_backward(dy, y, 0) if p.activation.mode == "relu" else dy


def cudnn_gradients(p, t):
    """Of training, by cuDNN, with what its forward pass reserved."""
    dy, x, y = (first(p, t[name]) for name in ("dy", "x", "y"))
    gamma, zeros = t["gamma"], torch.zeros_like(t["gamma"])
    reserve = torch.ops.aten.cudnn_batch_norm(x, gamma, zeros, None, None, True, MOMENTUM, EPS)[3]

    def call():
        dz = past_activation(p, dy, y)
        found = torch.ops.aten.cudnn_batch_norm_backward(x, dz, gamma, None, None, t["mean"], t["rstd"], EPS, reserve)
        return (*found, dz)
    return call


def gradients(p, t):
    """Of training, or of frozen statistics: those of the variance that has this rstd, whose epsilon is 0 then."""
    dy, x, y = (first(p, t[name]) for name in ("dy", "x", "y"))
    running = (t["mean"], 1 / t["rstd"] ** 2) if p.frozen else (None, None)

    def call():
        dz = past_activation(p, dy, y)
        found = torch.ops.aten.native_batch_norm_backward(dz, x, t["gamma"], *running, t["mean"], t["rstd"], not p.frozen,
                                                          0.0 if p.frozen else EPS, [True] * 3)
        return (*found, dz)
    return call


def groups(p, t):
    """Group normalisation, as its function picks kernels."""
    x, gamma, beta = first(p, t["x"]), t["gamma"], t["beta"]
    return lambda: (finished(p, torch.nn.functional.group_norm(x, p.groups, gamma, beta, EPS), None),)


def group_gradients(p, t):
    """Of group normalisation; its kernels read channels first alone."""
    dy, x, y = (first(p, t[name]) for name in ("dy", "x", "y"))
    n, c = x.shape[:2]
    if p.activation.mode == "swish":
        mean, rstd = (t[name].repeat_interleave(c // p.groups, 1).view(n, c, *(1,) * (x.ndim - 2)) for name in ("mean", "rstd"))
        gamma, beta = (t[name].view(c, *(1,) * (x.ndim - 2)) for name in ("gamma", "beta"))
        y = ((x - mean) * rstd * gamma + beta).to(x.dtype)

    def call():
        dz = past_activation(p, dy, y).contiguous()
        return torch.ops.aten.native_group_norm_backward(dz, x.contiguous(), t["mean"], t["rstd"], t["gamma"], n, c, x[0, 0].numel(),
                                                         p.groups, [True] * 3)
    return call
