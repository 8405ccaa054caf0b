"""What an estimate is made of: a `Cost` is seconds that know the named terms they are the sum of, and these are the terms models share.

An algorithm's `estimate` returns a `Cost`; a plain float will do too, and counts as one term, "other". The numbers that models need come
from the table in `constants`, each with its source.

>>> cost = Cost(launch=2.0) + overlap(memory=8.0, issue=5.0).slowed(tail=1.25)
>>> float(cost), cost.terms
(12.0, {'launch': 2.0, 'memory': 8.0, 'tail': 2.0})
>>> cost.hidden                                                # what a longer term overlaps
{'issue': 5.0}
"""
from .constants import constants

TERMS = {
    "launch": "kernel launches, with what a kernel does before its first and after its last instruction that counts",
    "latency": "bytes in flight that are too few for the latency of memory",
    "memory": "bytes read from and written to global memory",
    "l2": "bytes that the L2 delivers",
    "l1": "accesses that the L1 serves",
    "shared": "accesses to shared memory",
    "atomics": "additions in global memory",
    "math": "multiply-adds, on tensor cores or CUDA cores",
    "issue": "instructions issued beside the multiply-adds, index divisions among them",
    "waits": "latencies that nothing overlaps: dependent loads, barriers, steps of a chain",
    "waves": "beginnings and ends of blocks, once for each wave of them",
    "tail": "last blocks of a grid, which run alone",
    "contention": "what overlapping terms take from each other",
    "idle": "multiprocessors without work, or with too little of it",
    "slower": "factors for what a model does not count: short accesses, unaligned rows, few bytes in flight",
    "pack": "copies of operands into the layout that the kernel needs",
    "transform": "transforms of images, filters and results (Winograd, FFT)",
    "aside": "a program's matrices, which are loaded and stored while nothing is multiplied",
    "reduction": "a second pass that adds up or merges the partial results of splits",
    "calls": "of the processor: what each call takes",
    "compile": "of the processor: a share of the time to compile",
    "other": "not split into terms",
}
"""Names of terms, in the order in which they are printed."""
DEVICE = constants("device")
RING = constants("ring")
SECTOR = 32  # bytes
LANES = 128  # instructions a clock and multiprocessor: four schedulers, 32 threads each

_float = float.__new__


class Cost(float):
    """Predicted seconds, a float, and the named terms that add up to it. Immutable.

    Sums of costs add terms of the same name; a factor scales them all. Terms are worked out when they are asked for: choosing an algorithm
    compares hundreds of costs, and reads the terms of none.

    Attributes
    ----------
    terms : dict of str to float
        Seconds by name (`TERMS`); their sum is the cost.
    hidden : dict of str to float
        Seconds of what longer terms overlap, which the sum does not contain.
    """
    __slots__ = "_rule", "_parts"

    def __new__(cls, **terms):
        self = _float(cls, sum(terms.values()))
        self._rule, self._parts = _named, terms
        return self

    @classmethod
    def of(cls, seconds):
        """A cost as it is; a plain number as the term "other"."""
        return seconds if isinstance(seconds, cls) else cls(other=seconds)

    @property
    def terms(self):
        return self._rule(self, self._parts)[0]

    @property
    def hidden(self):
        return self._rule(self, self._parts)[1]

    def slowed(self, **factors):
        """Times these factors; what each of them adds is a term of its name."""
        seconds = float(self)
        for factor in factors.values():
            seconds *= factor
        return _made(seconds, _slowed, (self, factors))

    def named(self, name):
        """The same seconds as one term."""
        return Cost(**{name: float(self)})

    def __add__(self, other):
        return _made(float.__add__(self, other), _added, (self, other))

    __radd__ = __add__

    def __mul__(self, factor):
        return _made(float.__mul__(self, factor), _scaled, (self, factor))

    __rmul__ = __mul__

    def __truediv__(self, divisor):
        return _made(float.__truediv__(self, divisor), _scaled, (self, 1 / divisor))

    def __getnewargs_ex__(self):
        return (), self.terms

    def __repr__(self):
        return f"Cost({', '.join(f'{name}={seconds:.3g}' for name, seconds in self.terms.items())})"


def _made(seconds, rule, parts):
    self = _float(Cost, seconds)
    self._rule, self._parts = rule, parts
    return self


# ---- rules: (terms, hidden) of a cost from what it was made of

def _named(cost, terms):
    return dict(terms), {}


def _merged(one, another):
    result = dict(one)
    for name, seconds in another.items():
        result[name] = result.get(name, 0.0) + seconds
    return result


def _split(value):
    """(terms, hidden) of a cost or a number."""
    if isinstance(value, Cost):
        return value._rule(value, value._parts)
    return ({"other": float(value)} if value else {}), {}


def _added(cost, parts):
    """Of sums of sums too, however many: no recursion."""
    left, terms, hidden = [*reversed(parts)], {}, {}
    while left:
        part = left.pop()
        if isinstance(part, Cost) and part._rule is _added:
            left.extend(reversed(part._parts))
        else:
            terms, hidden = (_merged(side, more) for side, more in zip((terms, hidden), _split(part)))
    return terms, hidden


def _deferred(cost, terms):
    return _split(terms())


def _scaled(cost, parts):
    whole, factor = parts
    return tuple({name: seconds * factor for name, seconds in side.items()} for side in _split(whole))


def _slowed(cost, parts):
    whole, factors = parts
    (terms, hidden), seconds = _split(whole), float(whole)
    for name, factor in factors.items():
        terms = _merged(terms, {name: seconds * (factor - 1)} if factor != 1 else {})
        seconds *= factor
    return terms, hidden


def _beside(cost, parts):
    costs, times = parts
    every = [(float(whole), *_split(whole)) for whole in costs]
    every += [(seconds, {name: seconds}, {}) for name, seconds in times.items()]
    most = max(every, key=lambda one: one[0])
    _, terms, hidden = most
    for one in every:
        if one is not most:
            hidden = _merged(_merged(hidden, one[1]), one[2])
    more = float(cost) - most[0]
    return _merged(terms, {"contention": more}) if more else terms, hidden


def deferred(seconds, terms):
    """A cost of so many seconds, which `terms()`, a cost too, splits when its terms are asked for."""
    return _made(seconds, _deferred, terms)


# ---- costs, and times by name, that run side by side

def overlap(*costs, exposed=0.0, **times):
    """The longest of what overlaps, and a share `exposed` of the others."""
    every = (*costs, *times.values()) if costs else times.values()
    longest = float(max(every))
    return _made(longest + exposed * (sum(every) - longest) if exposed else longest, _beside, (costs, times))


def contend(power, *costs, **times):
    """What overlaps the less, the more equal it is: the norm with this power."""
    return _made(sum(t ** power for t in (*costs, *times.values())) ** (1 / power), _beside, (costs, times))


# ---- terms that models share

LAUNCH = Cost(launch=DEVICE.launch)
"""One launch of a kernel."""
RING_START = Cost(waves=RING.start)


def memory_seconds(nbytes, device):
    """Time of `nbytes`, read and written together, at the rate of a copy."""
    return nbytes / (DEVICE.copy_rate * device.bandwidth)


def issue_seconds(elements, instructions, device):
    """Time to issue that many instructions for each element."""
    return elements * instructions / (LANES * device.sms * device.clock_hz)


def sm_issue_seconds(instructions, device):
    """Time of one multiprocessor to issue so many instructions."""
    return instructions / (LANES * device.clock_hz)


def sector_waste(run, unit):
    """Bytes that memory moves over bytes wanted, for runs of `run` contiguous bytes that begin at multiples of `unit`."""
    sectors = -(-run // SECTOR) if unit >= min(run, 16) else (run + SECTOR - unit) / SECTOR
    return max(1.0, sectors * SECTOR / run)


def tail(blocks, per_multiprocessor, device):
    """How much longer a grid takes than its bytes because its last blocks run alone."""
    return 1 + DEVICE.tail * min(1.0, per_multiprocessor * device.sms / blocks)


def narrow_rate(unit, itemsize):
    """Share of memory's rate that accesses of 16 bytes have, or of single elements."""
    return 1.0 if unit == 16 else min(1.0, itemsize / DEVICE.narrow)


def occupied(threads, enough, device):
    """Share of the device that has work: `enough` threads a multiprocessor are all that helps."""
    return min(1.0, threads / (enough * device.sms))


def flight_rate(nbytes, enough):
    """Share of memory's rate that `nbytes` in flight on a multiprocessor sustain."""
    return min(1.0, nbytes / enough) ** 0.5


def ring_seconds(ring, slots, rows, nbytes, instructions, device):
    """Time of `slots` clusters that go through rows as `ring` says (`device.ring`). A step takes the memory's time for all that is in
    flight together, the time to issue what it computes, `instructions` a unit of 16 bytes and some a row in each warp, and what a block
    waits for; none of them hides another quite, and the first and the last steps hide nothing: rows of 65536."""
    together = slots * ring.rows
    share = occupied(slots * ring.cluster * ring.threads, RING.enough, device)
    moved = memory_seconds(nbytes, device) * together / (rows * share)
    issue = sm_issue_seconds(ring.resident * ring.threads * ring.rows * (ring.units * instructions + RING.row), device)
    waits = RING.wait + RING.wait_256 * ring.threads / 256
    return LAUNCH + RING_START + contend(2, memory=moved, issue=issue, waits=waits) * max(RING.least_steps, rows / together)
