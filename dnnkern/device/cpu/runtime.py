"""The threads of a kernel on one thread of the operating system, and what they wait for, as LLVM IR.

A kernel whose threads wait for each other runs each of them as a *fiber*, on a stack of its own: where it has to wait it switches to the
next one, which is 14 instructions. The fibers of all blocks that run at once form a ring. A kernel whose threads never wait runs them one
after the other on one stack.

A block has an *arena*, address space aligned to its own size; memory that is never touched takes none. What thread and block it is, a
fiber finds from its stack pointer: nothing is passed to functions, and there is no thread-local storage. The arenas of blocks that run at
once lie one after another::

    0          a record of each thread
    BLOCK      the block's record, the group's of all blocks that run at once (in the first arena), a record of each warp
    EXCHANGE   what the lanes of a warp show each other in matrix instructions
    SHARED     shared memory
    SIGNALS    the stack of a thread of the system for its signals (in the first arena)
    PRODUCTS   what the threads of a warpgroup show each other, and its operands as float32 (`wgmma`)
    GUARD      what nobody may touch, as far as the stacks
    STACKS     a stack of each thread

The arenas of a cluster's blocks follow one another by rank, so an address in the cluster's window is a distance from the own arena.

`Record` says where the fields are, to the IR and to the host code that fills them.
"""
from . import lanes, switch

THREADS, ARENA_BITS, STACK_BITS = 1024, 28, 17
BLOCK, GROUP, WARPS, EXCHANGE = 1 << 20, (1 << 20) + 2048, (1 << 20) + 4096, (1 << 20) + (1 << 18)
SHARED, PRODUCTS, STACKS = 2 << 20, 16 << 20, 128 << 20
THREAD_BITS, WARP_BITS, TURN_BITS, LANE_BITS = 7, 10, 12, 7  # bytes of a record; of a warp's turn and a lane's part in EXCHANGE
SHARED_BYTES = 232448
RECORDS = EXCHANGE + (1 << 18)  # where what the runtime has for itself ends
SIGNALS, SIGNAL_BYTES, GUARD = 3 << 20, (1 << 16) + (1 << 12), 64 << 20
BARRIERS, WARPGROUPS = 16, 8  # named barriers of a block, and those of its warpgroups after them
WINDOW = 24  # bits of a shared address; above them is the rank + 1 of the block in its cluster, 0: the own one
WRITE = 1 << 32  # beside the bytes of an access that is a write
_BYTES = {"i32": 4, "i64": 8, "ptr": 8}


class Record:
    """Offsets of the fields that `fields` lists: "name type" each, with a count behind where there are several."""

    def __init__(self, base, fields):
        self.base, self.offset, self.type, at = base, {}, {}, 0
        for words in map(str.split, fields):
            name, kind, count = words[0], words[1], int(words[2]) if len(words) > 2 else 1
            at = -(-at // _BYTES[kind]) * _BYTES[kind]
            self.offset[name], self.type[name] = at, kind
            at += count * _BYTES[kind]
        self.bytes = at

    def accessors(self):
        """Functions of the running thread: ``@cpu.at.NAME``, a field's address, and ``@cpu.get.NAME``, its value."""
        return "".join(f"""
define internal ptr @cpu.at.{name}() alwaysinline {{
  %base = call ptr @cpu.{self.base}()
  %at = getelementptr i8, ptr %base, i64 {self.offset[name]}
  ret ptr %at
}}
define internal {kind} @cpu.get.{name}() alwaysinline {{
  %at = call ptr @cpu.at.{name}()
  %value = load {kind}, ptr %at
  ret {kind} %value
}}""" for name, kind in self.type.items())


THREAD = Record("thread", ["stack ptr", "next ptr", "previous ptr", "warp ptr", "tid.x i32", "tid.y i32", "tid.z i32", "laneid i32",
                           "owed i32",  # 1 + the generation of the cluster's barrier at which it has arrived and not waited, 0: none
                           "awaits i32", "awaited i64"])  # what it waits at: a kind and an operand, for `report`
BLOCK_RECORD = Record("block", [
    *(f"{name}.{axis} i32" for name in ("ntid", "ctaid", "nctaid", "cluster") for axis in "xyz"), "dynamic i32", "threads i32",
    "live i32", "votes i32", "voted i32", "group ptr", "arguments ptr", f"barriers i32 {2 * (BARRIERS + WARPGROUPS)}",
    # The cluster: how many blocks it has, which of them this is, the record of the first one, and there the cluster's barrier.
    "size i32", "rank i32", "first ptr", "members i32", "arrivals i32", "generation i32"])
# Who ends a kernel early leaves there why, an address in its stack, and what it did: the address it accessed, how, a signal's code.
GROUP_RECORD = Record("group", ["main ptr", "running i32", "idle i32", "resident i32", "cause i32", "code i32", "culprit ptr",
                                "address i64", "detail i64", "extents ptr", "count i32"])  # of a launch that is checked: what it was given
# A collective in progress has a slot: who takes part and who has come. `spilled` counts those not in the slot of their lowest lane.
WARP = Record("warp", ["alive i32", "spilled i32", *(f"{name} i32 32" for name in (
    "masks", "arrived", "values", "operands", "results", "meetings", "turns"))])
assert THREAD.bytes <= 1 << THREAD_BITS and WARP.bytes <= 1 << WARP_BITS and BLOCK + BLOCK_RECORD.bytes <= GROUP


def _where(processor):
    return switch.text(processor) + f"""
declare ptr @llvm.frameaddress.p0(i32)
declare i32 @llvm.cttz.i32(i32, i1)
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
define internal ptr @cpu.arena() alwaysinline {{
  %frame = call ptr @llvm.frameaddress.p0(i32 0)
  %i = ptrtoint ptr %frame to i64
  %m = and i64 %i, {-(1 << ARENA_BITS)}
  %p = inttoptr i64 %m to ptr
  ret ptr %p
}}
define internal ptr @cpu.thread() alwaysinline {{
  %frame = call ptr @llvm.frameaddress.p0(i32 0)
  %i = ptrtoint ptr %frame to i64
  %stack = lshr i64 %i, {STACK_BITS}
  %n = and i64 %stack, {THREADS - 1}
  %offset = shl i64 %n, {THREAD_BITS}
  %m = and i64 %i, {-(1 << ARENA_BITS)}
  %a = or i64 %m, %offset
  %p = inttoptr i64 %a to ptr
  ret ptr %p
}}
define internal ptr @cpu.block() alwaysinline {{
  %a = call ptr @cpu.arena()
  %p = getelementptr i8, ptr %a, i64 {BLOCK}
  ret ptr %p
}}
define internal ptr @cpu.group() alwaysinline {{
  %g = call ptr @cpu.get.group()
  ret ptr %g
}}
define internal ptr @cpu.warp() alwaysinline {{
  %w = call ptr @cpu.get.warp()
  ret ptr %w
}}
define internal ptr @cpu.shared(i64 %offset) alwaysinline {{
  %a = call ptr @cpu.arena()
  %s = getelementptr i8, ptr %a, i64 {SHARED}
  %p = getelementptr i8, ptr %s, i64 %offset
  ret ptr %p
}}
define internal ptr @cpu.shared_pointer(i32 %address) alwaysinline {{
  %offset = zext i32 %address to i64
  %p = call ptr @cpu.shared(i64 %offset)
  ret ptr %p
}}
define internal ptr @cpu.remote_pointer(i32 %address) alwaysinline {{
  %offset = and i32 %address, {(1 << WINDOW) - 1}
  %p = call ptr @cpu.shared_pointer(i32 %offset)
  %to = lshr i32 %address, {WINDOW}
  %own = icmp eq i32 %to, 0
  %rank = call i32 @cpu.get.rank()
  %rank1 = add i32 %rank, 1
  %far = sub i32 %to, %rank1
  %distance = select i1 %own, i32 0, i32 %far
  %d = sext i32 %distance to i64
  %bytes = shl i64 %d, {ARENA_BITS}
  %q = getelementptr i8, ptr %p, i64 %bytes
  ret ptr %q
}}
define internal i64 @cpu.shared_address.i64(ptr %p) alwaysinline {{
  %s = call ptr @cpu.shared(i64 0)
  %i = ptrtoint ptr %p to i64
  %j = ptrtoint ptr %s to i64
  %d = sub i64 %i, %j
  ret i64 %d
}}
define internal i32 @cpu.shared_address.i32(ptr %p) alwaysinline {{
  %d = call i64 @cpu.shared_address.i64(ptr %p)
  %t = trunc i64 %d to i32
  ret i32 %t
}}
""" + THREAD.accessors() + BLOCK_RECORD.accessors() + GROUP_RECORD.accessors() + WARP.accessors()


def _threads(own):
    thread, block, group, warp = THREAD.offset, BLOCK_RECORD.offset, GROUP_RECORD.offset, WARP.offset
    return f"""
; A fiber's life. It ends by taking itself out of the ring and going on with the next one; the last one goes back to @cpu.run.
define internal void @cpu.live() noinline {{
  %arguments = call ptr @cpu.get.arguments()
  call void @cpu.entry(ptr %arguments)
  %lane = call i32 @cpu.get.laneid()
  %bit = shl i32 1, %lane
  %others = xor i32 %bit, -1
  %palive = call ptr @cpu.at.alive()
  %alive = load i32, ptr %palive
  %fewer = and i32 %alive, %others
  store i32 %fewer, ptr %palive
  %plive = call ptr @cpu.at.live()
  %live = load i32, ptr %plive
  %live1 = sub i32 %live, 1
  store i32 %live1, ptr %plive
  call void @cpu.progress()
  %barrier = call ptr @cpu.at.barriers()
  %arrived = load i32, ptr %barrier
  %some = icmp ne i32 %arrived, 0
  %complete = icmp eq i32 %arrived, %live1
  %opens = and i1 %some, %complete
  br i1 %opens, label %open, label %leave
open:
  call void @cpu.open(ptr %barrier)
  br label %leave
leave:
  call void @cpu.cluster.leave()
  %self = call ptr @cpu.thread()
  %prunning = call ptr @cpu.at.running()
  %running = load i32, ptr %prunning
  %running1 = sub i32 %running, 1
  store i32 %running1, ptr %prunning
  %last = icmp eq i32 %running1, 0
  br i1 %last, label %home, label %rest
home:
  %main = call ptr @cpu.get.main()
  call void @cpu.switch(ptr %self, ptr %main)
  unreachable
rest:
  %next = call ptr @cpu.get.next()
  %previous = call ptr @cpu.get.previous()
  %pn = getelementptr i8, ptr %previous, i64 {thread['next']}
  store ptr %next, ptr %pn
  %np = getelementptr i8, ptr %next, i64 {thread['previous']}
  store ptr %previous, ptr %np
  %to = load ptr, ptr %next
  call void @cpu.switch(ptr %self, ptr %to)
  unreachable
}}
; Threads that never wait, one after the other on the first stack.
define internal void @cpu.all() noinline {{
  %self = call ptr @cpu.thread()
  %arguments = call ptr @cpu.get.arguments()
  %n = call i32 @cpu.get.threads()
  %nx = call i32 @cpu.get.ntid.x()
  %ny = call i32 @cpu.get.ntid.y()
  br label %loop
loop:
  %t = phi i32 [0, %0], [%t1, %loop]
  call void @cpu.place(ptr %self, i32 {thread['tid.x']}, i32 %t, i32 %nx, i32 %ny)
  %lane = and i32 %t, 31
  %pl = call ptr @cpu.at.laneid()
  store i32 %lane, ptr %pl
  call void @cpu.entry(ptr %arguments)
  %t1 = add i32 %t, 1
  %end = icmp eq i32 %t1, %n
  br i1 %end, label %out, label %loop
out:
  %main = call ptr @cpu.get.main()
  call void @cpu.switch(ptr %self, ptr %main)
  unreachable
}}
; Coordinates of number %k, x fastest, to three words of a record.
define internal void @cpu.place(ptr %record, i32 %offset, i32 %k, i32 %nx, i32 %ny) alwaysinline {{
  %x = urem i32 %k, %nx
  %q = udiv i32 %k, %nx
  %y = urem i32 %q, %ny
  %z = udiv i32 %q, %ny
  %px = getelementptr i8, ptr %record, i32 %offset
  store i32 %x, ptr %px
  %py = getelementptr i8, ptr %px, i64 4
  store i32 %y, ptr %py
  %pz = getelementptr i8, ptr %px, i64 8
  store i32 %z, ptr %pz
  ret void
}}
; A block's place in the grid: clusters one after the other, in each its blocks.
define internal void @cpu.place_block(ptr %arena, i32 %number) noinline {{
  %block = getelementptr i8, ptr %arena, i64 {BLOCK}
  %psize = getelementptr i8, ptr %block, i64 {block['size']}
  %size = load i32, ptr %psize
  %cluster = udiv i32 %number, %size
  %rank = urem i32 %number, %size
  %prank = getelementptr i8, ptr %block, i64 {block['rank']}
  store i32 %rank, ptr %prank
  %r64 = zext i32 %rank to i64
  %back = shl i64 %r64, {ARENA_BITS}
  %toward = sub i64 0, %back
  %first = getelementptr i8, ptr %block, i64 %toward
  %pfirst = getelementptr i8, ptr %block, i64 {block['first']}
  store ptr %first, ptr %pfirst
  br label %loop
loop:
  %offset = phi i64 [0, %0], [%offset1, %loop]
  %c = phi i32 [%cluster, %0], [%cq, %loop]
  %r = phi i32 [%rank, %0], [%rq, %loop]
  %axis = getelementptr i8, ptr %block, i64 %offset
  %pc = getelementptr i8, ptr %axis, i64 {block['cluster.x']}
  %along = load i32, ptr %pc
  %pg = getelementptr i8, ptr %axis, i64 {block['nctaid.x']}
  %grid = load i32, ptr %pg
  %clusters = udiv i32 %grid, %along
  %cx = urem i32 %c, %clusters
  %cq = udiv i32 %c, %clusters
  %rx = urem i32 %r, %along
  %rq = udiv i32 %r, %along
  %begin = mul i32 %cx, %along
  %x = add i32 %begin, %rx
  %px = getelementptr i8, ptr %axis, i64 {block['ctaid.x']}
  store i32 %x, ptr %px
  %offset1 = add i64 %offset, 4
  %end = icmp eq i64 %offset1, 12
  br i1 %end, label %out, label %loop
out:
  ret void
}}
; Puts thread %t at the beginning of a function. Stacks begin at different lines of the cache.
define internal ptr @cpu.prepare(ptr %arena, i32 %t, ptr %start) alwaysinline {{
  %n = zext i32 %t to i64
  %offset = shl i64 %n, {THREAD_BITS}
  %record = getelementptr i8, ptr %arena, i64 %offset
  %n1 = add i64 %n, 1
  %end = shl i64 %n1, {STACK_BITS}
  %some = and i64 %n, 63
  %shift = mul i64 %some, 832
  %top = sub i64 %end, %shift
  %at = add i64 %top, {STACKS - -(-own.saved // 64) * 64}
  %stack = getelementptr i8, ptr %arena, i64 %at
  %return = getelementptr i8, ptr %stack, i64 {own.resume}
  store ptr %start, ptr %return
  store ptr %stack, ptr %record
  ret ptr %record
}}
; Runs the blocks from %first to %last, %resident of them at once, in arenas from %base on. Not 0: the cause of an early end.
define i32 @cpu.run(ptr %base, i32 %resident, i32 %first, i32 %last) noinline {{
  %group = getelementptr i8, ptr %base, i64 {GROUP}
  %main = getelementptr i8, ptr %group, i64 {group['main']}
  %prunning = getelementptr i8, ptr %group, i64 {group['running']}
  %pidle = getelementptr i8, ptr %group, i64 {group['idle']}
  %pcause = getelementptr i8, ptr %group, i64 {group['cause']}
  store i32 0, ptr %pcause
  %president = getelementptr i8, ptr %group, i64 {group['resident']}
  store i32 %resident, ptr %president
  %block0 = getelementptr i8, ptr %base, i64 {BLOCK}
  %pn = getelementptr i8, ptr %block0, i64 {block['threads']}
  %n = load i32, ptr %pn
  br label %groups
groups:
  %k = phi i32 [%first, %0], [%reached, %after]
  %more = icmp ult i32 %k, %last
  br i1 %more, label %begin, label %out
out:
  ret i32 0
begin:
  store i32 0, ptr %prunning
  store i32 0, ptr %pidle
  br label %blocks
blocks: ; each block of the group in its arena
  %r = phi i32 [0, %begin], [%r1, %placed]
  %tail = phi ptr [null, %begin], [%end, %placed]
  %number = add i32 %k, %r
  %r64 = zext i32 %r to i64
  %far = shl i64 %r64, {ARENA_BITS}
  %arena = getelementptr i8, ptr %base, i64 %far
  %block = getelementptr i8, ptr %arena, i64 {BLOCK}
  call void @cpu.place_block(ptr %arena, i32 %number)
  %pgroup = getelementptr i8, ptr %block, i64 {block['group']}
  store ptr %group, ptr %pgroup
  br i1 @WAITS@, label %fibers, label %plain
plain:
  %only = call ptr @cpu.prepare(ptr %arena, i32 0, ptr @cpu.all)
  br label %placed
fibers:
  %plive = getelementptr i8, ptr %block, i64 {block['live']}
  store i32 %n, ptr %plive
  %pvotes = getelementptr i8, ptr %block, i64 {block['votes']}
  store i32 0, ptr %pvotes
  %pbarriers = getelementptr i8, ptr %block, i64 {block['barriers']}
  call void @llvm.memset.p0.i64(ptr %pbarriers, i8 0, i64 {8 * (BARRIERS + WARPGROUPS)}, i1 false)
  %prank = getelementptr i8, ptr %block, i64 {block['rank']}
  %rank = load i32, ptr %prank
  %heads = icmp eq i32 %rank, 0
  %pmembers = getelementptr i8, ptr %block, i64 {block['members']}
  br i1 %heads, label %cluster, label %ring
cluster: ; the first block's record has the cluster's barrier
  %psize = getelementptr i8, ptr %block, i64 {block['size']}
  %size = load i32, ptr %psize
  %members = mul i32 %size, %n
  call void @llvm.memset.p0.i64(ptr %pmembers, i8 0, i64 12, i1 false)
  store i32 %members, ptr %pmembers
  br label %ring
ring:
  %nx = load i32, ptr %block
  %pny = getelementptr i8, ptr %block, i64 {block['ntid.y']}
  %ny = load i32, ptr %pny
  %already = load i32, ptr %prunning
  %running = add i32 %already, %n
  store i32 %running, ptr %prunning
  %warps = getelementptr i8, ptr %arena, i64 {WARPS}
  %up = add i32 %n, 31
  %nw = lshr i32 %up, 5
  %nw64 = zext i32 %nw to i64
  %wbytes = shl i64 %nw64, {WARP_BITS}
  call void @llvm.memset.p0.i64(ptr %warps, i8 0, i64 %wbytes, i1 false)
  br label %threads
threads: ; each thread at the end of the ring
  %t = phi i32 [0, %ring], [%t1, %linked]
  %before = phi ptr [%tail, %ring], [%thread, %linked]
  %thread = call ptr @cpu.prepare(ptr %arena, i32 %t, ptr @cpu.live)
  call void @cpu.place(ptr %thread, i32 {thread['tid.x']}, i32 %t, i32 %nx, i32 %ny)
  %lane = and i32 %t, 31
  %plane = getelementptr i8, ptr %thread, i64 {thread['laneid']}
  store i32 %lane, ptr %plane
  %powed = getelementptr i8, ptr %thread, i64 {thread['owed']}
  store i32 0, ptr %powed
  %wn = lshr i32 %t, 5
  %wo = shl i32 %wn, {WARP_BITS}
  %warp = getelementptr i8, ptr %warps, i32 %wo
  %pw = getelementptr i8, ptr %thread, i64 {thread['warp']}
  store ptr %warp, ptr %pw
  %palive = getelementptr i8, ptr %warp, i64 {warp['alive']}
  %alive = load i32, ptr %palive
  %bit = shl i32 1, %lane
  %alive1 = or i32 %alive, %bit
  store i32 %alive1, ptr %palive
  %pprevious = getelementptr i8, ptr %thread, i64 {thread['previous']}
  store ptr %before, ptr %pprevious
  %nobody = icmp eq ptr %before, null
  br i1 %nobody, label %linked, label %link
link:
  %pnext = getelementptr i8, ptr %before, i64 {thread['next']}
  store ptr %thread, ptr %pnext
  br label %linked
linked:
  %t1 = add i32 %t, 1
  %tend = icmp eq i32 %t1, %n
  br i1 %tend, label %placed, label %threads
placed:
  %end = phi ptr [%only, %plain], [%thread, %linked]
  %r1 = add i32 %r, 1
  %reached = add i32 %k, %r1
  %full = icmp eq i32 %r1, %resident
  %none = icmp eq i32 %reached, %last
  %enough = or i1 %full, %none
  br i1 %enough, label %close, label %blocks
close:
  %lastnext = getelementptr i8, ptr %end, i64 {thread['next']}
  store ptr %base, ptr %lastnext
  %firstprevious = getelementptr i8, ptr %base, i64 {thread['previous']}
  store ptr %end, ptr %firstprevious
  %to = load ptr, ptr %base
  call void @cpu.switch(ptr %main, ptr %to)
  %cause = load volatile i32, ptr %pcause
  %ends = icmp ne i32 %cause, 0
  br i1 %ends, label %fail, label %after
after:
  br label %groups
fail:
  ret i32 %cause
}}
"""


def text(waits, processor):
    """The runtime of a kernel, whose threads wait for each other or do not. It calls the kernel as ``void @cpu.entry(ptr arguments)``."""
    return _where(processor) + lanes.text() + _threads(switch.SWITCHES[processor]).replace("@WAITS@", "true" if waits else "false")
