"""Timing of device work: interleaved rounds, CUDA events, CUDA-graph replay, medians.

What is timed are *contenders*: callables that enqueue one call on a stream, on one of several sets of inputs. A batch of calls is captured
into a CUDA graph and its replay is timed between two events, so that the host's launch time is not in the number; the host's time is
measured apart. The contenders take turns, with a short pause before each turn: under a power cap the order alone moves a number by a tenth.
In the simulator the same code measures wall-clock time.
"""
import functools
import math
import statistics
import time
from dataclasses import dataclass, replace

from ..device import HOST_MEMORY
from . import driver, raw
from .device import on_device
from .graphs import captured, destroy, replay

WINDOW = 5e-3   # seconds of device work in one timed batch
PAUSE = 5       # windows before each turn in which the device idles
ROUNDS = 9
LIMIT = 0.4     # seconds of device work one contender may take in all its turns
SLOW = 4.0      # a contender this many times slower than the fastest gets three turns
MOST_CALLS = 2000


@dataclass(frozen=True)
class Sample:
    """Seconds per call, one number a turn."""
    times: tuple
    calls: int = 1

    @property
    def median(self):
        return statistics.median(self.times)

    @property
    def iqr(self):
        """Distance between the quartiles; 0 where there are fewer than two turns."""
        if len(self.times) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.times, n=4, method="inclusive")
        return high - low

    def less(self, seconds):
        """Without a part that took so long."""
        return replace(self, times=tuple(t - seconds for t in self.times))


class Contender:
    """Something that is timed.

    Parameters
    ----------
    name : hashable
    call : callable(k)
        Enqueues one call on input set k.
    sets : int
        How many input sets there are; a batch walks through them.
    """

    def __init__(self, name, call, sets=1):
        self.name, self.call, self.sets = name, call, sets

    def enqueue(self, calls):
        """Enqueue `calls` calls, each on the next input set."""
        for k in range(calls):
            self.call(k % self.sets)

    def capture(self, clock, calls):
        """A callable that enqueues the same calls as one CUDA graph; frameworks that allocate during a call bring their own."""
        return clock.capture(lambda: self.enqueue(calls))


class Clock:
    """A stream of its own on one device, and a stop-watch for what is enqueued on it. A context manager.

    In the simulator, `stream` is 0 and time is the wall's.
    """

    def __init__(self, index=0):
        self.index, self.stream, self._graphs = index, 0, []

    def __enter__(self):
        if not HOST_MEMORY:
            self._context = on_device(self.index)
            self._context.__enter__()
            self.stream = driver.cuStreamCreate(raw.CU_STREAM_NON_BLOCKING)
            self._start, self._stop = driver.cuEventCreate(0), driver.cuEventCreate(0)
        return self

    def __exit__(self, *_):
        if not HOST_MEMORY:
            raw.cuStreamSynchronize(self.stream)
            self.release()
            for event in (self._start, self._stop):
                raw.cuEventDestroy(event)
            raw.cuStreamDestroy(self.stream)
            self._context.__exit__(None, None, None)

    def synchronize(self):
        """Wait for what is on the stream."""
        if not HOST_MEMORY:
            driver.cuStreamSynchronize(self.stream)

    def seconds(self, enqueue, lead=None) -> float:
        """Seconds the device takes for what `enqueue` enqueues; `lead` is enqueued before it and not timed.

        With a lead the stream is busy when the timed work arrives, so that not even its first launch is waited for.
        """
        if HOST_MEMORY:
            start = time.perf_counter()
            enqueue()
            return time.perf_counter() - start
        if lead is not None:
            lead()
        driver.cuEventRecord(self._start, self.stream)
        enqueue()
        driver.cuEventRecord(self._stop, self.stream)
        driver.cuEventSynchronize(self._stop)
        return 1e-3 * driver.cuEventElapsedTime(self._start, self._stop)

    def capture(self, enqueue):
        """A callable that replays, as a CUDA graph, what `enqueue` enqueues on the stream; in the simulator `enqueue` itself."""
        if HOST_MEMORY:
            return enqueue
        self._graphs.append(captured(enqueue, self.stream))
        return functools.partial(replay, self._graphs[-1], self.stream)

    def release(self):
        """Destroy the graphs captured so far."""
        if self._graphs:
            self.synchronize()
            for graph in self._graphs:
                destroy(graph)
            self._graphs.clear()


class _Runner:
    """A contender with its captured batch."""

    def __init__(self, contender, clock, window, limit):
        self.contender, self.clock, self.times = contender, clock, []
        if not HOST_MEMORY:
            clock.seconds(lambda: contender.call(0))  # loads code, makes handles
        per_call = clock.seconds(lambda: contender.call(0))
        self.calls, self.per_call = 1, per_call
        if per_call > limit / 4:  # not worth a turn: what is known of it is enough
            self.times.append(per_call)
            return
        if not HOST_MEMORY:
            self.calls = _calls(window, per_call)
        self.batch = contender.capture(clock, self.calls)
        if not HOST_MEMORY:
            clock.seconds(self.batch)
            per_call = clock.seconds(self.batch) / self.calls
            # One call by itself is timed with its launch: the batch then came out too short.
            if _calls(window, per_call) > 1.5 * self.calls:
                self.calls = _calls(window, per_call)
                self.batch = contender.capture(clock, self.calls)
                per_call = clock.seconds(self.batch) / self.calls
        self.per_call = per_call

    def warm(self, seconds):
        spent = 0.0
        while spent < seconds:
            spent += self.clock.seconds(self.batch)

    def turn(self):
        self.times.append(self.clock.seconds(self.batch, lead=self.batch) / self.calls)


def _calls(window, per_call):
    return max(1, min(MOST_CALLS, round(window / max(per_call, 1e-7))))


class Interrupted(KeyboardInterrupt):
    """Ctrl-C while times were taken; `found` is what was timed by then."""

    def __init__(self, found):
        self.found = found


def race(contenders, clock, *, rounds=ROUNDS, window=WINDOW, limit=LIMIT, after=None) -> dict:
    """Time contenders against each other.

    Parameters
    ----------
    contenders : sequence of Contender
        Each must have run once before, so that nothing is compiled here.
    clock : Clock
    rounds : int
        Turns of each contender; fewer for those that take longer than `limit` seconds in all, or `SLOW` times the fastest's time.
    window : float
        Seconds of device work in one timed batch of calls. Before the first round each contender works for two of them, before each
        turn the device idles for `PAUSE`.
    after : callable(name), optional
        Is called at the end of each turn.

    Returns
    -------
    dict of name to Sample

    Raises
    ------
    Interrupted
        With the dict of those that have been timed.
    """
    runners = [_Runner(c, clock, window, limit) for c in contenders]
    fastest = min((r.per_call for r in runners), default=0.0)
    turns = {}
    for r in runners:
        most = min(rounds, 3) if r.per_call > SLOW * fastest else rounds
        turns[r] = max(1, min(most, int(limit / (2 * r.per_call * r.calls))))
        if not r.times:
            r.warm(0.0 if HOST_MEMORY else 2 * window)
    ended = time.perf_counter()
    try:
        for k in range(rounds):
            shift = k % max(len(runners), 1)
            for r in runners[shift:] + runners[:shift]:
                if len(r.times) < turns[r]:
                    if not HOST_MEMORY:
                        time.sleep(max(0.0, PAUSE * window - (time.perf_counter() - ended)))  # the device idles during `after`, too
                    r.turn()
                    ended = time.perf_counter()
                    if after is not None:
                        after(r.contender.name)
    except KeyboardInterrupt:
        raise Interrupted(_samples(r for r in runners if r.times)) from None
    return _samples(runners)


def _samples(runners):
    return {r.contender.name: Sample(tuple(r.times), r.calls) for r in runners}


def sustained(contender, clock, seconds, *, joules=lambda: None, window=WINDOW) -> tuple:
    """Run a contender without a pause.

    Parameters
    ----------
    seconds : float
        How long.
    joules : callable()
        The energy until now; None where it is not known.

    Returns
    -------
    (float, float or None)
        Seconds of one call, the median of the last third of the batches, and the energy of a call.
    """
    runner = _Runner(contender, clock, window, math.inf)
    times, spent, calls, before = [], 0.0, 0, joules()
    while spent < seconds:
        times.append(clock.seconds(runner.batch))
        spent += times[-1]
        calls += runner.calls
    each = statistics.median(times[-max(len(times) // 3, 1):]) / runner.calls
    return each, None if before is None else (joules() - before) / calls


def loop_seconds(call, synchronize, *, device_seconds=0.0, limit=20e-3, repeats=5) -> float:
    """Seconds of one `call()` in a loop whose end is waited for: of the host or of the device, whichever takes longer.

    Parameters
    ----------
    call : callable()
        Enqueues work and returns.
    synchronize : callable()
        Waits for it.
    device_seconds : float
        What the device takes for one call.
    limit : float
        Seconds that a loop takes, about.
    """
    calls = _calls(limit, max(device_seconds, 5e-6))
    call()
    return _loops(call, synchronize, calls, repeats, is_waited_for=True)


def _loops(call, synchronize, calls, repeats, is_waited_for):
    found = []
    for _ in range(repeats):
        synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        if is_waited_for:
            synchronize()
        found.append((time.perf_counter() - start) / calls)
    synchronize()
    return statistics.median(found)


def host_seconds(call, synchronize, *, device_seconds=0.0, calls=200, repeats=15, limit=0.05):
    """Seconds of host time one `call()` takes when nothing is waited for; None for calls so long that the launch queue would fill.

    Parameters
    ----------
    call : callable()
        Enqueues work and returns.
    synchronize : callable()
        Waits for it, outside the timed region.
    device_seconds : float
        What the device takes for one call; `calls` is lowered so that a repeat takes neither it nor the host more than `limit` seconds.
    """
    calls = min(calls, int(limit / max(device_seconds, 1e-9)))
    if calls < 5:
        return None
    least = math.inf
    for _ in range(min(calls, 50)):  # the first calls find cold caches
        start = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - start)
    return _loops(call, synchronize, max(5, min(calls, int(limit / max(least, 1e-9)))), repeats, is_waited_for=False)
