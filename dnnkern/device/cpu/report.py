"""Why a kernel cannot be compiled for this processor, or has ended early, read from the records in the arenas that it has left."""
import ctypes

from .._words import ranges
from . import runtime, waits
from .switch import CONTEXTS, MACHINE

_BLOCKS = 4  # that are told of one by one
_WORDS = {"i32": ctypes.c_uint32, "i64": ctypes.c_uint64, "ptr": ctypes.c_uint64}


class Refused(NotImplementedError):
    """Something in a kernel has no form for this processor."""


class Fault(RuntimeError):
    """A kernel has ended before its end."""


class Deadlock(Fault):
    """All threads that have not returned wait; the message lists who for what."""


class BadAccess(Fault):
    """A thread has accessed memory that is not there, or none of the launch's."""


class StackOverflow(Fault):
    """The local variables of a thread do not fit its stack."""


class View:
    """A record in memory; its fields by name."""

    def __init__(self, record, at):
        self.record, self.at = record, at

    def __getitem__(self, name):
        return self.word(name, 0)

    def word(self, name, k):
        """One of several values of a field."""
        kind = _WORDS[self.record.type[name]]
        return kind.from_address(self.at + self.record.offset[name] + k * ctypes.sizeof(kind)).value


class Thread(View):
    """A thread's record, with those of its block and its warp."""

    def __init__(self, at):
        super().__init__(runtime.THREAD, at)
        self.arena = at >> runtime.ARENA_BITS << runtime.ARENA_BITS
        self.number = at - self.arena >> runtime.THREAD_BITS
        self.block = View(runtime.BLOCK_RECORD, self.arena + runtime.BLOCK)
        self.warp = View(runtime.WARP, self["warp"])

    @classmethod
    def at_stack(cls, address):
        """The thread in whose stack an address is."""
        arena = address >> runtime.ARENA_BITS << runtime.ARENA_BITS
        return cls(arena + ((address >> runtime.STACK_BITS) % runtime.THREADS << runtime.THREAD_BITS))

    def __repr__(self):
        return f"thread {tuple(self[f'tid.{axis}'] for axis in 'xyz')} of block {self.block_index}"

    @property
    def first(self):
        """The record of the first block of the cluster."""
        return View(runtime.BLOCK_RECORD, self.block["first"])

    def shared(self, at):
        """The 8 bytes at an address of the block's shared memory."""
        return ctypes.c_uint64.from_address(self.arena + runtime.SHARED + at).value

    @property
    def block_index(self):
        """Coordinates of the block."""
        return tuple(self.block[f"ctaid.{axis}"] for axis in "xyz")


def fault(name, base, place):
    """The exception for a kernel whose `cpu.run` with arenas from `base` on did not return 0; `place` makes an address words."""
    group = View(runtime.GROUP_RECORD, base + runtime.GROUP)
    return _REASONS[group["cause"]](name, group, place)


def _deadlock(name, group, place):
    blocks, first = {}, Thread.at_stack(group["culprit"]).at
    at = first
    while True:
        thread = Thread(at)
        blocks.setdefault(thread.block.at, []).append(thread)
        at = thread["next"]
        if at == first:
            break
    lines = [f"kernel {name}: no thread can go on"]
    for _, threads in sorted(blocks.items())[:_BLOCKS]:
        stories = {}
        for thread in sorted(threads, key=lambda t: t.number):
            stories.setdefault(waits.told(thread, place), []).append(thread.number)
        lines.append(f"  block {threads[0].block_index}:")
        lines += [f"    {ranges(numbers)}: {story}" for story, numbers in stories.items()]
    if len(blocks) > _BLOCKS:
        lines.append(f"  and {len(blocks) - _BLOCKS} more blocks")
    return Deadlock("\n".join(lines))


_NEAR = 1 << 16  # bytes: an access of a function's own stack
_UNKNOWN = 0x80  # SI_KERNEL: no page was missing; the processor does not say where
_SIMULATOR = "the simulator names the line (DNNKERN_DEVICE=simulator)"


def _signal(name, group, place):
    stack, address = group["culprit"], group["address"]
    thread = Thread.at_stack(stack)
    if abs(address - stack) < _NEAR and runtime.GUARD <= address - thread.arena < runtime.STACKS:
        return StackOverflow(f"kernel {name}: the functions that threads of block {thread.block_index} are in do not fit their stacks of "
                             f"{1 << runtime.STACK_BITS} bytes; {_SIMULATOR}")
    if group["code"] == _UNKNOWN:
        return BadAccess(f"kernel {name}: {thread} accesses an address that no memory can have, or that is not aligned; {_SIMULATOR}")
    does = "writes to" if group["detail"] & CONTEXTS[MACHINE]["write"] else "reads from"
    return BadAccess(f"kernel {name}: {thread} {does} {place(address)}, where there is no memory; {_SIMULATOR}")


def _overflow(name, group, place):
    thread = Thread.at_stack(group["culprit"])
    return StackOverflow(f"kernel {name}: the local variables of a function that {thread} calls take {group['detail']} bytes; its stack "
                         f"has {1 << runtime.STACK_BITS} for all")


def _bounds(name, group, place):
    thread, address, detail = Thread.at_stack(group["culprit"]), group["address"], group["detail"]
    does = f"writes {detail % runtime.WRITE} bytes to" if detail >= runtime.WRITE else f"reads {detail} bytes from"
    base = group.at - runtime.GROUP
    if 0 <= address - base < group["resident"] << runtime.ARENA_BITS:
        offset = (address - base) % (1 << runtime.ARENA_BITS) - runtime.SHARED
        where = f"shared memory, byte {offset} of {group['code']}" if offset < runtime.STACKS - runtime.SHARED else "another thread's stack"
    else:
        where = place(address)
    return BadAccess(f"kernel {name}: {thread} {does} {where}; {_SIMULATOR}")


_REASONS = {waits.CAUSE["deadlock"]: _deadlock, waits.CAUSE["signal"]: _signal, waits.CAUSE["overflow"]: _overflow,
            waits.CAUSE["bounds"]: _bounds}
