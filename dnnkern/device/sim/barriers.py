"""Named barriers of a block: bar.sync and bar.arrive with a number and a count of threads.

A warp counts 32 once all its lanes that have not returned are there; who has returned counts for nothing. What a phase makes known is what
its warps knew and had done when they came, and those who only announced themselves learn nothing.
"""
from . import engine, order
from .collective import threads_of, together
from .engine import park, wake
from .errors import Misuse

BARRIERS = 16


class Phase:
    """The warps that have come to barrier number `name` since it last opened, which it does for `need` threads."""
    __slots__ = "block", "name", "need", "warps", "known", "waiters", "open"

    def __init__(self, block, name, need):
        self.block, self.name, self.need, self.warps, self.known, self.waiters, self.open = block, name, need, [], None, [], False

    def report(self):
        return f"barrier {self.name}: {32 * len(self.warps)} of {self.need} threads have arrived, warps {sorted(self.warps)}"


def _arrival(operation, values):
    """A warp has come; the phase it belongs to."""
    thread = engine.CURRENT
    block, number = thread.block, thread.warp.id
    if len(set(values.values())) > 1:
        raise Misuse(f"{operation}: the lanes of warp {number} give different barriers and counts: {sorted(set(values.values()))}")
    name, need = next(iter(values.values()))
    everybody = -(-block.n // 32) * 32
    if not 0 <= name < BARRIERS:
        raise Misuse(f"{operation}: barrier {name}; a block has 0 to {BARRIERS - 1}")
    if need % 32 or not 0 < need <= everybody:
        raise Misuse(f"{operation}: barrier {name} for {need} threads; it takes a multiple of 32 up to the {everybody} of the block")
    if name == 0 and need != everybody:
        raise Misuse(f"{operation}: barrier 0 for {need} threads is also syncthreads', for all {everybody}: take 1 to {BARRIERS - 1}")
    if name == 0 and block.barrier.arrived:
        raise Misuse(f"{operation}: barrier 0 is that of syncthreads, where threads wait already: {block.barrier.report(block.live)}")
    phase = block.named.get(name)
    if phase is None:
        phase = block.named[name] = Phase(block, name, need)
    if phase.need != need:
        raise Misuse(f"{operation}: warp {number} comes for {need} threads to {phase.report()}")
    if number in phase.warps:
        raise Misuse(f"{operation}: warp {number} comes a second time to {phase.report()}")
    phase.warps.append(number)
    phase.known = order.join_offers(block.clocks, phase.known, order.offer(threads_of(values)))
    if 32 * len(phase.warps) == need:
        phase.open = True
        del block.named[name]
        wake(phase.waiters)
    return phase


def barrier_sync(name, threads):
    """Twin of bar.sync."""
    phase = together("bar.sync", (int(name), int(threads)), lambda values: _arrival("bar.sync", values), whole=False)
    while not phase.open:
        park(phase.waiters, phase.report)
    order.take(engine.CURRENT, phase.known)


def barrier_arrive(name, threads):
    """Twin of bar.arrive."""
    together("bar.arrive", (int(name), int(threads)), lambda values: _arrival("bar.arrive", values), whole=False)
