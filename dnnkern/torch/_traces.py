"""Forwards of modules rewritten so that neighbours run in one kernel (`_chains`), by torch.fx.

A module's own forward is traced; its children are not entered. What a trace depends on is checked at each call (`_state`): after a change
there is another trace, and calls with other arguments than plain tensors have the forward as it was written.
"""
import copy
import operator
import random
import threading
import weakref

import torch
from torch import fx, nn

from . import nn as ours
from ._above import is_pytorchs
from ._chains import ACTIVATIONS, FUNCTIONS, HEADS, NORMS, Chain
from ._operator import is_traced

_PLAIN = {torch.Tensor, nn.Parameter}
_VALUES = (bool, int, float, str, type(None), tuple)
_INTERNAL = nn.Module().__dict__.keys() - {"training"}
_ADDITIONS = operator.add, operator.iadd, torch.add, "add", "add_"
_INTO_FIRST = operator.iadd, "add_"
MOST_TENSORS, MOST_TRACES = 4, 16  # arguments of a forward, and traces of a module: where each call needs a new one, none is worth it
_lock = threading.RLock()


class Untraced(Exception):
    """Why a forward is not rewritten."""


class _Tensor(fx.Proxy):
    """An argument, of which it is known that it is a tensor."""
    __class__ = property(lambda self: torch.Tensor)
    _is_param = _is_buffer = False


class _Tracer(fx.Tracer):
    """Traces one module, with positional arguments."""

    def __init__(self, arguments):
        super().__init__()
        self.traced_func_name = f"_traced{arguments}"

    def is_leaf_module(self, m, module_qualified_name):
        return True

    def create_arg(self, a):
        return a.node if issubclass(type(a), fx.Proxy) else super().create_arg(a)

    def proxy(self, node):
        return (_Tensor if node.op == "placeholder" else fx.Proxy)(node, self)


def _taking(count):
    """A method that calls the forward as it was written with so many arguments; a tracer makes one variable for each parameter."""
    names = ", ".join("abcd"[:count])
    return eval(f"lambda self, {names}: self._written({names})")


class Rewritten:
    """Base of modules whose forward is rewritten; the other is their class."""

    def forward(self, *args, **more):
        if more or not (args and _PLAIN.issuperset(map(type, args))) or is_traced() or is_pytorchs():
            return super().forward(*args, **more)
        run = _run_of(self, len(args))
        return super().forward(*args) if run is None else run(self, *args)

    def __reduce_ex__(self, protocol):
        function, args, *more = super().__reduce_ex__(protocol)
        written = written_class(self)
        return _made_again, (function, *(written if a is type(self) else a for a in args)), *more


def _made_again(function, *args):
    found = function(*args)
    found.__class__ = rewritten_class(type(found))
    return found


_classes = weakref.WeakKeyDictionary()


def rewritten_class(cls):
    """The subclass of a module's class with a rewritten forward; there is one of each."""
    found = _classes.get(cls)
    if found is None:
        found = _classes[cls] = type(cls.__name__, (Rewritten, cls), {
            "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__, "_written": cls.forward,
            **{f"_traced{n}": _taking(n) for n in range(1, MOST_TENSORS + 1)}})
    return found


def written_class(module):
    """The class that a module had before it was rewritten."""
    return type(module).__bases__[1]


# ---- when a trace holds

_runs = weakref.WeakKeyDictionary()  # {module: {state: function, or None}}


def _state(module, arguments):
    """What a trace depends on: modes, the module's own attributes, which children it has."""
    known = tuple([(name, _known(value)) for name, value in module.__dict__.items() if name not in _INTERNAL])
    children = tuple([(name, id(child), type(child)) for name, child in module._modules.items()])
    return arguments, torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_autocast_enabled("cuda"), known, children


def _known(value):
    """A value that is to be compared, or the contents of a list or dict; of other objects which one it is."""
    if isinstance(value, _VALUES):
        return value
    if isinstance(value, list):
        return tuple(map(_known, value))
    return tuple([(key, _known(v)) for key, v in value.items()]) if type(value) is dict else id(value)


def _run_of(module, arguments):
    """The rewritten forward for so many tensors; None where there is none."""
    if "_is_replica" in module.__dict__:  # torch.nn.DataParallel makes new ones for each call
        return None
    runs = _runs.get(module)
    if runs is None:
        runs = _runs.setdefault(module, {})
    try:
        state = _state(module, arguments)
        if state in runs:
            return runs[state]
    except TypeError:  # an attribute that is not to be compared
        return None
    if len(runs) >= MOST_TRACES:
        return None
    try:
        run = rewritten(module, arguments)[0]
    except Untraced:
        run = None
    runs[state] = run
    return run


# ---- tracing

def _contents(module):
    """What a forward may change in its module, and the states of random numbers."""
    shallow = [{name: copy.copy(value) if isinstance(value, (dict, list, set)) else value for name, value in d.items()}
               for d in (module.__dict__, module._parameters, module._buffers, module._modules)]
    states = [random.getstate(), torch.get_rng_state().tolist()]
    if torch.cuda.is_initialized():
        states.append(torch.cuda.get_rng_state().tolist())
    return shallow, states


def _same(a, b):
    """Whether nested containers have the same objects."""
    if isinstance(a, dict) and type(a) is type(b):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, set)) and type(a) is type(b):
        return len(a) == len(b) and all(x is y for x, y in zip(a, b))
    return a is b


def _graph(module, arguments):
    """The graph of a module's forward; `Untraced` where it is not the same at each call."""
    if arguments > MOST_TENSORS:
        raise Untraced(f"its forward has {arguments} arguments")
    with _lock:
        before, states = _contents(module)
        try:
            graph = _Tracer(arguments).trace(module)
        except Exception as error:
            raise Untraced(f"its forward is not traced: {(str(error).strip() or repr(error)).splitlines()[0]}") from error
        finally:
            after, states_after = _contents(module)
            changed = not all(map(_same, before, after))
            if changed:
                _restore(module, before)
        if changed:
            raise Untraced("its forward changes the module")
        if states_after != states:
            raise Untraced("its forward draws random numbers")
    return graph


def _restore(module, before):
    for now, then in zip((module.__dict__, module._parameters, module._buffers, module._modules), before):
        for name in [n for n in now if n not in then]:
            del now[name]
        for name, value in then.items():
            held = now.get(name)
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            if isinstance(held, list):
                held[:] = value
            elif isinstance(held, (dict, set)):
                held.clear()
                held.update(value)
            else:
                now[name] = value


def rewritten(module, arguments):
    """(a function of the module and so many tensors, texts of its chains); the function is None without chains."""
    graph = _graph(module, arguments)
    chains = list(_chains(module, graph))
    for number, nodes in enumerate(chains):
        _replace(module, graph, nodes, number)
    if not chains:
        return None, []
    graph.lint()
    code = graph.python_code("self")
    known = dict(code.globals)
    exec(compile(code.src, f"<{type(module).__name__} with chains>", "exec"), known)
    return known["forward"], [" + ".join(map(_text, nodes)) for nodes in chains]


# ---- chains in a graph

def _module(root, node):
    return root.get_submodule(node.target) if node.op == "call_module" else None


def _of(root, node, types):
    """Whether a node calls a module of these types with one argument."""
    return node.op == "call_module" and type(_module(root, node)) in types and len(node.args) == 1 and not node.kwargs


def _is_function(node, targets):
    return node.op in ("call_function", "call_method") and isinstance(node.target, (str, *_CALLABLE)) and node.target in targets


_CALLABLE = type(torch.relu), type(lambda: 0), type(torch.Tensor.add)


def _is_addition(node):
    return _is_function(node, _ADDITIONS) and len(node.args) == 2 and not node.kwargs and all(
        isinstance(a, fx.Node) for a in node.args) and node.args[0] is not node.args[1]


def _is_activation(root, node):
    return _of(root, node, ACTIVATIONS) or _is_function(node, FUNCTIONS) and len(node.args) == 1 and node.kwargs.keys() <= {"inplace"}


def _next(node):
    """The only user of a node's result."""
    return next(iter(node.users)) if len(node.users) == 1 else None


def _chains(root, graph):
    """Lists of nodes: a head, normalisation, addition, activation, of which there are at least two."""
    taken = set()
    for node in graph.nodes:
        if node in taken or not _of(root, node, (*HEADS, *NORMS)):
            continue
        nodes = [node]
        follow = _next(node)
        if follow is not None and type(_module(root, node)) not in (ours.Linear, *NORMS) and _of(root, follow, NORMS):
            nodes.append(follow)
            follow = _next(follow)
        if follow is not None and _is_addition(follow) and (follow.target not in _INTO_FIRST or follow.args[0] is nodes[-1]):
            nodes.append(follow)
            follow = _next(follow)
        if follow is not None and _is_activation(root, follow):
            nodes.append(follow)
        # What starts later than it did must find its argument unchanged.
        while len(nodes) > 1 and not _may_wait(root, graph, nodes):
            nodes = nodes[1:]
        if len(nodes) > 1 and any(_of(root, n, (*HEADS, *NORMS)) for n in nodes):
            taken.update(nodes)
            yield nodes


def _may_wait(root, graph, nodes):
    """Whether all of these can be computed where the last one is."""
    order = list(graph.nodes)
    first, last = order.index(nodes[0]), order.index(nodes[-1])
    private = all(a.op == "call_module" and len(a.users) == 1 and type(_module(root, a)) in ours.BACK and not _writes(root, a)
                  for a in nodes[0].args if isinstance(a, fx.Node) and a not in nodes)
    addition = next((n for n in nodes if _is_addition(n)), None)
    start = first if not private else order.index(addition) if addition is not None else last
    return not any(_writes(root, n) for n in order[start:last] if n not in nodes)


def _writes(root, node):
    """Whether a node may change a tensor that it is given."""
    if node.op == "call_module":
        # Of modules of other packages it is not known.
        return any(getattr(m, "inplace", False) or not type(m).__module__.startswith(("torch.nn.", "dnnkern.torch.nn"))
                   for m in _module(root, node).modules())
    if node.op not in ("call_function", "call_method"):
        return False
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "_")
    module = getattr(node.target, "__module__", None)
    return (name.endswith("_") and not name.endswith("__") or module == "_operator" and name[0] == "i" or name == "setitem"
            or True in node.args or True in node.kwargs.values() or "out" in node.kwargs)


def _replace(root, graph, nodes, number):
    """One node in place of a chain's."""
    last, modules, residual = nodes[-1], [], None
    inputs = [a for a in nodes[0].args if isinstance(a, fx.Node)]
    parts = {"head": None, "norm": None, "activation": None}
    with graph.inserting_before(last):
        for node in nodes:
            if _is_addition(node):
                before = nodes[nodes.index(node) - 1] if node is not nodes[0] else None
                residual = next(a for a in node.args if a is not before)
                continue
            kind = "head" if _of(root, node, HEADS) else "norm" if _of(root, node, NORMS) else "activation"
            if node.op == "call_module":
                parts[kind] = graph.get_attr(node.target)
                modules.append(node)
            else:
                parts[kind] = FUNCTIONS[node.target]

        def run(head, norm, activation, x, residual=None):
            return Chain(head, norm, activation)(x, residual)
        run.__name__ = run.__qualname__ = f"chain{number}"
        made = graph.call_function(run, (*parts.values(), inputs[0], residual))
    last.replace_all_uses_with(made)
    for node in reversed(nodes):
        graph.erase_node(node)


def _text(node):
    return "add" if _is_addition(node) else str(node.target) if isinstance(node.target, str) else node.target.__name__
