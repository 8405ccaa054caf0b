"""Optimisers with PyTorch's names, arguments and state dicts whose step is one call of this library for a list of parameters.

Each is a subclass of PyTorch's optimiser of that name and has its step, with another function on lists of tensors: states can be loaded
either way, and schedulers, hooks, closures and gradient scalers work as with PyTorch's. `foreach` makes no difference. With ``fused=True``
counts of steps are on the device, and a gradient scaler's numbers go into the kernel. Parameters that have made different numbers of
steps are several calls. What this library does not compute goes to PyTorch's function: sparse and complex gradients,
``differentiable=True``, and steps that are compiled.

`LAMB` and `Lion`, which PyTorch does not have, have arguments like those of its `Adam`.

>>> import torch, dnnkern.torch
>>> weight = torch.nn.Parameter(torch.ones(2))
>>> optimizer = dnnkern.torch.optim.AdamW([weight], lr=0.25, weight_decay=0.0)
>>> weight.grad = torch.tensor([3.0, -4.0])
>>> before = dnnkern.torch.status(reset=True)
>>> optimizer.step()
>>> weight.detach(), isinstance(optimizer, torch.optim.AdamW)
(tensor([0.7500, 1.2500]), True)
>>> [(row.op, row.ours) for row in dnnkern.torch.status(reset=True)]
[('adam', True)]
"""
import inspect
import time

import torch

from .. import NotSupported, adagrad_step, adam_step, adamw_step, lamb_step, lion_step, rmsprop_step, sgd_step
from ._rebind import rebound
from ._status import record
from ._table import Refused
from ._tensors import KEY
from .ops.optim import STEPS, check, in_groups, some

_ERRORS = Refused, NotSupported, ValueError, TypeError
_DEVICE, _clock = KEY.lower(), time.perf_counter_ns


def _number(name, value):
    """A number that PyTorch also takes as a tensor; one on a GPU is not read."""
    if isinstance(value, torch.Tensor):
        if value.is_cuda:
            raise Refused(f"{name} on the device")
        return value.item()
    return value


def _counted_groups(function, steps, found_inf, run):
    """Count a step of all parameters, and ``run(indices, number of the step)`` for those that have made equally many.

    Of a step that `found_inf` skips the count is taken back, as PyTorch's fused optimisers do.
    """
    groups = STEPS.groups(steps)
    torch._foreach_add_(steps, 1)

    def counted(group):
        first = steps[group[0]]
        run(group, first if first.is_cuda else int(first))
    try:
        in_groups(function, groups, counted)
    except _ERRORS:
        torch._foreach_sub_(steps, 1)
        raise
    if found_inf is not None:
        torch._foreach_sub_(steps, [found_inf] * len(steps))


def _adam(params, grads, m, v, vmax, steps, *, amsgrad, beta1, beta2, lr, weight_decay, eps, maximize, decoupled_weight_decay=False,
          grad_scale=None, found_inf=None):
    step = adamw_step if decoupled_weight_decay else adam_step
    beta1, beta2, lr = _number("beta1", beta1), _number("beta2", beta2), _number("lr", lr)

    def run(group, number):
        *lists, largest = some((params, grads, m, v, vmax), group)
        step(*lists, largest if amsgrad else None, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay, step=number,
             maximize=maximize, grad_scale=grad_scale, found_inf=found_inf)
    _counted_groups("adam", steps, found_inf, run)


def _sgd(params, grads, momenta, *, weight_decay, momentum, lr, dampening, nesterov, maximize, grad_scale=None, found_inf=None):
    options = {"lr": _number("lr", lr), "momentum": momentum, "dampening": dampening, "nesterov": nesterov, "weight_decay": weight_decay,
               "maximize": maximize, "grad_scale": grad_scale, "found_inf": found_inf}
    if not momentum:
        sgd_step(params, grads, None, **options)
        return
    new = [i for i, buffer in enumerate(momenta) if buffer is None]
    filled = [torch.zeros_like(p) if buffer is None else buffer for p, buffer in zip(params, momenta)]
    for group in filter(None, (new, sorted({*range(len(params))} - {*new}))):
        sgd_step(*some((params, grads, filled), group), first=group is new, **options)
    momenta[:] = filled


def _rmsprop(params, grads, v, means, momenta, steps, *, lr, alpha, eps, weight_decay, momentum, centered, maximize=False):
    rmsprop_step(params, grads, v, means if centered else None, momenta if momentum > 0 else None, lr=_number("lr", lr), alpha=alpha,
                 eps=eps, momentum=momentum, weight_decay=weight_decay, maximize=maximize)
    torch._foreach_add_(steps, 1)


def _adagrad(params, grads, sums, steps, *, lr, weight_decay, lr_decay, eps, maximize, grad_scale=None, found_inf=None):
    def run(group, number):
        adagrad_step(*some((params, grads, sums), group), lr=_number("lr", lr), lr_decay=lr_decay, eps=eps, weight_decay=weight_decay,
                     step=number, maximize=maximize, grad_scale=grad_scale, found_inf=found_inf)
    _counted_groups("adagrad", steps, found_inf, run)


_ELSEWHERE = "differentiable", "has_complex", "has_sparse_grad"
_NO_MATTER = {"foreach", "fused", "capturable", *_ELSEWHERE}


def _on_lists(ours, theirs):
    """A function on lists of parameters, gradients and states in place of PyTorch's `theirs`."""
    counts = record(theirs.__name__)

    def call(*lists, **options):
        start = _clock()
        try:
            for name in _ELSEWHERE:
                if options.get(name):
                    raise Refused(name)
            if torch.compiler.is_compiling():
                raise Refused("a compiler traces")
            if not lists[0]:
                return
            check(*([t for t in values if t is not None] for values in lists))
            if any(p.device.type != _DEVICE for p in lists[0]):
                raise Refused("parameters on another device")
            ours(*lists, **{name: value for name, value in options.items() if name not in _NO_MATTER})
        except _ERRORS as error:
            theirs(*lists, **options)
            counts.refuse(str(error), _clock() - start)
            return
        # The kernels have written what autograd does not know of.
        torch.autograd.graph.increment_version([t for i, values in enumerate(lists) if i != 1 for t in values if t is not None])
        counts.count(_clock() - start)
    return call


def _optimizer(name, function, ours):
    theirs = getattr(torch.optim, name)
    step = inspect.unwrap(theirs.step)
    on_lists = rebound(step, {function: _on_lists(ours, step.__globals__[function])})

    def step(self, closure=None):
        if self.defaults.get("differentiable"):
            return theirs.step(self, closure)
        with torch.no_grad():
            return on_lists(self, closure)
    step.__doc__ = theirs.step.__doc__
    doc = f"`torch.optim.{name}` with this library's step on lists."
    return type(name, (theirs,), {"__module__": __name__, "__doc__": doc, "step": step})


SGD = _optimizer("SGD", "sgd", _sgd)
Adam, AdamW = _optimizer("Adam", "adam", _adam), _optimizer("AdamW", "adam", _adam)
RMSprop, Adagrad = _optimizer("RMSprop", "rmsprop", _rmsprop), _optimizer("Adagrad", "adagrad", _adagrad)


# ---- optimisers that PyTorch does not have

class _Own(torch.optim.Optimizer):
    """Of a step on lists: parameters, gradients, and `states` of the parameters' shapes."""
    states, counts = (), True

    def __init__(self, params, lr, betas, weight_decay, maximize, **more):
        betas = tuple(betas)
        for what, value, good in (("lr", lr, lr >= 0), ("weight_decay", weight_decay, weight_decay >= 0),
                                  ("betas", betas, len(betas) == 2 and all(0 <= b < 1 for b in betas))):
            if not good:
                raise ValueError(f"{type(self).__name__}: {what} is {value}; expected "
                                 f"{'two numbers in [0, 1)' if what == 'betas' else '0 or more'}")
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize, **more})

    @torch.no_grad()
    def step(self, closure=None):
        """A step; `closure`, if there is one, computes gradients, and its result is returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for options in self.param_groups:
            params = [p for p in options["params"] if p.grad is not None]
            if not params:
                continue
            for p in params:
                if p.grad.is_sparse or p.device.type != _DEVICE:
                    raise ValueError(f"{type(self).__name__}: a parameter of shape {tuple(p.shape)} on {p.device} with "
                                     f"{'a sparse' if p.grad.is_sparse else 'a dense'} gradient; expected it on {_DEVICE}, and a dense one")
                if not self.state[p]:
                    self.state[p].update({"step": torch.zeros(())} if self.counts else {},
                                         **{name: torch.zeros_like(p) for name in self.states})
            lists = [params, [p.grad for p in params], *([self.state[p][name] for p in params] for name in self.states)]
            self._on_lists(lists, options, [self.state[p]["step"] for p in params] if self.counts else None)
            torch.autograd.graph.increment_version([t for i, values in enumerate(lists) if i != 1 for t in values])
        return loss


class LAMB(_Own):
    """LAMB: the step of each parameter is proportional to its norm (`dnnkern.lamb_step`).

    Parameters
    ----------
    params, lr, betas, eps, weight_decay, maximize
        As of `torch.optim.Adam`.
    """
    states = "exp_avg", "exp_avg_sq"

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, *, maximize=False):
        super().__init__(params, lr, betas, weight_decay, maximize, eps=eps)

    def _on_lists(self, lists, options, steps):
        beta1, beta2 = options["betas"]

        def run(group, number):
            lamb_step(*some(lists, group), lr=_number("lr", options["lr"]), beta1=beta1, beta2=beta2, eps=options["eps"],
                      weight_decay=options["weight_decay"], step=number, maximize=options["maximize"])
        _counted_groups("LAMB", steps, None, run)


class Lion(_Own):
    """Lion: steps of one size, in the direction of the sign of the momentum (`dnnkern.lion_step`).

    Parameters
    ----------
    params, lr, betas, weight_decay, maximize
        As of `torch.optim.AdamW`.
    """
    states, counts = ("exp_avg",), False

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, *, maximize=False):
        super().__init__(params, lr, betas, weight_decay, maximize)

    def _on_lists(self, lists, options, steps):
        beta1, beta2 = options["betas"]
        lion_step(*lists, lr=_number("lr", options["lr"]), beta1=beta1, beta2=beta2, weight_decay=options["weight_decay"],
                  maximize=options["maximize"])


__all__ = ["Adagrad", "Adam", "AdamW", "LAMB", "Lion", "RMSprop", "SGD"]
