"""What ran on this library's kernels, and what JAX compiled to its own and why."""
from ..host.calls import Calls, Row

_calls = Calls()
record = _calls.record

__all__ = ["Row", "record", "status"]


def status(*, reset=False) -> list:
    """Calls of this library's functions and of replaced operations so far, in this process.

    Programs run asynchronously: what has not finished (``block_until_ready``) may not be counted yet.

    Parameters
    ----------
    reset : bool
        Count from 0 again afterwards.

    Returns
    -------
    list of Row
        One for each operation that ran on this library's kernels, and one for each reason why JAX compiled its own; the longest first.

    Examples
    --------
    >>> import jax.numpy as jnp, dnnkern.jax
    >>> before = dnnkern.jax.status(reset=True)
    >>> y = dnnkern.jax.matmul(jnp.ones((2, 3)), jnp.ones((3, 4))).block_until_ready()
    >>> [(row.op, row.ours, row.calls) for row in dnnkern.jax.status(reset=True)]
    [('matmul', True, 1)]
    """
    return _calls.rows(reset)
