"""PyTorch's avg_pool_bwd."""
from ._torch_pool import NAME, bind, make  # noqa: F401


def plain_call(case, arrays):
    """The call on torch tensors, for the host's time."""
    return bind(case.problem, arrays)
