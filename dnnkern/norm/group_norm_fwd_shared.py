"""Channels first, groups beyond a block's registers: a part of each lies in shared memory, so that it still is read once.

The kernel is `block`'s: a thread has seven 16-byte vectors in registers, and brings up to 24 others to shared memory by cp.async, which
it alone reads back, one at a time. Several such blocks fit a multiprocessor where one of `block` with twice the threads would be alone.
"""
from ..dispatch import Algorithm
from .group_norm_fwd_block import build, estimate, shared_configs, shared_supports, workspace

ALGORITHM = Algorithm(op="group_norm_fwd", name="shared", supports=shared_supports, workspace=workspace, estimate=estimate, build=build,
                      configs=shared_configs, arch="sm_80+", programs=True)
