"""``torch.compile(model, backend="dnnkern")``: a program's forward and backward passes as graphs of `dnnkern.graph`."""
from ._backend import backend
from ._explain import Explanation, explain

__all__ = ["Explanation", "backend", "explain"]
