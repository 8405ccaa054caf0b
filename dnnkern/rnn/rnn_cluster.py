"""One launch per layer: recurrent weights stay in the registers of a cluster, which has some sequences to itself.

As `persistent`, whose kernel it is, but the blocks that share sequences are a cluster, and meet at its barrier instead of in global memory.
Clusters share nothing, so that any number of sequences is solved, in as many waves as it takes; what limits it is the size of the state,
all of whose matrix a cluster of 16 blocks must hold.
"""
from .persistent.plan import CLUSTERS, algorithms

ALGORITHMS = algorithms("cluster", CLUSTERS, "sm_90+")
