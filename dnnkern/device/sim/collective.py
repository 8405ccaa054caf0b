"""Instructions that all lanes of a warp execute as one (``.aligned`` in PTX), and their operands in local arrays."""
import sys

import numpy as np

from . import engine
from .arrays import Nobody, Vector
from .engine import park
from .errors import Misuse
from .names import line
from .warp import FULL, Exchange


class Together(Exchange):
    """Lanes of a warp that come to the instruction `kind` at one place in the program; `work(values)` is what it does, once."""
    __slots__ = "code", "offset", "work", "whole"

    def complete_if_all(self):
        if self.warp.live & ~sum(1 << k for k in self.values):
            return
        del self.warp.exchanges["aligned", FULL]
        self.result = self.work(self.values)
        engine.wake(self.waiters)

    def complete_without(self, thread):
        """A lane has returned."""
        if self.whole:
            raise Misuse(f"{self.kind} at {line(self.code, self.offset)}: lane {thread.lane} of warp {self.warp.id} has returned, while "
                         f"lanes {sorted(self.values)} wait: it takes all 32")
        self.complete_if_all()


def together(kind, value, work, whole=True):
    """Rendezvous of a warp in the instruction whose twin is calling: what `work` gives for the values of the lanes, by lane, done once.

    `whole`: no lane may have returned. Otherwise those that have are not waited for.
    """
    caller = sys._getframe(2)
    thread = engine.CURRENT
    warp = thread.warp
    if whole and warp.live != FULL:
        missing = [k for k in range(32) if not warp.live >> k & 1]
        raise Misuse(f"{kind}: lanes {missing} of warp {warp.id} have returned, or the block has none: it takes all 32")
    x = warp.exchanges.get(("aligned", FULL))
    if x is None:
        x = warp.exchanges["aligned", FULL] = Together(warp, kind, FULL)
        x.code, x.offset, x.work, x.whole = caller.f_code, caller.f_lasti, work, whole
    elif x.kind != kind or x.offset != caller.f_lasti or x.code is not caller.f_code:
        raise Misuse(f"{kind} at {line(caller.f_code, caller.f_lasti)}: lane {thread.lane} of warp {warp.id} is here, while lanes "
                     f"{sorted(x.values)} wait in {x.kind} at {line(x.code, x.offset)}: a warp executes such an instruction as one")
    x.values[thread.lane] = value
    if len(x.values) >= warp.live.bit_count():
        x.complete_if_all()
    while x.result is None:
        park(x.waiters, x.why)
    return x.result


def threads_of(values):
    """The threads of the running thread's warp whose lanes are the keys of `values`, in order of lanes."""
    thread = engine.CURRENT
    first = 32 * thread.warp.id
    return [thread.block.threads[first + lane] for lane in sorted(values)]


def registers(what, array, start, count, dtype):
    """`count` elements from `start` on of a local array, as an ndarray over the same memory."""
    if isinstance(array, Vector) and array.thread is Nobody:
        layout = array.layout
        flat, first, extent = layout.buffer.local, layout.start + start, array.extent
    elif isinstance(array, np.ndarray) and array.ndim == 1:
        flat, first, extent = array, start, len(array)
    else:
        title = f"one of {array.dtype} with the shape {array.shape}" if isinstance(array, np.ndarray) else getattr(array, "title", None)
        raise Misuse(f"{what}: a 1-D local array of {dtype} is expected, not {title or type(array).__name__}")
    if flat.dtype is not dtype and flat.dtype != dtype:
        raise Misuse(f"{what}: a 1-D local array of {dtype} is expected, not one of {flat.dtype} with the shape {(extent,)}")
    if not 0 <= start <= extent - count:
        raise Misuse(f"{what}: elements {start} .. {start + count - 1} of a local array of {extent}")
    return flat[first:first + count]
