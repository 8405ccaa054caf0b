"""Clusters of blocks: ranks, barrier, each other's shared memory (from sm_90 on)."""
from . import device_function, instruction

cluster_rank = instruction("mov.u32 $0, %cluster_ctarank;", ("int32",), (), twin=None, pure=True)
cluster_size = instruction("mov.u32 $0, %cluster_nctarank;", ("int32",), (), twin=None, pure=True)
cluster_arrive = instruction("barrier.cluster.arrive.release.aligned;", (), (), twin=None, memory=True)
cluster_arrive_relaxed = instruction("barrier.cluster.arrive.relaxed.aligned;", (), (), twin=None)
cluster_wait = instruction("barrier.cluster.wait.acquire.aligned;", (), (), twin=None, memory=True)


@device_function
def cluster_sync():
    """Barrier of all threads of the cluster."""
    cluster_arrive()
    cluster_wait()


remote_address = instruction("mapa.shared::cluster.u32 $0, $1, $2;", ("uint32",), ("uint32", "uint32"), twin=None, pure=True)
load_remote_u32 = instruction("ld.shared::cluster.b32 $0, [$1];", ("uint32",), ("uint32",), twin=None, memory=True)
load_remote_f32 = instruction("ld.shared::cluster.b32 $0, [$1];", ("float32",), ("uint32",), twin=None, memory=True)
store_remote_u32 = instruction("st.shared::cluster.b32 [$0], $1;", (), ("uint32", "uint32"), twin=None, memory=True)
store_remote_f32 = instruction("st.shared::cluster.b32 [$0], $1;", (), ("uint32", "float32"), twin=None, memory=True)
