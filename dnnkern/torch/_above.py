"""What overrides above autograd are made of: operators of this library's own, `torch.ops.dnnkern.*`, which compiled graphs call, and
second derivatives by PyTorch's formulas."""
import contextlib
import threading
import time

import torch
from torch.autograd import forward_ad

from ..host.front import MISS
from ..preference import OPEN, USED, context_of, of_context
from ._context import callers
from ._repeated import repeated
from ._rules import only_batches, register
from ._status import record
from ._table import nothing
from ._tensors import KEY

_library = torch.library.Library("dnnkern", "DEF")
_TAGS = torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order
_thread = threading.local()
_in_functorch = torch._C._functorch.peek_interpreter_stack
_clock = time.perf_counter_ns


def counted(function, op, repeats=False):
    """The function, whose calls are counted as those of an operator. `repeats`: it does nothing but call the library's functions, which
    depend on its arguments alone, so that calls like earlier ones may be shortened (`_repeated`)."""
    counts = record(op)
    known = repeated(function, nothing) if repeats else None

    def run(*args):
        if OPEN and (pairs := callers()):
            with context_of(pairs):
                return run(*args)
        start = _clock()
        result = MISS if known is None or USED and of_context() else known.shortened(args)
        if result is MISS:
            result = function(*args) if known is None else known.call(*args)
        counts.count(_clock() - start)
        return result
    return run


def define(schema, kernel, fake, op, repeats=False, *, cast=None, batch=None):
    """An operator of this library, whose calls count as those of `op`, unless its kernel counts (None). `fake` makes results without
    values, with the right strides; `repeats`: see `counted`; `cast`, `batch`: see `_rules.register`."""
    name = schema.partition("(")[0]
    _library.define(schema, tags=_TAGS)
    _library.impl(name, counted(kernel, op, repeats) if op else kernel, KEY)
    _register_fake(f"dnnkern::{name}", fake)
    overload = getattr(torch.ops.dnnkern, name).default
    register(_library, name, overload, cast, batch)
    return overload


def differentiable(overload, backward, setup_context):
    """What `torch.library.register_autograd` does, at the first call: it makes three classes, 1 ms an operator; no public interface."""
    made = []

    def autograd(keyset, *args, **more):
        if not made:
            from torch._library.autograd import Info, make_autograd_impl
            made.append(make_autograd_impl(overload, Info(backward, lambda ctx, inputs, output: setup_context(ctx, inputs, output))))
        return made[0](keyset, *args, **more)
    _library.impl(overload._schema.name.partition("::")[2], autograd, "Autograd", with_keyset=True)


def _register_fake(name, fake):
    """What `torch.library.register_fake` does, which takes 15 ms to find out which of all modules calls it; no public interface."""
    try:
        handle = torch._library.simple_registry.singleton.find(name).fake_impl.register(fake, __file__, lib=_library)
        _library._registration_handles.append(handle)
    except (AttributeError, TypeError):  # of a version that has it otherwise
        torch.library.register_fake(name, fake, lib=_library)


def is_pytorchs():
    """Whether a call has to go to PyTorch: inside functorch's transforms and forward derivatives, which take no autograd.Function, and
    inside `pytorchs`. Its parts are overridden then."""
    return _in_functorch() is not None or forward_ad._current_level >= 0 or getattr(_thread, "off", False)


def is_derived():
    """Whether a call is inside a transform of functorch's other than `torch.vmap`, a forward derivative, or `pytorchs`: no operator of this
    library's own has rules for these."""
    return is_pytorchs() and (forward_ad._current_level >= 0 or getattr(_thread, "off", False) or not only_batches())


@contextlib.contextmanager
def pytorchs():
    """In the block operators above autograd are this thread's PyTorch's."""
    before, _thread.off = getattr(_thread, "off", False), True
    try:
        yield
    finally:
        _thread.off = before


def needs_gradient(*tensors):
    """Whether autograd will ask for a gradient."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def gradients(function, tensors, dys):
    """Gradients that can be derived again, by PyTorch's formulas; None for tensors that need none."""
    needed = [i for i, t in enumerate(tensors) if t is not None and t.requires_grad]
    with torch.enable_grad(), pytorchs():
        found = torch.autograd.grad(function(*tensors), [tensors[i] for i in needed], dys, create_graph=True, allow_unused=True)
    result = [None] * len(tensors)
    for i, gradient in zip(needed, found):
        result[i] = gradient
    return result
