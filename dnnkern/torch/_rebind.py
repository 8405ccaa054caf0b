"""PyTorch's own code over other functions: a copy of a function that finds them under the names of its module's globals.

So a layer's forward is PyTorch's, with its checks, its padding modes and its counting of batches, and an optimiser's step is PyTorch's with
its parameter groups; only what computes is replaced.
"""
import functools
import types


def rebound(function, names):
    """A copy of a function of Python in which these names of its globals mean something else."""
    # Without a name a compiler reads globals where they are, not in the module they were copied from.
    known = {**function.__globals__, **names, "__name__": None}
    del known["__name__"]
    copy = types.FunctionType(function.__code__, known, function.__name__, function.__defaults__, function.__closure__)
    copy.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(copy, function)


def methods(cls, end, names):
    """{name: copy} of all methods that a class has below `end`, a base of it, and whose code uses one of the names."""
    found = {}
    for base in reversed(cls.__mro__[:cls.__mro__.index(end)]):
        for name, function in vars(base).items():
            if isinstance(function, types.FunctionType):
                found.pop(name, None)
                if not names.keys().isdisjoint(function.__code__.co_names):
                    found[name] = rebound(function, names)
    return found
