"""Graphs with symbols for sizes: one program for each set of sizes that they are called with."""
import torch
from torch.fx.experimental.proxy_tensor import make_fx

MOST = 64
"""Programs that are kept of a graph."""


def is_symbolic(traced):
    """Whether a graph has symbols among its inputs."""
    for node in traced.graph.find_nodes(op="placeholder"):
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt) or isinstance(value, torch.Tensor) and any(
                isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride(), value.storage_offset())):
            return True
    return False


def shaped(make, traced):
    """A function of the list of a graph's inputs, which is traced anew, with numbers, for new sizes; ``make(traced)`` compiles that."""
    known = {}

    def run(inputs):
        key = tuple((x.shape, x.stride()) if isinstance(x, torch.Tensor) else x for x in inputs)
        found = known.get(key)
        if found is None:
            if len(known) >= MOST:
                known.pop(next(iter(known)))
            found = known[key] = make(_with_numbers(traced, inputs))
        return found(inputs)
    run._boxed_call = True
    return run


def _with_numbers(traced, inputs):
    with torch.no_grad():
        found = make_fx(torch.fx.Interpreter(traced).run, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
    found.graph.eliminate_dead_code()
    return found
