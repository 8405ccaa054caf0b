"""Clusters of blocks: their barrier, and each other's shared memory (from sm_90 on).

A launch with a cluster of several blocks runs these together, on multiprocessors that reach each other's shared memory.

===============================================  ==========================================================================================
cluster_rank(), cluster_size()                   number of the block in its cluster, x fastest, and how many there are: int32
cluster_arrive()                                 the thread is there; what it did is known to all who wait
cluster_arrive_relaxed()                         the thread is there, nothing more
cluster_wait()                                   until all threads of the cluster that have not returned are there
cluster_sync()                                   both
remote_address(address, rank)                    the place of a shared address in the block `rank`, as an address in the cluster's window
load_remote_u32, load_remote_f32(address)        the word there
store_remote_u32, store_remote_f32(address, v)   write it
store_async_f32(address, v, bar)                 start to write it; the mbarrier at `bar`, in that block, is told 4 bytes when it is there
copy_async(address, source, bytes, bar)          the same of so many bytes of this block's shared memory, multiples of 16
===============================================  ==========================================================================================

Between two arrivals of a thread must be a wait; what lies between arrival and wait is not covered by the barrier. The lanes of a warp
arrive and wait as one. A block may be accessed from others only after it has started and before it ends: a barrier of the cluster comes
before the first remote access, ::

    cluster_arrive_relaxed()
    ...                                                      # initialise what others will not touch
    cluster_wait()

and one behind the last, so that no block leaves while its memory is in use. Remote accesses are ordinary ones in the order of memory,
which the simulator checks; a plain access to a remote address is an error there. But an arrival that makes them known waits for all that
its warp has stored, to global memory too. `store_async_f32` does not: who waits at the mbarrier sees what it wrote, and that what its
thread read before is read, nothing more; nor does `copy_async`, an asynchronous copy as those of `tma`, which has read its source when it
has landed. Without a cluster launch a block is a cluster of its own; the simulator allows no
`store_async_f32` there.
"""
from . import SIMULATED, device_function, instruction

if SIMULATED:
    from .sim import cluster as _twins
    from .sim.scalars import as_dtype
else:
    _twins = None


def _operation(text, name, results=(), operands=(), **flags):
    return instruction(text, results, operands, twin=getattr(_twins, name, None), **flags)


cluster_rank = _operation("mov.u32 $0, %cluster_ctarank;", "cluster_rank", ("int32",), pure=True)
cluster_size = _operation("mov.u32 $0, %cluster_nctarank;", "cluster_size", ("int32",), pure=True)
# Not the .aligned forms: where a branch of one lane is the last thing before the barrier, Python's compiler may write the end of the
# function twice, once behind the branch, and lanes of a warp come to the barrier in two places. Aligned, that counts as two arrivals.
cluster_arrive = _operation("barrier.cluster.arrive.release;", "cluster_arrive", memory=True, convergent=True)
cluster_arrive_relaxed = _operation("barrier.cluster.arrive.relaxed;", "cluster_arrive_relaxed", convergent=True)
cluster_wait = _operation("barrier.cluster.wait.acquire;", "cluster_wait", memory=True, convergent=True)
remote_address = _operation("mapa.shared::cluster.u32 $0, $1, $2;", "remote_address", ("uint32",), ("uint32", "uint32"), pure=True)


@device_function
def cluster_sync():
    """Barrier of all threads of the cluster."""
    cluster_arrive()
    cluster_wait()


def _remote(scalar):
    """Load and store of a scalar at an address in the cluster's window."""
    load = instruction("ld.shared::cluster.b32 $0, [$1];", (scalar,), ("uint32",), memory=True,
                       twin=lambda address: _twins.load(address, as_dtype(scalar)))
    store = instruction("st.shared::cluster.b32 [$0], $1;", (), ("uint32", scalar), memory=True,
                        twin=lambda address, value: _twins.store(address, value, as_dtype(scalar)))
    return load, store


load_remote_u32, store_remote_u32 = _remote("uint32")
load_remote_f32, store_remote_f32 = _remote("float32")
store_async_f32 = instruction("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [$0], $1, [$2];", (),
                              ("uint32", "float32", "uint32"), memory=True,
                              twin=lambda address, value, bar: _twins.store_async(address, value, bar, as_dtype("float32")))
copy_async = _operation("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];", "copy_async", (),
                        ("uint32", "uint32", "uint32", "uint32"), memory=True)
