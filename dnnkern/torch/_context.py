"""Backward passes on a GPU run in threads of autograd's own. They have the context of the thread that called ``backward``: what records its
calls (`dnnkern.recording`), and what it prefers (`dnnkern.dispatch.prefer`)."""
import torch

from ..preference import FOLLOWERS, of_context

_NAME = "dnnkern.context"


def _follow(pairs):
    # PyTorch hands what is stashed here to the threads that work for this one.
    torch._C._stash_obj_in_tls(_NAME, pairs)


def callers():
    """The pairs of the thread that this one works for, if it is another; asked only where `USED` says that some thread has any."""
    return torch._C._get_obj_in_tls(_NAME) if not of_context() and torch._C._is_key_in_tls(_NAME) else ()


FOLLOWERS.append(_follow)
if of_context():  # imported inside of a block
    _follow(of_context())
