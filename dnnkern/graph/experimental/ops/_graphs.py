"""What the operators share: graphs of a form of call, and running one on tensors."""
import torch

from ..._enums import data_type, heur_mode
from ..._pygraph import pygraph

MODES = [heur_mode.A, heur_mode.FALLBACK]


def form(t):
    """What a graph depends on of a tensor, or of None."""
    return None if t is None else (tuple(t.shape), t.stride(), t.dtype, t.device)


def new_graph(dtype):
    """A graph of tensors of a type, computed in FLOAT, or in DOUBLE."""
    compute = data_type.DOUBLE if dtype is torch.float64 else data_type.FLOAT
    return pygraph(io_data_type=dtype, intermediate_data_type=compute, compute_data_type=compute)


def like(graph, t, name):
    """A tensor of the graph for one of PyTorch's, or None."""
    return None if t is None else graph.tensor(list(t.shape), list(t.stride()), t.dtype, name=name)


def run(graph, pack):
    """Execute with {tensor of the graph, or None: PyTorch's}, on the current stream."""
    tensors = {key: t for key, t in pack.items() if key is not None}
    first = next(iter(tensors.values()))
    graph.execute(tensors, torch.empty(graph.get_workspace_size(), dtype=torch.uint8, device=first.device))
