"""Compiled graphs and overrides above autograd: a graph is traced with the operators that such an override calls."""
import functools
import hashlib
import sys
from pathlib import Path

import torch

import dnnkern

_before = []  # the tag that a program had set, while ours is


def compiled_graphs(names):
    """Keep graphs that PyTorch has compiled, in this process and on disk, apart by the overrides above autograd; these are their names."""
    names = sorted(names)
    config = torch.compiler.config
    if not names and not _before:
        return
    if not _before:
        _before.append(config.cache_key_tag)
    tag = f"{_before[0]}dnnkern-{dnnkern.__version__}-{_sources()}-{','.join(names)}" if names else _before[0]
    if tag != config.cache_key_tag:
        config.cache_key_tag = tag
        if _has_compiled():
            torch._dynamo.reset()
    if not names:
        _before.clear()


def _has_compiled():
    """Whether PyTorch's compiler has looked at any code. Optimisers import it; where CUDA is available its reset imports Inductor too,
    which takes seconds."""
    dynamo = sys.modules.get("torch._dynamo.convert_frame")
    return dynamo is not None and any(codes.seen_ids for codes in (dynamo.input_codes, dynamo.output_codes))


@functools.cache
def _sources():
    """A hash of the files that decide what a traced graph calls."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def forget_kernel(name):
    """While PyTorch traces it remembers which keys an operator has a kernel at; this one has gained or lost some."""
    base, _, overload = name.partition(".")
    getattr(getattr(torch.ops.aten, base), overload or "default")._dispatch_cache.clear()
