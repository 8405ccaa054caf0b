"""Named barriers: some warps of a block meet, or one announces and another waits (bar.sync, bar.arrive)."""
from . import instruction

barrier_sync = instruction("bar.sync $0, $1;", (), ("uint32", "uint32"), twin=None, memory=True)
barrier_arrive = instruction("bar.arrive $0, $1;", (), ("uint32", "uint32"), twin=None, memory=True)
