"""Products of tokens and the weights of their experts as an operator of PyTorch, ``dnnkern_graph::moe_grouped_matmul``."""
from typing import Optional

import torch
from torch import Tensor

from ..._enums import moe_grouped_matmul_mode
from ..._wrapper import graph_cache
from ._graphs import MODES, form, like, new_graph, run

NEEDED = {"none": (), "gather": ("token_index",), "scatter": ("token_index", "token_ks")}


def _key(tensors, mode, top_k):
    return tuple(map(form, tensors)), mode, top_k


@graph_cache(_key)
def _graph(tensors, mode, top_k):
    *given, y = tensors
    graph = new_graph(y.dtype)
    names = "token", "weight", "first_token_offset", "token_index", "token_ks"
    keys = [like(graph, t, name) for t, name in zip(given, names)]
    made = graph.moe_grouped_matmul(*keys, mode=moe_grouped_matmul_mode[mode.upper()], top_k=top_k)
    made.set_output(True).set_dim(list(y.shape)).set_stride(list(y.stride()))
    graph.build(MODES)
    return graph, (*keys, made)


def _result(token, weight, token_index, mode):
    rows = token_index.shape[1] if mode == "gather" else token.shape[1]
    return token.new_empty((1, rows, weight.shape[2]))


@torch.library.custom_op("dnnkern_graph::moe_grouped_matmul", mutates_args=())
def _operator(token: Tensor, weight: Tensor, first_token_offset: Tensor, token_index: Optional[Tensor] = None,
              token_ks: Optional[Tensor] = None, mode: str = "none", top_k: int = 1) -> Tensor:
    """The result of a graph."""
    y = _result(token, weight, token_index, mode)
    tensors = token, weight, first_token_offset, token_index, token_ks, y
    graph, keys = _graph(tensors, mode, top_k)
    run(graph, dict(zip(keys, tensors)))
    return y


@_operator.register_fake
def _(token, weight, first_token_offset, token_index=None, token_ks=None, mode="none", top_k=1):
    return _result(token, weight, token_index, mode)


def moe_grouped_matmul(token, weight, first_token_offset, token_index=None, token_ks=None, mode="none", top_k=1):
    """Rows of tokens times the weight of their expert, by a graph's `moe_grouped_matmul`; for `torch.compile`, without gradients.

    Parameters
    ----------
    token : torch.Tensor (1, T, K)
    weight : torch.Tensor (E, K, N)
    first_token_offset : torch.Tensor (E, 1, 1), int32
        Where each expert's rows begin; (B * E, 1, 1): of each of B samples.
    token_index, token_ks : torch.Tensor (1, rows, 1), int32, optional
        The token of a row, with "gather" and "scatter"; which of its `top_k` experts' it is, with "scatter".
    mode : "none", "gather" or "scatter"
        Rows are the tokens; row r is token ``token_index[r]``; the product of row r is row ``token_index[r] * top_k + token_ks[r]`` of the
        result.
    top_k : int

    Returns
    -------
    torch.Tensor (1, rows, N)

    Raises
    ------
    ValueError
        An unknown mode, or one without its indices.
    cudnnGraphNotSupportedError
        A mode, shapes or types that no kernel takes.

    Examples
    --------
    >>> import torch
    >>> first = torch.tensor([0, 3], dtype=torch.int32).view(2, 1, 1)
    >>> weight = torch.stack([torch.ones(4, 8), 2 * torch.ones(4, 8)])
    >>> moe_grouped_matmul(torch.ones(1, 5, 4), weight, first)[0, :, 0].tolist()
    [4.0, 4.0, 4.0, 8.0, 8.0]
    """
    if mode not in NEEDED:
        raise ValueError(f"moe_grouped_matmul: mode={mode!r}; expected {', '.join(map(repr, NEEDED))}")
    given = {"token_index": token_index, "token_ks": token_ks}
    for name in NEEDED[mode]:
        if given[name] is None:
            raise ValueError(f"moe_grouped_matmul: mode={mode!r} without {name}; expected it")
    return _operator(token, weight, first_token_offset, token_index, token_ks, mode, top_k)
