"""How a thread waits, as LLVM IR beside `runtime`, and what at, for the report of a kernel that waits for ever.

A wait of the runtime or of a form is a call of ``@cpu.wait(kind, operand)`` in a loop. Once nobody gets on any more, the threads' records
keep both. `story` enters the function that makes words of them::

    @story("poll")
    def _poll(thread, address, place):
        return f"polls {place(address)}"

It gets the `report.Thread`, the operand, and a function that makes an address words. ``KIND["poll"]`` is the number for the IR.
"""
import ctypes

from .._words import listed

CAUSE = {"deadlock": 1, "signal": 2, "overflow": 3, "bounds": 4}  # of a kernel's early end: what @cpu.run returns
IDLE_ROUNDS = 1 << 14  # after which threads that only ask whether they may go on count as waiting for ever
KIND, _STORIES = {}, []
NEVER, IN_BLOCK, IN_GRID = range(3)  # what the threads of a kernel wait for: nothing, others of their block or cluster, other blocks


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


@story("mbarrier")
def _mbarrier(thread, operand, place):
    """The shared address, and above 32 bits the parity of the phase; of the word see `mbarrier`."""
    at, parity = operand & 0xFFFFFFFF, operand >> 32
    word = thread.shared(at)
    missing, count, nbytes = word & 0xFFFFF, word >> 20 & 0xFFFFF, word >> 41
    return (f"mbarrier at byte {at} of shared memory, phase of parity {parity}: {missing} of {count} arrivals and "
            f"{nbytes - (nbytes >> 22 << 23)} bytes missing")


@story("cluster")
def _cluster(thread, operand, place):
    first = thread.first
    return f"barrier of the cluster: {first['arrivals']} of the {first['members']} threads that have not returned have arrived"


@story("product")
def _product(thread, group, place):
    """The number of the warpgroup, whose barrier is after those with names."""
    return f"wgmma of warpgroup {group}: {thread.block.word('barriers', 2 * (16 + group))} of 128 threads have come"


@story("sleep")
def _sleep(thread, operand, place):
    return "sleeps (nanosleep)"


def _lanes(mask):
    return listed([lane for lane in range(32) if mask >> lane & 1])


def text():
    """Waiting, and the kernel's end where that is in vain."""
    return f"""
declare i1 @llvm.expect.i1(i1, i1)
; Something has happened that others may wait for.
define internal void @cpu.progress() alwaysinline {{
  %idle = call ptr @cpu.at.idle()
  store i32 0, ptr %idle
  ret void
}}
; Lets the others run. If none of them gets on either, each notes in a last round what it waits at, and the kernel ends.
define internal void @cpu.wait(i32 %kind, i64 %operand) noinline {{
  %at = call ptr @cpu.at.idle()
  %idle = load i32, ptr %at
  %idle1 = add i32 %idle, 1
  store i32 %idle1, ptr %at
  %running = call i32 @cpu.get.running()
  %limit = mul i32 %running, {IDLE_ROUNDS}
  %forever = icmp ugt i32 %idle1, %limit
  %self = call ptr @cpu.thread()
  %rarely = call i1 @llvm.expect.i1(i1 %forever, i1 false)
  br i1 %rarely, label %note, label %on
on:
  %next = call ptr @cpu.get.next()
  %alone = icmp eq ptr %self, %next
  br i1 %alone, label %out, label %go
go:
  %to = load ptr, ptr %next
  call void @cpu.switch(ptr %self, ptr %to)
  br label %out
out:
  ret void
note:
  %pawaits = call ptr @cpu.at.awaits()
  store i32 %kind, ptr %pawaits
  %pawaited = call ptr @cpu.at.awaited()
  store i64 %operand, ptr %pawaited
  %all = add i32 %limit, %running
  %noted = icmp ugt i32 %idle1, %all
  br i1 %noted, label %end, label %on
end:
  call void @cpu.end(i32 {CAUSE["deadlock"]})
  unreachable
}}
; Ends the kernel.
define internal void @cpu.end(i32 %cause) noinline {{
  %pcause = call ptr @cpu.at.cause()
  store i32 %cause, ptr %pcause
  %self = call ptr @cpu.thread()
  %culprit = call ptr @cpu.at.culprit()
  %frame = call ptr @llvm.frameaddress.p0(i32 0)
  store ptr %frame, ptr %culprit
  %main = call ptr @cpu.get.main()
  call void @cpu.switch(ptr %self, ptr %main)
  unreachable
}}
"""
