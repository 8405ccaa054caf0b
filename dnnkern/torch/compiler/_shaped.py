"""Graphs with symbols for sizes: one program for each set of sizes that they are called with."""
import torch
from functorch.compile import make_boxed_func
from torch.fx.experimental.proxy_tensor import make_fx

from ._assemble import Assembled

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


class Shaped:
    """A function of the list of a graph's inputs, which is traced anew, with numbers, for new sizes."""
    _boxed_call = True

    def __init__(self, program, kind, traced):
        self.program, self.kind, self.traced, self.known = program, kind, traced, {}

    def __call__(self, inputs):
        key = tuple((x.shape, x.stride()) if isinstance(x, torch.Tensor) else x for x in inputs)
        run = self.known.get(key)
        if run is None:
            if len(self.known) >= MOST:
                self.known.pop(next(iter(self.known)))
            run = self.known[key] = self._made(inputs)
        return run(inputs)

    def _made(self, inputs):
        with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
            traced = make_fx(torch.fx.Interpreter(self.traced).run, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)
        traced.graph.eliminate_dead_code()
        made = Assembled(traced)
        self.program.add(self.kind, made)
        return make_boxed_func(made.module.forward)
