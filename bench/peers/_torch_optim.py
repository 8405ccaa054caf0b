"""What the PyTorch peers of optimisers share: its fused kernels, and those that go through lists an operation at a time (foreach).

The numbers are those that `dnnkern.host.operands` measures ours with; a step so late that it corrects nothing.
"""
import torch

from bench.peers import Peer
from bench.torch_arrays import TorchContender, tensors

LATE = 1e6


def make_peer(name, bind, case, operands, clock):
    """The peer whose call on one set of lists is ``bind(problem, lists)``; None where PyTorch has it not: master weights, states of another
    dtype."""
    p = case.problem
    if p.master is not None or any(len({t.dtype for t in p.arrays(k)}) > 1 for k in range(p.count)):
        return None
    calls = [bind(p, lists_of(p, tensors(operands, k))) for k in range(len(operands))]
    if None in calls:
        return None
    try:
        calls[0]()
    except (RuntimeError, NotImplementedError):  # a dtype that its kernel lacks
        return None
    contender = TorchContender(name, calls, clock)

    def write():
        with contender.on_stream():
            calls[0]()
        clock.synchronize()
    return Peer(contender, write)


def lists_of(p, arrays):
    """{list or single array: tensors} of the operands by name."""
    names = [name for name, _ in p.lists] if hasattr(p, "params") else ["grads"]
    found = {name: [arrays[f"{name}{k}"] for k in range(p.count)] for name in names}
    return {**found, **{name: arrays.get(name) for name in ("grad_scale", "found_inf", "out")}}


def make_norm_peer(bind, case, operands, clock):
    """The peer of a norm or of clipping; None with a scale, which PyTorch has elsewhere."""
    if case.problem.grad_scale is not None:
        return None
    sets = [lists_of(case.problem, tensors(operands, k)) for k in range(len(operands))]
    contender = TorchContender("torch", [bind(case.problem, x) for x in sets], clock)

    def write():
        with contender.on_stream():
            sets[0]["out"].copy_(contender.calls[0]())
        clock.synchronize()
    return Peer(contender, write)


def norm(p, x):
    """torch.nn.utils.get_total_norm."""
    return lambda: torch.linalg.vector_norm(torch.stack(torch._foreach_norm(x["grads"], 2.0))).to(x["out"].dtype)


def clip(p, x):
    """torch.nn.utils.clip_grad_norm_, to the norm 1."""
    def call():
        size = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(x["grads"], 2.0)))
        torch._foreach_mul_(x["grads"], torch.clamp(1.0 / (size + 1e-6), max=1.0))
        return size.to(x["out"].dtype)
    return call


def fused(p, x):
    """PyTorch's fused step of a problem; None where it has none."""
    more = {"grad_scale": x["grad_scale"], "found_inf": x["found_inf"], "maximize": "maximize" in p.flags}
    if p.op in ("adam_step", "adamw_step"):
        step = torch._fused_adamw_ if p.op == "adamw_step" else torch._fused_adam_
        steps = [torch.full((), LATE, device=t.device) for t in x["params"]]
        return lambda: step(x["params"], x["grads"], x["m"], x["v"], x.get("vmax", []), steps, lr=1e-3, beta1=0.9, beta2=0.999,
                            weight_decay=1e-2, eps=1e-5, amsgrad="vmax" in x, **more)
    if p.op == "sgd_step" and p.states:
        return lambda: torch._fused_sgd_(x["params"], x["grads"], x["momenta"], weight_decay=1e-2, momentum=0.1, lr=1e-3, dampening=0.9,
                                         nesterov="nesterov" in p.flags, is_first_step=False, **more)
    return None


def foreach(p, x):
    """PyTorch's step of a problem through lists; None where it has none."""
    from torch.optim import adagrad, adam, adamw, rmsprop, sgd
    if x["grad_scale"] is not None:
        return None
    device = x["params"][0].device
    params, grads, more = x["params"], x["grads"], {"foreach": True, "maximize": "maximize" in p.flags}
    steps = [torch.full((), LATE, device=device if p.op.startswith("adam") else "cpu") for _ in params]
    if p.op in ("adam_step", "adamw_step"):
        step = adamw.adamw if p.op == "adamw_step" else adam.adam
        return lambda: step(params, grads, x["m"], x["v"], x.get("vmax", []), steps, capturable=device.type == "cuda",
                            amsgrad="vmax" in x, beta1=0.9, beta2=0.999, lr=1e-3, weight_decay=1e-2, eps=1e-5, **more)
    if p.op == "sgd_step" and p.states:
        return lambda: sgd.sgd(params, grads, x["momenta"], weight_decay=1e-2, momentum=0.1, lr=1e-3, dampening=0.9,
                               nesterov="nesterov" in p.flags, **more)
    if p.op == "rmsprop_step" and [name for name, _ in p.states] == ["v"]:
        return lambda: rmsprop.rmsprop(params, grads, x["v"], [], [], steps, lr=1e-3, alpha=0.9, eps=1e-5, weight_decay=1e-2, momentum=0.0,
                                       centered=False, **more)
    if p.op == "adagrad_step":
        return lambda: adagrad.adagrad(params, grads, x["sums"], steps, lr=1e-3, weight_decay=1e-2, lr_decay=0.0, eps=1e-5, **more)
    return None
