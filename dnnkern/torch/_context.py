"""Backward passes on a GPU run in threads of autograd's own. They have the context of the thread that called ``backward``: what records its
calls (`dnnkern.recording`), and what it prefers (`dnnkern.dispatch.prefer`)."""
import threading

import torch

from ..preference import FOLLOWERS, of_context

_NAME = "dnnkern.context"
_threads, _KEPT = threading.local(), []


class Holder:
    """The pairs of a thread's context, as they are now."""
    __slots__ = ("pairs",)


def _follow(pairs):
    # PyTorch hands what is stashed here to the threads that work for this one. 2.11 counts no reference of its own, though it drops one in
    # the end: a holder is stashed once a thread, and kept.
    holder = getattr(_threads, "holder", None)
    if holder is None:
        if not pairs:
            return
        holder = _threads.holder = Holder()
        _KEPT.extend((holder, holder))
        torch._C._stash_obj_in_tls(_NAME, holder)
    holder.pairs = pairs


def callers():
    """The pairs of the thread that this one works for, if it is another; asked only where `OPEN` has a block, in which that thread waits
    for this one."""
    return torch._C._get_obj_in_tls(_NAME).pairs if not of_context() and torch._C._is_key_in_tls(_NAME) else ()


FOLLOWERS.append(_follow)
if of_context():  # imported inside of a block
    _follow(of_context())
