"""What the stamps of a launch (`device._stamps`) say: what each warp waited for and how long, and what was in flight meanwhile.

Times are nanoseconds of the GPU's global timer. Stamps are of the clocks of multiprocessors, which count cycles: how long a cycle takes,
and what a multiprocessor's clock showed at a time, comes of the records that have both, at the beginning and the end of each warp.

A copy is in flight from when it is issued until the first wait at its barrier ends after that, a product from when it is issued, or the one
before it has ended, until the wait that it must have ended for: it may have ended earlier, where nobody waited at that time.
"""
import bisect
from collections import Counter, defaultdict
from typing import NamedTuple

from ..device._events import Lanes
from ..device._stamps import BEGIN, END, THREADS

RUNS, ISSUES = "runs", ("issues wgmma", "issues a copy", "issues a store")
_SHARED = (1 << 24) - 1  # of an address in the cluster's window: where it is in its block


class Lane(NamedTuple):
    """A lane's records, [(begin, end, site, more)], and how many of them were dropped."""
    block: int
    thread: int
    sm: int
    records: list
    dropped: int


def began(lanes) -> int:
    """What the timer showed when the first warp began."""
    return min(end | more << 32 for lane in lanes for _, end, site, more in lane.records if site in (BEGIN, END))


def slices_of(lanes, sites, clock_hz, origin) -> tuple:
    """([(block, (kind, number), begin, end, text, details)], {block: multiprocessor}) as `device._events` has slices, in nanoseconds.

    Parameters
    ----------
    lanes : list of Lane
    sites : list of Site
    clock_hz : float
        How fast a multiprocessor counts where the stamps do not say it.
    origin : int
        Of the timer, from which times count. The timer itself is too large a number for fractions of a nanosecond.
    """
    blocks, sms, found = defaultdict(list), {lane.block: lane.sm for lane in lanes}, []
    for lane in lanes:
        records = list(_counted(lane.records, blocks[lane.block][0][1][0][0] if blocks[lane.block] else None))
        blocks[lane.block].append((lane.thread // 32, records))
    pairs = {block: [(clock, timer - origin) for _, records in of_block for clock, _, site, _, timer in records if site in (BEGIN, END)]
             for block, of_block in blocks.items()}
    period = _period(pairs.values(), clock_hz)
    for block, of_block in blocks.items():
        zero = sum(timer - period * clock for clock, timer in pairs[block]) / max(len(pairs[block]), 1)
        warps = defaultdict(list)
        for warp, records in of_block:
            warps[warp] += [(zero + period * clock, zero + period * (clock + cycles), sites[site], more)
                            for clock, cycles, site, more, _ in records]
        for records in warps.values():
            records.sort(key=lambda record: record[:2])
        if not any(lane.dropped for lane in lanes if lane.block == block):
            _meet(warps)
        found += [(block, *each) for each in (*_threads(warps), *_products(warps), *_copies(warps))]
    return found, sms


def _meet(warps):
    """Set the ends of waits at barriers of threads to when the last thread came. The clock that follows such an instruction is read before
    the warp stands still, so the records alone do not say it."""
    came, turns = defaultdict(list), Counter()
    for warp, records in warps.items():
        for k, (begin, _, site, more) in enumerate(records):
            if site.kind in ("barrier", "arrival"):
                came[more].append((begin, turns[warp, more], warp, k))
                turns[warp, more] += 1
    for more, arrivals in came.items():
        size, together = more // THREADS // 32, defaultdict(list)
        for n, arrival in enumerate(sorted(arrivals)):  # without a number of threads each warp of the block comes once a turn
            together[n // size if size else arrival[1]].append(arrival)
        for group in together.values():
            if len(group) >= size:
                for _, _, warp, k in group:
                    begin, end, *others = warps[warp][k]
                    warps[warp][k] = begin, max(end, group[-1][0]), *others


def _counted(records, near):
    """(clock, cycles until the second one, site, more, the timer) of a lane's records. A clock of a record is the low 32 bits of a counter:
    here it never goes back, and the first is the one next to `near`, that of another lane."""
    now = records[0][0]
    if near is not None:
        now = near + (now - near + (1 << 31) & 0xFFFFFFFF) - (1 << 31)
    for first, second, site, more in records:
        now += first - now & 0xFFFFFFFF
        yield (now, 0, site, 0, second | more << 32) if site in (BEGIN, END) else (now, second - first & 0xFFFFFFFF, site, more, 0)


def _period(pairs, clock_hz):
    """Nanoseconds of a cycle: of all blocks together, since a block alone may be as short as a step of the timer."""
    cycles = time = 0
    for of_block in pairs:
        if of_block:
            (first, since), (last, until) = min(of_block), max(of_block)
            cycles, time = cycles + last - first, time + until - since
    return time / cycles if cycles and time > 0 else 1e9 / clock_hz


def _threads(warps):
    """Of each warp what it waited for, and that it ran otherwise."""
    for warp, records in warps.items():
        now = records[0][0]
        for begin, end, site, more in records:
            if begin > now:
                yield ("thread", warp), now, begin, RUNS, {}
            if site.kind not in ("begin", "end", "arrival") and end > max(begin, now):
                yield ("thread", warp), max(begin, now), end, site.name, _details(site, more)
            now = max(now, end)


def _details(site, more):
    if site.kind in ("mbarrier", "copy"):
        barrier = {"barrier": f"mbarrier {more & _SHARED:#x}"}
        return barrier | {"what": site.text} if site.text else barrier
    if site.kind == "barrier":
        return {"barrier": f"barrier {more % THREADS}"}
    if site.kind == "products":
        return {"pending": site.pending}
    return {"what": site.text} if site.text else {}


def _products(warps):
    """Of each warpgroup, as its first warp has it."""
    for warp, records in warps.items():
        if warp % 4:
            continue
        groups, done = [], 0
        for begin, end, site, _ in records:
            if site.kind == "product":
                groups.append((begin, site.text))
            elif site.kind == "products" and len(groups) > site.pending:
                ended = len(groups) - site.pending
                issued, text = groups[0]
                del groups[:ended]
                yield ("products", warp // 4), max(issued, done), end, f"wgmma {text}", {"groups": ended}
                done = end


def _copies(warps):
    """Each copy with a barrier that the block waited at."""
    ends, lanes = defaultdict(list), Lanes()
    for records in warps.values():
        for _, end, site, more in records:
            if site.kind == "mbarrier":
                ends[more & _SHARED].append(end)
    for waits in ends.values():
        waits.sort()
    issued = sorted((begin, more & _SHARED, site.text) for records in warps.values() for begin, _, site, more in records
                    if site.kind == "copy")
    for begin, barrier, text in issued:
        waits = ends.get(barrier, ())
        k = bisect.bisect_right(waits, begin)
        if k < len(waits):
            text = f"a copy of {text}" if text else "a copy"
            yield ("copies", lanes.take(begin, waits[k])), begin, waits[k], text, {"barrier": f"mbarrier {barrier:#x}"}
