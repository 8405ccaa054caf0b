"""Compiled graphs and overrides above autograd: a graph is traced with the operators that such an override calls."""
import sys

import torch

import dnnkern

_before = []  # the tag that a program had set, while ours is


def compiled_graphs(names):
    """Keep graphs that PyTorch has compiled, in this process and on disk, apart by the overrides above autograd."""
    names = sorted(names)
    config = torch.compiler.config
    if not names and not _before:
        return
    if not _before:
        _before.append(config.cache_key_tag)
    tag = f"{_before[0]}dnnkern-{dnnkern.__version__}-{','.join(names)}" if names else _before[0]
    if tag != config.cache_key_tag:
        config.cache_key_tag = tag
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
    if not names:
        _before.clear()
