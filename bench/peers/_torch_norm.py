"""PyTorch's layer and RMS normalisation and their gradients: the operators that autograd runs."""
import torch

from dnnkern.host.operands import USUAL

from ._torch_moves import NAME, make_peer  # noqa: F401

ATEN = torch.ops.aten
EPS = USUAL["eps"]


def make(case, operands, clock):
    """The case in PyTorch; None where it lacks a gradient or a beta."""
    p = case.problem
    if p.gamma is None or getattr(p, "beta", None) is not None and p.op == "rms_norm_fwd":
        return None
    return make_peer(bind, tuple(name for name, _, _ in p.arrays[-p.results:]), case, operands, clock)


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return bind(case.problem, arrays)


def bind(p, t):
    """The call of a problem on one set of tensors; a residual, or the gradient of the sum, is a kernel more."""
    x, gamma, shape, outer = t["x"], t["gamma"], list(p.x.shape[p.axis:]), p.x.shape[:p.axis]
    if p.op.endswith("fwd"):
        def run(x):
            return ATEN.native_layer_norm(x, shape, gamma, t["beta"], EPS) if p.op == "layer_norm_fwd" else \
                ATEN._fused_rms_norm(x, shape, gamma, EPS)

        def add():
            total = x + t["residual"]
            return (*run(total), total)
        return (lambda: run(x)) if p.residual is None else add
    mean, rstd = (None if t.get(name) is None else t[name].reshape(*outer, *(1 for _ in shape)) for name in ("mean", "rstd"))

    def gradients():
        if p.op == "layer_norm_bwd":
            found = ATEN.native_layer_norm_backward(t["dy"], x, shape, mean, rstd, gamma, gamma, [True, True, True])
        else:
            found = ATEN._fused_rms_norm_backward(t["dy"], x, shape, rstd, gamma, [True, True])
            if p.dbeta is not None:
                found = (*found, t["dy"].sum(tuple(range(p.axis))))
        return found if p.dsummed is None else (found[0].add_(t["dsummed"]), *found[1:])
    return gradients
