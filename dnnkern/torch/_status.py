"""What ran on this library's kernels, and what on PyTorch's and why."""
from ..host.calls import Calls, Row

_calls = Calls()
record = _calls.record

__all__ = ["Row", "record", "status"]


def status(*, reset=False) -> list:
    """Calls of overridden operators so far, in this process.

    Parameters
    ----------
    reset : bool
        Count from 0 again afterwards.

    Returns
    -------
    list of Row
        One for each operator that ran on this library's kernels, and one for each reason why it ran on PyTorch's; the longest first.

    Examples
    --------
    >>> import torch, dnnkern.torch
    >>> before = dnnkern.torch.status(reset=True)
    >>> with dnnkern.torch.enabled("mm"):
    ...     y = torch.ones(2, 3) @ torch.ones(3, 4)
    ...     z = torch.ones(2, 3, dtype=torch.int64) @ torch.ones(3, 4, dtype=torch.int64)
    >>> for row in sorted(dnnkern.torch.status(reset=True)):
    ...     print(row.op, row.ours, row.why, row.calls)
    mm False dtype int64 1
    mm True None 1
    """
    return _calls.rows(reset)
