"""Forms of mbarriers.

The 8 bytes of a barrier are, from the low bits on: arrivals that are missing in this phase (20 bits), arrivals of a phase (20), the phase's
parity (1), and bytes that are still to land (23, with a sign: copies may land before they are expected).
"""
from . import runtime
from .forms import I64, POINTER, VOID, form
from .waits import IN_BLOCK

COUNT, PARITY, BYTES = 20, 40, 41  # the first bit of each but the first
_MISSING = (1 << COUNT) - 1


def update(body, barrier, change):
    """Add to a barrier's word; the phase ends where nothing is missing any more."""
    body.check(barrier, I64(8), True)
    body.invoke(body.helper("cpu.mbarrier.update", VOID, (POINTER, I64), _update), VOID, barrier, body.number(change).value)


def _update(body, barrier, change):
    word = body.number(body.load_as(barrier, I64)) + change
    complete = ((word & _MISSING) | (word >> BYTES)) == 0
    count = (word >> COUNT) & _MISSING
    turned = count | (word & (_MISSING << COUNT)) | ((word ^ (1 << PARITY)) & (1 << PARITY))
    body.store(complete.choose(turned, word).value, barrier)
    body.invoke("cpu.progress", VOID)


def landed(body, barrier, nbytes):
    """So many bytes of a copy have landed."""
    update(body, barrier, _bytes(body, nbytes) * -1)


def _bytes(body, nbytes):
    return body.number(nbytes).wide() << BYTES


def _arrivals(body, count):
    return body.number(count).wide() * -1


@form("mbarrier.init.shared::cta.b64 [$0], $1;")
def initialise(body, at, count):
    count = body.number(count).wide()
    body.store((count | (count << COUNT)).value, body.shared(at))


@form("mbarrier.inval.shared::cta.b64 [$0];", "fence.mbarrier_init.release.cluster;", "fence.proxy.async<where:|.shared::cta|.global>;")
def nothing(body, at=None, where=None):
    """Memory is in order as it is."""


@form("mbarrier.arrive.shared::cta.b64 _, [$0];", "cp.async.mbarrier.arrive.noinc.shared::cta.b64 [$0];")
def arrive(body, at):
    update(body, body.shared(at), I64(-1))


@form("mbarrier.arrive.shared::cta.b64 _, [$0], $1;")
def arrive_count(body, at, count):
    update(body, body.shared(at), _arrivals(body, count))


@form("mbarrier.arrive.expect_tx.shared::cta.b64 _, [$0], $1;")
def arrive_expect(body, at, nbytes):
    update(body, body.shared(at), _bytes(body, nbytes) - 1)


@form("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [$0], $1;")
def expect(body, at, nbytes):
    update(body, body.shared(at), _bytes(body, nbytes))


@form("{ .reg .b32 a; mapa.shared::cluster.u32 a, $0, $1; mbarrier.arrive.<order:release|relaxed>.cluster.shared::cluster.b64 _, [a]; }")
def arrive_remote(body, at, rank, order):
    update(body, body.remote(mapped(body, at, rank)), I64(-1))


def mapped(body, at, rank):
    """The address in the cluster's window of a shared address's place in another block."""
    return ((body.number(at) & (1 << runtime.WINDOW) - 1) | ((body.number(rank) + 1) << runtime.WINDOW)).value


def _awaited(body, at, parity):
    """What `waits` makes words of."""
    return body.join(at, parity)


def _parity(body, barrier):
    return (body.number(body.load_as(barrier, I64)) >> PARITY) & 1


@form("{ .reg .pred p; again: mbarrier.try_wait.parity.acquire.<scope:cta|cluster>.shared::cta.b64 p, [$0], $1; @p bra done; bra again; "
      "done: }", waits=IN_BLOCK)
def wait(body, at, parity, scope):
    awaited, barrier, parity = _awaited(body, at, parity), body.shared(at), body.number(parity).wide()
    with body.waiting("mbarrier", awaited) as until:
        until(_parity(body, barrier) != parity)


@form("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p, [$1], $2; selp.b32 $0, 1, 0, p; }", waits=IN_BLOCK)
def test(body, at, parity):
    """Whoever asks lets others run first."""
    body.wait("mbarrier", _awaited(body, at, parity))
    complete = _parity(body, body.shared(at)) != body.number(parity).wide()
    return complete.choose(body.number(at) * 0 + 1, 0).value
