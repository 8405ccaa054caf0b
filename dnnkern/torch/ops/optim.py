"""Fused optimisers: lists of parameters in one launch."""
import operator
import weakref

import torch

import dnnkern

from ... import NotSupported
from .._table import Refused, aten
from .._tensors import FLOATS

_PLAIN = {torch.Tensor, torch.nn.Parameter}
_version_of = operator.attrgetter("_version")


def check(*lists, alike=False):
    """Refuse tensors of other types and dtypes; `alike`: those of a list have one dtype, as PyTorch gives them to fused optimisers."""
    for tensors in lists:
        if not _PLAIN.issuperset(map(type, tensors)):
            raise Refused("parameters that are no plain tensors")
        if not FLOATS.issuperset([t.dtype for t in (tensors[:1] if alike else tensors)]):
            raise Refused(f"dtypes {sorted({str(t.dtype) for t in tensors})}")


class _Steps:
    """Which of a list's parameters have made the same number of steps, each of which PyTorch counts in a tensor of its own.

    The counts are read once, which on a GPU waits for it. From then on each step adds one to all of them, which their versions show.
    """

    def __init__(self):
        self.known = {}

    def groups(self, steps):
        """Lists of indices of equal steps."""
        if len(steps) == 1:
            return [[0]]
        key = tuple(map(id, steps))
        found = self.known.get(key)
        if found is not None:
            alive, versions, groups = found
            ahead = set(map(operator.sub, map(_version_of, steps), versions))
            if len(ahead) == 1 and all(map(operator.is_, map(weakref.ref.__call__, alive), steps)):
                return groups
        if steps[0].is_cuda and torch.cuda.is_current_stream_capturing():
            raise Refused("a CUDA graph is being captured at the first step")
        counts = torch.stack([t.reshape(()) for t in steps]).tolist()
        groups = [[i for i, n in enumerate(counts) if n == count] for count in dict.fromkeys(counts)]
        if len(self.known) >= 64:
            self.known.clear()
        self.known[key] = [weakref.ref(t) for t in steps], [t._version for t in steps], groups
        return groups


STEPS = _Steps()


def some(lists, group):
    """These elements of lists; of an empty list none."""
    return [values if not values or len(values) == len(group) else [values[i] for i in group] for values in lists]


def in_groups(function, groups, run):
    """``run(group)`` for each. Once a group has been updated no error may lead to PyTorch's function, which would update it again."""
    for k, group in enumerate(groups):
        try:
            run(group)
        except (Refused, NotSupported, TypeError, ValueError) as error:
            if k == 0:
                raise
            raise RuntimeError(f"{function}: the step ended after {k} of its groups of parameters: {error}") from error


def _adam(function, params, grads, m, v, vmax, steps, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize, grad_scale, found_inf):
    if grad_scale is not None:
        raise Refused("grad_scale: PyTorch's kernel also divides the gradients in place")
    check(params, grads, m, v, vmax, alike=True)
    if not params:
        return

    def run(group):
        *lists, largest = some((params, grads, m, v, vmax), group)
        function(*lists, largest if amsgrad else None, lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay,
                 step=steps[group[0]], maximize=maximize, found_inf=found_inf)
    in_groups(function.__name__, STEPS.groups(steps), run)


@aten("_fused_adam_")
def fused_adam(params, grads, m, v, vmax, steps, *, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize, grad_scale=None,
               found_inf=None):
    """``adam_step``."""
    _adam(dnnkern.adam_step, params, grads, m, v, vmax, steps, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize, grad_scale,
          found_inf)


@aten("_fused_adamw_")
def fused_adamw(params, grads, m, v, vmax, steps, *, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize, grad_scale=None,
                found_inf=None):
    """``adamw_step``."""
    _adam(dnnkern.adamw_step, params, grads, m, v, vmax, steps, lr, beta1, beta2, weight_decay, eps, amsgrad, maximize, grad_scale,
          found_inf)


@aten("_fused_sgd_")
def fused_sgd(params, grads, momenta, *, weight_decay, momentum, lr, dampening, nesterov, maximize, is_first_step, grad_scale=None,
              found_inf=None):
    """``sgd_step``."""
    if grad_scale is not None:
        raise Refused("grad_scale: PyTorch's kernel also divides the gradients in place")
    check(params, grads, momenta, alike=True)
    if params:
        dnnkern.sgd_step(params, grads, momenta if momentum else None, lr=lr, momentum=momentum, dampening=dampening, nesterov=nesterov,
                         weight_decay=weight_decay, first=is_first_step, maximize=maximize, found_inf=found_inf)
