"""Forms of clusters: their barrier, and each other's shared memory. All blocks of a cluster run on one thread of the system."""
from . import mbarrier
from .forms import I32, VOID, form
from .waits import IN_BLOCK


@form("mov.u32 $0, %cluster_ctarank;")
def rank(body):
    return body.field("rank")


@form("mov.u32 $0, %cluster_nctarank;")
def size(body):
    return body.field("size")


@form("barrier.cluster.arrive.<order:release|relaxed>;", waits=IN_BLOCK)
def arrive(body, order):
    body.invoke("cpu.cluster.arrive", VOID)


@form("barrier.cluster.wait.acquire;", waits=IN_BLOCK)
def wait(body):
    body.invoke("cpu.cluster.wait", VOID)


@form("mapa.shared::cluster.u32 $0, $1, $2;")
def remote_address(body, at, block):
    return mbarrier.mapped(body, at, block)


@form("ld.shared::cluster.b32 $0, [$1];")
def load(body, at):
    return body.load_as(body.remote(at), body.result)


@form("st.shared::cluster.b32 [$0], $1;")
def store(body, at, value):
    body.store(value, body.remote(at))


@form("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [$0], $1, [$2];")
def store_async(body, at, value, barrier):
    body.store(value, body.remote(at))
    mbarrier.landed(body, body.remote(barrier), I32(4))
