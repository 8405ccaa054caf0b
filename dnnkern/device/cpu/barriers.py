"""Barriers of a block, of some of its warps, and of a cluster, as LLVM IR beside `runtime`."""
from .runtime import BARRIERS, BLOCK_RECORD, THREAD_BITS, THREADS
from .waits import KIND


def _barriers():
    return f"""
define internal void @cpu.open(ptr %barrier) alwaysinline {{
  store i32 0, ptr %barrier
  %g = getelementptr i32, ptr %barrier, i64 1
  %generation = load i32, ptr %g
  %later = add i32 %generation, 1
  store i32 %later, ptr %g
  %votes = call i32 @cpu.get.votes()
  %v = call ptr @cpu.at.votes()
  %r = call ptr @cpu.at.voted()
  store i32 %votes, ptr %r
  store i32 0, ptr %v
  call void @cpu.progress()
  ret void
}}
; Comes to a barrier of `count` threads, 0: of all that have not returned, and waits there if `waits`. Where threads are counted, a warp
; counts for 32, whatever the block leaves it of lanes: its first lane for those that are missing.
define internal void @cpu.barrier(i32 %name, i32 %count, i1 %waits) noinline {{
  %barriers = call ptr @cpu.at.barriers()
  %n = and i32 %name, {BARRIERS - 1}
  %barrier = getelementptr [2 x i32], ptr %barriers, i32 %n
  %arrived = load i32, ptr %barrier
  %whole = icmp eq i32 %count, 0
  %self = call ptr @cpu.thread()
  %at = ptrtoint ptr %self to i32
  %offset = and i32 %at, {(THREADS << THREAD_BITS) - 1}
  %number = lshr i32 %offset, {THREAD_BITS}
  %threads = call i32 @cpu.get.threads()
  %rest = sub i32 %threads, %number
  %lane = and i32 %number, 31
  %head = icmp eq i32 %lane, 0
  %partial = icmp ult i32 %rest, 32
  %counted = icmp ne i32 %count, 0
  %heads = and i1 %head, %partial
  %stands = and i1 %heads, %counted
  %for = sub i32 33, %rest
  %weight = select i1 %stands, i32 %for, i32 1
  %arrived1 = add i32 %arrived, %weight
  %live = call i32 @cpu.get.live()
  %need = select i1 %whole, i32 %live, i32 %count
  %last = icmp uge i32 %arrived1, %need
  br i1 %last, label %open, label %come
open:
  call void @cpu.open(ptr %barrier)
  ret void
come:
  store i32 %arrived1, ptr %barrier
  br i1 %waits, label %wait, label %out
wait:
  %g = getelementptr i32, ptr %barrier, i64 1
  %generation = load i32, ptr %g
  %n64 = zext i32 %n to i64
  %count64 = zext i32 %count to i64
  %high = shl i64 %count64, 32
  %what = or i64 %high, %n64
  br label %loop
loop:
  call void @cpu.wait(i32 {KIND["barrier"]}, i64 %what)
  %now = load volatile i32, ptr %g
  %same = icmp eq i32 %generation, %now
  br i1 %same, label %loop, label %out
out:
  ret void
}}
; __syncthreads_count
define internal i32 @cpu.vote(i1 %yes) noinline {{
  %at = call ptr @cpu.at.votes()
  %votes = load i32, ptr %at
  %one = zext i1 %yes to i32
  %more = add i32 %votes, %one
  store i32 %more, ptr %at
  call void @cpu.barrier(i32 0, i32 0, i1 true)
  %result = call i32 @cpu.get.voted()
  ret i32 %result
}}
"""


def _clusters():
    block = BLOCK_RECORD.offset
    fields = "".join(f"  %p{name} = getelementptr i8, ptr %first, i64 {block[name]}\n  %{name} = load i32, ptr %p{name}\n"
                     for name in ("members", "arrivals", "generation"))
    return f"""
; The barrier of a cluster opens if all of its threads that have not returned are there.
define internal void @cpu.cluster.check() alwaysinline {{
  %first = call ptr @cpu.get.first()
{fields}  %some = icmp ne i32 %arrivals, 0
  %complete = icmp eq i32 %arrivals, %members
  %opens = and i1 %some, %complete
  br i1 %opens, label %open, label %out
open:
  store i32 0, ptr %parrivals
  %later = add i32 %generation, 1
  store i32 %later, ptr %pgeneration
  call void @cpu.progress()
  br label %out
out:
  ret void
}}
define internal void @cpu.cluster.arrive() noinline {{
  %first = call ptr @cpu.get.first()
{fields}  %more = add i32 %arrivals, 1
  store i32 %more, ptr %parrivals
  %owed = add i32 %generation, 1
  %powed = call ptr @cpu.at.owed()
  store i32 %owed, ptr %powed
  call void @cpu.cluster.check()
  ret void
}}
define internal void @cpu.cluster.wait() noinline {{
  %first = call ptr @cpu.get.first()
  %pgeneration = getelementptr i8, ptr %first, i64 {block['generation']}
  %powed = call ptr @cpu.at.owed()
  br label %ask
ask:
  %generation = load volatile i32, ptr %pgeneration
  %closed = add i32 %generation, 1
  %owed = load i32, ptr %powed
  %waits = icmp eq i32 %owed, %closed
  br i1 %waits, label %wait, label %out
wait:
  call void @cpu.wait(i32 {KIND["cluster"]}, i64 0)
  br label %ask
out:
  store i32 0, ptr %powed
  ret void
}}
; A thread of the cluster has returned.
define internal void @cpu.cluster.leave() noinline {{
  %first = call ptr @cpu.get.first()
{fields}  %owed = call i32 @cpu.get.owed()
  %closed = add i32 %generation, 1
  %came = icmp eq i32 %owed, %closed
  %one = zext i1 %came to i32
  %rest = sub i32 %arrivals, %one
  store i32 %rest, ptr %parrivals
  %fewer = sub i32 %members, 1
  store i32 %fewer, ptr %pmembers
  call void @cpu.cluster.check()
  ret void
}}
"""


def text():
    """All of them."""
    return _barriers() + _clusters()
