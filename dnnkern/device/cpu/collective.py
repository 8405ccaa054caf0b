"""Forms of what threads do together: barriers, shuffles, votes, reductions."""
from .forms import I1, I32, I64, VOID, form
from .waits import IN_BLOCK, IN_GRID


@form("llvm.nvvm.barrier0", waits=IN_BLOCK)
def block_barrier(body):
    body.invoke("cpu.barrier", VOID, I32(0), I32(0), I1(1))


@form("llvm.nvvm.barrier0.<how:popc|and|or>", waits=IN_BLOCK)
def block_vote(body, predicate, how):
    true = body.is_true(predicate)
    count = body.invoke("cpu.vote", I32, body.not_(true) if how == "and" else true)
    if how == "popc":
        return count
    return body.zext(body.icmp_unsigned("==" if how == "and" else "!=", count, I32(0)), I32)


@form("bar.sync $0, $1;", waits=IN_BLOCK)
def named_barrier(body, name, threads):
    body.invoke("cpu.barrier", VOID, name, threads, I1(1))


@form("bar.arrive $0, $1;", waits=IN_BLOCK)
def named_arrival(body, name, threads):
    body.invoke("cpu.barrier", VOID, name, threads, I1(0))


@form("llvm.nvvm.bar.warp.sync", waits=IN_BLOCK)
def warp_barrier(body, members):
    body.collect("ballot", members, I32(0))


@form("shfl.sync.<mode:bfly|up|down|idx>.b32 $0, $1, $2, <clamp:31|0>, $3;", waits=IN_BLOCK)
def shuffle(body, value, operand, members, mode, clamp):
    return body.collect(mode, members, value, operand)


@form("{ .reg .pred p; setp.ne.b32 p, $1, 0; vote.sync.ballot.b32 $0, p, $2; }", waits=IN_BLOCK)
def ballot(body, predicate, members):
    return body.collect("ballot", members, predicate)


@form("{ .reg .pred p, q; setp.ne.b32 p, $1, 0; vote.sync.<which:any|all>.pred q, p, $2; selp.s32 $0, 1, 0, q; }", waits=IN_BLOCK)
def vote(body, predicate, members, which):
    true = body.is_true(predicate)
    found = body.collect("ballot", members, body.zext(body.not_(true) if which == "all" else true, I32))
    return body.zext(body.icmp_unsigned("==" if which == "all" else "!=", found, I32(0)), I32)


@form("redux.sync.<op:add|max|min>.s32 $0, $1, $2;", waits=IN_BLOCK)
def reduction(body, value, members, op):
    return body.collect(op, members, value)


@form("{ .reg .pred p; elect.sync _|p, $1; selp.s32 $0, 1, 0, p; }", waits=IN_BLOCK)
def elect(body, members):
    """The lowest of the lanes that are there."""
    there = body.collect("ballot", members, I32(1))
    lowest = body.invoke("llvm.cttz.i32", I32, there, I1(1))
    return body.zext(body.icmp_unsigned("==", lowest, body.field("laneid")), I32)


@form("nanosleep.u32 $0;", waits=IN_GRID)
def sleep(body, time):
    body.wait("sleep", I64(0))
