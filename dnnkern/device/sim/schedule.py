"""The schedule of a launch: what each warp does and waits for, and how long copies and products are in flight.

Time is counted in steps, not in seconds. A thread's time goes on by one with each access to memory and each instruction that
synchronises. Threads that meet go on at the time of the last of them. A thread that waits for an mbarrier goes on when the last arrival of
the phase came and the last copy landed: `LATENCY` steps after it was issued, and one more for each `BYTES`. A product begins when all
threads of its warpgroup have issued it and the one before it has ended, and takes a step for each `COLUMNS` of a block of 64 rows and a k
of one step. So a schedule tells what overlaps and who waits for whom, as the numbers of stages, of warps and of barriers make it; it
predicts no times.

The simulator itself runs one thread at a time: the schedule is of its program, not of its run.
"""
from collections import defaultdict

from .._events import Lanes, events

LATENCY, BYTES, COLUMNS = 64, 256, 16
RUNS = "runs"


class _FromStart(defaultdict):
    """{thread: step}, at first that at which the launch has begun."""

    def __init__(self, schedule):
        super().__init__(lambda: schedule.origin)


class Schedule:
    """Watches a launch, as `Kernel.simulate` takes it.

    Attributes
    ----------
    slices : list of (block, track, begin, end, text, details)
        What took how long: tracks are ``("thread", tid)``, ``("copies", k)`` and ``("products", warpgroup)``.
    blocks : dict
        The blocks of the slices, with what each is called.
    end : int
        The last step.
    """

    def __init__(self):
        self.slices, self.blocks, self.end = [], {}, 0
        self.times, self._since = _FromStart(self), _FromStart(self)  # of threads: now, and since when each runs
        self.launch, self.origin = None, 0  # a launch begins when the one before it has ended
        self._waits, self._came, self._phases, self._lands = {}, defaultdict(int), defaultdict(list), {}
        self._ends, self._lanes, self._products = {}, defaultdict(Lanes), {}

    # ---- what trace asks of a watcher of accesses

    def look(self, log, entry):
        """An access is logged."""
        self._step(log.thread)

    def started(self, block, agent):
        """An asynchronous agent of a block has been made."""

    # ---- threads

    def waits(self, thread, why):
        """The thread parks."""
        self._waits[thread] = self._step(thread), why()

    def goes_on(self, thread):
        """It runs again."""
        begin, why = self._waits.pop(thread)
        self._waited(thread, begin, self.times[thread], why)

    def meets(self, threads):
        """These threads go on together."""
        now = max(self.times[t] for t in threads)
        for t in threads:
            self.times[t] = now

    # ---- barriers in shared memory

    def arrives(self, barrier, thread):
        """A thread arrives."""
        self._came[barrier] = max(self._came[barrier], self._step(thread))

    def copies(self, barrier, op, thread):
        """A copy that will arrive is issued."""
        begin = self._step(thread)
        end = self._lands[op] = begin + LATENCY + op.nbytes // BYTES
        self._slice(barrier.block, ("copies", self._lanes[barrier.block].take(begin, end)), begin, end, str(op), barrier=barrier.title,
                    phase=barrier.phase, bytes=op.nbytes)

    def lands(self, barrier, op, thread):
        """What was issued arrives: a copy, or a store to another block, which takes no time of its own."""
        self._came[barrier] = max(self._came[barrier], self._lands.pop(op, self.times[thread]))

    def completes(self, barrier):
        """A phase is complete."""
        self._phases[barrier].append(self._came.pop(barrier, 0))

    def passes(self, thread, barrier, phase, what):
        """The thread has waited for a phase."""
        begin = self._step(thread)
        if phase >= 0:  # before the first a wait passes at once
            end = self.times[thread] = max(begin, self._phases[barrier][phase])
            self._waited(thread, begin, end, f"{what}: {barrier.title}", phase=phase)

    # ---- products

    def begins(self, warpgroup, product, text, steps):
        """All threads of a warpgroup have issued a product."""
        begin = max(self._products.get(warpgroup, 0), *(self.times[t] for t in warpgroup.threads))
        end = self._products[warpgroup] = self._ends[product] = begin + max(1, steps // COLUMNS)
        self._slice(warpgroup.block, ("products", warpgroup.number), begin, end, text)

    def ends(self, warpgroup, product, thread):
        """All threads wait for a product, this one as the last."""
        begin, end = self.times[thread], max(self._ends.pop(product), *(self.times[t] for t in warpgroup.threads))
        for t in warpgroup.threads:
            self.times[t] = end
        self._waited(thread, begin, end, "wgmma wait")

    # ---- events

    def _step(self, thread):
        """The thread's time, which goes on; it is known from its first step on."""
        if thread.block.launch is not self.launch:
            self.launch, self.origin = thread.block.launch, self.end
        self.times[thread] += 1
        self._since[thread]
        self.end = max(self.end, self.times[thread])
        return self.times[thread]

    def _waited(self, thread, begin, end, text, **details):
        """Between two waits a thread runs."""
        if end > begin:
            track = "thread", thread.tid
            self._slice(thread.block, track, self._since[thread], begin, RUNS)
            self._slice(thread.block, track, begin, end, text, **details)
            self._since[thread] = end

    def _slice(self, block, track, begin, end, text, **details):
        if end > begin:
            self.blocks[block] = f"{block.launch.name}, block {tuple(block.index)}"
            self.slices.append((block, track, begin, end, text, details))
            self.end = max(self.end, end)

    def close(self):
        """The launches have ended: what threads did since their last wait."""
        for thread, end in self.times.items():
            self._slice(thread.block, ("thread", thread.tid), self._since[thread], end, RUNS)
        self.times.clear()
        return self

    def events(self) -> list:
        """Events of Chrome's trace format: of each warp one thread, the one that is busy longest, copies and products. A step is a
        microsecond there."""
        busy = defaultdict(dict)
        for block, (kind, number), _, end, *_ in self.slices:
            if kind == "thread":
                last, count = busy[block, number // 32].get(number, (0, 0))
                busy[block, number // 32][number] = max(last, end), count + 1
        shown = {(block, warp): max(threads, key=threads.get) for (block, warp), threads in busy.items()}
        titles = {(block, ("thread", warp)): f"warp {warp}, thread {thread}" for (block, warp), thread in shown.items()}
        return events(self.blocks, ((block, ("thread", number // 32) if kind == "thread" else (kind, number), *others)
                                    for block, (kind, number), *others in self.slices
                                    if kind != "thread" or shown[block, number // 32] == number), titles)
