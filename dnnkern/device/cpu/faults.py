"""What a kernel looks after itself, as LLVM IR beside `runtime`: its stack and, under DNNKERN_CHECK=bounds, its accesses.

LLVM has a function of a page or more of local variables call ``@cpu.probe`` before it takes them. Where they do not fit the thread's stack
the kernel ends, before it has touched the next one's.

A kernel compiled to be checked calls ``@cpu.check`` before each access. It may touch the memory that the launch was given and constants,
which the host lists, shared memory as far as the launch has it, the records of the runtime and the thread's own stack.
"""
from .runtime import ARENA_BITS, GROUP, RECORDS, SHARED, STACK_BITS, WRITE
from .switch import PROBES
from .waits import CAUSE

_SLACK = 16 << 10  # for functions that do not ask: the runtime's, the C library's, all of less than a page


def _probe(machine):
    """``@cpu.probe``, and the attribute of functions that call it, which the writer gives theirs; none where LLVM makes no such calls."""
    if machine not in PROBES:
        return "attributes #0 = { nounwind }\n"
    return f"""
attributes #0 = {{ nounwind "probe-stack"="cpu.probe" }}
define hidden void @cpu.probe() naked noinline {{
  {PROBES[machine].format(slack=_SLACK, bits=STACK_BITS)}
  unreachable
}}
define internal void @cpu.overflow(i64 %bytes) noinline {{
  %p = call ptr @cpu.at.detail()
  store i64 %bytes, ptr %p
  call void @cpu.end(i32 {CAUSE["overflow"]})
  unreachable
}}
"""


def _check(constants, shared):
    """``@cpu.check``, and the constants' addresses and sizes, up to a null, for the host.

    `shared` are the bytes of static shared memory, and where the dynamic array begins.
    """
    listed = "".join(f"{{ptr, i64}} {{ptr @{name}, i64 {size}}}, " for name, size in constants)
    return f"""
@cpu.constants = constant [{len(constants) + 1} x {{ptr, i64}}] [{listed}{{ptr, i64}} zeroinitializer]
define internal void @cpu.check(ptr %p, i64 %bytes, i1 %writes) noinline {{
  %at = ptrtoint ptr %p to i64
  %end = add i64 %at, %bytes
  %nothing = icmp eq i64 %bytes, 0
  %frame = call ptr @llvm.frameaddress.p0(i32 0)
  %f = ptrtoint ptr %frame to i64
  %differs = xor i64 %f, %at
  %other = lshr i64 %differs, {STACK_BITS}
  %own = icmp eq i64 %other, 0
  %quick = or i1 %nothing, %own
  br i1 %quick, label %good, label %given
given: ; what the launch was given, from low to high
  %extents = call ptr @cpu.get.extents()
  %count = call i32 @cpu.get.count()
  br label %next
next:
  %k = phi i32 [0, %given], [%k1, %look]
  %more = icmp ult i32 %k, %count
  br i1 %more, label %look, label %arenas
look:
  %plow = getelementptr [2 x i64], ptr %extents, i32 %k
  %low = load i64, ptr %plow
  %phigh = getelementptr i64, ptr %plow, i64 1
  %high = load i64, ptr %phigh
  %after = icmp uge i64 %at, %low
  %before = icmp ule i64 %end, %high
  %inside = and i1 %after, %before
  %k1 = add i32 %k, 1
  br i1 %inside, label %good, label %next
arenas: ; the shared memory of any block that runs at once, a cluster's for one
  %group = call ptr @cpu.get.group()
  %base = getelementptr i8, ptr %group, i64 {-GROUP}
  %b = ptrtoint ptr %base to i64
  %far = sub i64 %at, %b
  %resident = call i32 @cpu.get.resident()
  %wide = zext i32 %resident to i64
  %all = shl i64 %wide, {ARENA_BITS}
  %ours = icmp ult i64 %far, %all
  %dynamic = call i32 @cpu.get.dynamic()
  %some = icmp ne i32 %dynamic, 0
  %static = select i1 %some, i32 {shared[1]}, i32 {shared[0]}
  %limit = add i32 %static, %dynamic
  br i1 %ours, label %arena, label %bad
arena:
  %offset = and i64 %far, {(1 << ARENA_BITS) - 1}
  %past = add i64 %offset, %bytes
  %records = icmp ule i64 %past, {RECORDS}
  %limit64 = zext i32 %limit to i64
  %top = add i64 %limit64, {SHARED}
  %from = icmp uge i64 %offset, {SHARED}
  %to = icmp ule i64 %past, %top
  %shared = and i1 %from, %to
  %fine = or i1 %records, %shared
  br i1 %fine, label %good, label %bad
good:
  ret void
bad:
  %pcode = call ptr @cpu.at.code()
  store i32 %limit, ptr %pcode
  %paddress = call ptr @cpu.at.address()
  store i64 %at, ptr %paddress
  %pdetail = call ptr @cpu.at.detail()
  %how = select i1 %writes, i64 {WRITE}, i64 0
  %detail = or i64 %bytes, %how
  store i64 %detail, ptr %pdetail
  call void @cpu.end(i32 {CAUSE["bounds"]})
  unreachable
}}
"""


def text(machine, checked=False, constants=(), shared=(0, 0)):
    """All of it; the check where the kernel is checked."""
    return _probe(machine) + (_check(constants, shared) if checked else "")
