"""Warp collectives: shuffles, votes, match and syncwarp, all made of one exchange.

A mask names the lanes that take part; as in CUDA, lanes that have returned are not waited for. Only syncwarp orders memory.
"""
from . import engine, order
from .engine import park, wake
from .errors import Misuse

FULL = 0xFFFFFFFF


class Exchange:
    """Lanes of a warp bringing one value each to a collective `kind`."""
    __slots__ = "warp", "kind", "mask", "values", "threads", "waiters", "result"

    def __init__(self, warp, kind, mask):
        self.warp, self.kind, self.mask, self.values, self.threads, self.waiters, self.result = warp, kind, mask, {}, [], [], None

    def complete_if_all(self):
        if self.mask & self.warp.live & ~sum(1 << k for k in self.values):
            return
        del self.warp.exchanges[self.kind, self.mask]
        if self.kind == "syncwarp":
            order.meet(self.threads)
        self.result = self.values
        wake(self.waiters)

    def complete_without(self, thread):
        """A lane has returned."""
        if self.mask >> thread.lane & 1:
            self.complete_if_all()

    def why(self):
        missing = [k for k in range(self.warp.size) if self.mask >> k & 1 and k not in self.values and self.warp.live >> k & 1]
        return f"{self.kind} of warp {self.warp.id}, mask {self.mask:#010x}: lanes {missing} have not arrived"


def exchange(kind, mask, value):
    """Values of the lanes named in `mask` by lane number, once all of them have brought theirs to this kind of collective."""
    thread = engine.CURRENT
    warp = thread.warp
    mask = int(mask) & ((1 << warp.size) - 1)
    if not mask >> thread.lane & 1:
        raise Misuse(f"{kind}: lane {thread.lane} is not in its own mask {mask:#010x}")
    x = warp.exchanges.get((kind, mask))
    if x is None:
        for other in warp.exchanges.values():
            if other.kind == kind and other.mask & mask:
                raise Misuse(f"{kind}: lane {thread.lane} gives mask {mask:#010x}, lanes {sorted(other.values)} wait with mask "
                             f"{other.mask:#010x}")
        x = warp.exchanges[kind, mask] = Exchange(warp, kind, mask)
    x.values[thread.lane] = value
    x.threads.append(thread)
    if len(x.values) >= warp.live.bit_count() or len(x.values) >= mask.bit_count():
        x.complete_if_all()
    while x.result is None:
        park(x.waiters, x.why)
    return x.result


def _shuffle(kind, mask, value, source):
    values = exchange(kind, mask, value)
    if not 0 <= source < 32:
        return value
    if source not in values:
        raise Misuse(f"{kind}: lane {engine.CURRENT.lane} reads lane {source}, which does not take part (mask {int(mask):#010x})")
    return values[source]


def shfl_sync(mask, value, src_lane):
    return _shuffle("shfl_sync", mask, value, int(src_lane) & 31)


def shfl_xor_sync(mask, value, lane_mask):
    return _shuffle("shfl_xor_sync", mask, value, engine.CURRENT.lane ^ int(lane_mask))


def shfl_up_sync(mask, value, delta):
    return _shuffle("shfl_up_sync", mask, value, engine.CURRENT.lane - int(delta))


def shfl_down_sync(mask, value, delta):
    return _shuffle("shfl_down_sync", mask, value, engine.CURRENT.lane + int(delta))


def ballot_sync(mask, predicate):
    return sum(1 << k for k, v in exchange("ballot_sync", mask, bool(predicate)).items() if v)


def all_sync(mask, predicate):
    return all(exchange("all_sync", mask, bool(predicate)).values())


def any_sync(mask, predicate):
    return any(exchange("any_sync", mask, bool(predicate)).values())


def eq_sync(mask, predicate):
    return len(set(exchange("eq_sync", mask, bool(predicate)).values())) == 1


def match_any_sync(mask, value):
    return sum(1 << k for k, v in exchange("match_any_sync", mask, value).items() if v == value)


def match_all_sync(mask, value):
    values = exchange("match_all_sync", mask, value)
    same = len(set(values.values())) == 1
    return (sum(1 << k for k in values) if same else 0), same


def syncwarp(mask=FULL):
    exchange("syncwarp", mask, None)


def activemask():
    """Lanes that have not returned."""
    return engine.CURRENT.warp.live


def lanemask_lt():
    return (1 << engine.CURRENT.lane) - 1
