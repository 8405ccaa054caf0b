"""Operators of this library with gradients, which its modules and functions call whether or not overrides are on.

Each is defined as ``torch.ops.dnnkern.*``, which compilers and other tracers put into their graphs. Without them a call goes past the
dispatcher: to the kernel, or where a gradient will be asked for to an autograd.Function around it.
"""
import functools
import inspect

import torch

from ._above import _in_functorch, counted, define, needs_gradient
from ._above import differentiable as with_gradient
from ._overrides import _caller
from ._table import table

_PLAIN = {torch.Tensor, torch.nn.Parameter}
_tracers = torch._C._len_torch_dispatch_stack
_compiling, _scripting = torch.compiler.is_compiling, torch._C._get_tracing_state


def is_traced():
    """Whether something follows the calls of operators: a compiler, a dispatch mode, torch.jit."""
    return _compiling() or _tracers() > 0 or _scripting() is not None


def is_eager(x):
    """Whether a call with this tensor is computed now: nothing traces it."""
    return not _compiling() and type(x) in _PLAIN and not _tracers() and _scripting() is None and _in_functorch() is None


def operator(schema, kernel, fake, op, gradient=None, *, differentiable=1, cast=None, batch=None):
    """A function of an operator's arguments, without keywords.

    Parameters
    ----------
    schema : str
        As of `torch.library`, without a namespace; the first argument is a tensor.
    kernel, fake : callable
        Compute its results, and make results without values.
    op : str or None
        Calls are counted by this name; None: the kernel counts.
    gradient : callable, optional
        Takes the first result's gradient, and for each tensor whether its own is wanted; further parameters have names of the operator's
        arguments, or "y0", "y1" for its results: what they name is kept, y0 only where an argument ``activation`` is not "". Returns the
        gradients of the first tensors among the arguments.
    differentiable : int
        So many results have gradients; where it is more than one, `gradient` takes a tuple of them, None for one that is not asked for.
    cast, batch
        How it takes part in autocast and `torch.vmap`: see `_rules.register`.
    """
    run = counted(kernel, op) if op else kernel
    overload = define(schema, run, fake, None, cast=cast, batch=batch)
    if gradient is None:
        def call(*args):
            return run(*args) if is_eager(args[0]) else overload(*args)
        return call
    node = _node(overload, run, gradient, differentiable)
    tensors = node.tensors

    def call(*args):
        if not is_eager(args[0]):
            return overload(*args)
        return node.apply(*args) if needs_gradient(*[args[i] for i in tensors]) else run(*args)
    return call


def _node(overload, run, gradient, differentiable):
    """An autograd.Function, of which PyTorch also takes the gradient of the operator."""
    arguments = overload._schema.arguments
    position = {a.name: i for i, a in enumerate(arguments)}
    tensors = [i for i, a in enumerate(arguments) if "Tensor" in str(a.type)]
    names = list(inspect.signature(gradient).parameters)[2:]
    inputs = [position[n] for n in names if n in position and position[n] in tensors]
    outputs, ended = [int(n[1:]) for n in names if n not in position], position.get("activation")
    saved = [n for n in names if n in position and position[n] in tensors] + [n for n in names if n not in position]
    # For each parameter of `gradient`: where among the saved tensors it is, or among the arguments.
    source = [(True, saved.index(n)) if n in saved else (False, position[n]) for n in names]

    def setup_context(ctx, inputs_, output):
        results = output if isinstance(output, tuple) else (output,)
        kept = results if ended is None or inputs_[ended] else (None, *results[1:])
        ctx.save_for_backward(*[inputs_[i] for i in inputs], *[kept[i] for i in outputs])
        ctx.options = [None if i in tensors else a for i, a in enumerate(inputs_)]
        ctx.mark_non_differentiable(*results[differentiable:])
        ctx.set_materialize_grads(False)

    def backward(ctx, *dys):
        found = [None] * len(ctx.needs_input_grad)
        dys = dys[:differentiable]
        if all(dy is None for dy in dys):
            return tuple(found)
        kept, options = ctx.saved_tensors, ctx.options
        mask = [ctx.needs_input_grad[i] for i in tensors]
        grads = gradient(dys[0] if differentiable == 1 else dys, mask, *[(kept if is_kept else options)[i] for is_kept, i in source])
        for i, grad in zip(tensors, grads):
            found[i] = grad
        return tuple(found)

    def forward(ctx, *args):
        results = run(*args)
        setup_context(ctx, args, results)
        return results
    with_gradient(overload, backward, setup_context)
    return type(overload._schema.name.partition("::")[2], (torch.autograd.Function,), {
        "forward": staticmethod(forward), "backward": staticmethod(backward), "tensors": tensors})


@functools.cache
def twin(name, gradient=None, batch=None, cast=None):
    """An aten operator on this library's kernel, by the table's function; where that refuses, by PyTorch's. Takes no keywords.

    One without a gradient is a part of a gradient: where its own derivative will be asked for, PyTorch's operator is taken.
    """
    theirs = getattr(torch.ops.aten, name).default
    arguments = theirs._schema.arguments
    first = sum(not a.kwarg_only for a in arguments)
    named = [a.name for a in arguments[first:]]

    def aten(*args):
        return theirs(*args[:first], **dict(zip(named, args[first:])))
    ours = _caller(table()[name], theirs, False)

    def kernel(*args):
        return ours(*args[:first], **dict(zip(named, args[first:])))
    call = operator(str(theirs._schema).removeprefix("aten::").replace("*, ", ""), kernel, aten, None, gradient, cast=cast, batch=batch)
    if gradient is not None:
        return call

    def derivable(*args):
        return aten(*args) if torch.is_grad_enabled() else call(*args)
    return derivable


def derived(name, batch=None, cast=None):
    """Decorator: of a `gradient`, as of `operator`, it makes a `twin` that has it."""
    return functools.partial(twin, name, batch=batch, cast=cast)
