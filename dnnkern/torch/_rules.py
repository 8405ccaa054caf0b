"""How operators of this library take part in autocast and `torch.vmap`: what each says of itself is data, the rules are these."""
from typing import Callable, NamedTuple

import torch

from ._tensors import FLOATS, KEY

LOW, FLOAT32 = "low", "float32"
"""What autocast does to arguments: rounds them to its dtype, or makes them float32."""
_DEVICE = KEY.lower()
_AUTOCAST = getattr(torch._C.DispatchKey, f"Autocast{KEY}")
_autocast, _autocast_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
_stack = torch._C._functorch.get_interpreter_stack


class Batch(NamedTuple):
    """How a call with one dimension more, of a batch of calls, is one call.

    Attributes
    ----------
    tensors : tuple of str
        The arguments that may have the dimension; where another has it, the calls are made one after the other.
    folded : bool
        Whether it becomes part of the first dimension, of the results too; otherwise it becomes the first one itself.
    shifted : tuple of str
        Arguments that count dimensions from the first one, which is one later then.
    when : callable, optional
        Takes {name: argument}, of single calls, and the names of those with the dimension: whether it may be one call.
    """
    tensors: tuple
    folded: bool
    shifted: tuple = ()
    when: Callable | None = None


def folded(*tensors, when=None):
    """A `Batch` that becomes part of the first dimension."""
    return Batch(tensors, True, (), when)


def leading(*tensors, shifted=(), when=None):
    """A `Batch` that becomes the first dimension."""
    return Batch(tensors, False, shifted, when)


def register(library, name, overload, cast, batch):
    """Add an operator's rules. `cast` is None, `LOW`, `FLOAT32`, or one of these and the names of arguments; `batch` a `Batch` or None."""
    names = [a.name for a in overload._schema.arguments]

    def batched(keyset, *args, **more):
        from torch._functorch.autograd_function import custom_function_call_vmap_helper
        from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
        return custom_function_call_vmap_helper(retrieve_current_functorch_interpreter(), rule, overload, *args, **more)

    def rule(info, dims, *args):
        if info.batch_size == 0:
            raise ValueError(f"{name}: torch.vmap of a batch of 0; expected at least 1")
        given = dict(zip(names, args))
        which = {n: d for n, d in zip(names, dims) if isinstance(d, int)}
        at_once = batch is not None and which and set(which) <= set(batch.tensors) and (
            batch.when is None or batch.when(given, which))
        return (_folded if batch.folded else _leading)(overload, batch, given, which, info.batch_size) if at_once else (
            _looped(overload, args, dims, info.batch_size))
    library.impl(name, batched, "FuncTorchBatched", with_keyset=True)
    if cast is None:
        return
    kind, only = (cast, None) if isinstance(cast, str) else (cast[0], set(cast[1:]))

    def autocast(*args):
        chosen = args if only is None else [a if n in only else None for n, a in zip(names, args)]
        done = in_dtype(chosen, kind)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(_AUTOCAST)):
            return overload(*[a if d is None else d for a, d in zip(args, done)])
    library.impl(name, autocast, f"Autocast{KEY}")


def _each(function, result):
    """(results, 0 for each of them), with the structure that `torch.vmap` expects."""
    if isinstance(result, torch.Tensor):
        return function(result), 0
    return type(result)(map(function, result)), type(result)([0] * len(result))


def _folded(overload, batch, given, which, size):
    for name in batch.tensors:
        x = given[name]
        if x is not None:
            x = x.movedim(which[name], 0) if name in which else x.expand(size, *x.shape)
            given[name] = x.flatten(0, 1)
    return _each(lambda y: y.unflatten(0, (size, -1)), overload(*given.values()))


def _leading(overload, batch, given, which, size):
    for name in batch.tensors:
        x = given[name]
        if x is not None:
            given[name] = x.movedim(which[name], 0) if name in which else x.expand(size, *x.shape)
    for name in batch.shifted:
        given[name] += given[name] >= 0
    return _each(lambda y: y, overload(*given.values()))


def _looped(overload, args, dims, size):
    from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten
    leaves, structure = tree_flatten(list(args))
    along = tree_flatten(list(dims))[0]
    leaves = [x.movedim(d, 0).contiguous() if d else x for x, d in zip(leaves, along)]  # some kernels take packed tensors only
    results = [overload(*tree_unflatten([x if d is None else x[i] for x, d in zip(leaves, along)], structure)) for i in range(size)]
    parts = [tree_flatten(r)[0] for r in results]
    whole = tree_unflatten([torch.stack(same) for same in zip(*parts)], tree_flatten(results[0])[1])
    return whole, tree_map(lambda _: 0, whole)


def only_batches():
    """Whether functorch's transforms around this call, if there are any, are all `torch.vmap`, which operators have rules for."""
    return all(i.key() == torch._C._functorch.TransformType.Vmap for i in _stack() or ())


def in_dtype(args, cast=LOW):
    """Arguments as autocast passes them on, where it is on."""
    if not _autocast(_DEVICE):
        return args
    dtype = _autocast_dtype(_DEVICE) if cast is LOW else torch.float32
    return [_as(dtype, a) for a in args]


def _as(dtype, a):
    """An argument in a dtype; float64 and integers as they are."""
    if isinstance(a, torch.Tensor):
        return a.to(dtype) if a.dtype in FLOATS and a.dtype is not torch.float64 else a
    return [_as(dtype, t) for t in a] if isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor) else a
