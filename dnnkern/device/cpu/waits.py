"""What a thread waits at, for the report of a kernel that waits for ever.

A wait of the runtime or of a form is a call of ``@cpu.wait(kind, operand)`` in a loop: the thread's record keeps both while others
run, which is two stores. `story` enters the function that makes words of them::

    @story("poll")
    def _poll(thread, address, place):
        return f"polls {place(address)}"

It gets the `report.Thread`, the operand, and a function that makes an address words. ``KIND["poll"]`` is the number for the IR.
"""
import ctypes

from .._words import listed

KIND, _STORIES = {}, []


def story(name):
    """Decorator that enters a kind of wait."""
    def enter(function):
        KIND[name] = len(_STORIES)
        _STORIES.append(function)
        return function
    return enter


def told(thread, place):
    """What a thread waits at, in words."""
    return _STORIES[thread["awaits"]](thread, thread["awaited"], place)


@story("anything")
def _anything(thread, operand, place):
    """What calls ``@cpu.yield()``."""
    return "waits"


@story("barrier")
def _barrier(thread, operand, place):
    """The barrier's number, and above 32 bits its count of threads, 0: of all that have not returned."""
    name, count = operand & 0xFFFFFFFF, operand >> 32
    arrived = thread.block.word("barriers", 2 * name)
    if count:
        return f"barrier {name}: {arrived} of {count} threads have arrived"
    what = f"barrier {name}" if name else "syncthreads"
    return f"{what}: {arrived} of the {thread.block['live']} threads that have not returned have arrived"


@story("collective")
def _collective(thread, mask, place):
    """The thread is in one slot of the warp's record, and has come there."""
    warp = thread.warp
    here = next(here for here in (warp.word("arrived", slot) for slot in range(32)) if here >> thread["laneid"] & 1)
    missing = mask & warp["alive"] & ~here
    return f"collective of the lanes {_lanes(mask)} of a warp: {_lanes(missing)} missing"


@story("poll")
def _poll(thread, address, place):
    return f"polls {place(address)}: it holds {ctypes.c_uint32.from_address(address).value}"


@story("sleep")
def _sleep(thread, operand, place):
    return "sleeps (nanosleep)"


def _lanes(mask):
    return listed([lane for lane in range(32) if mask >> lane & 1])
