"""Forms of memory: vector accesses, asynchronous copies, atomics."""
from .forms import I1, I8, I32, I64, VOID, form
from .waits import IN_GRID


def load_all(body, pointer):
    """The results of a load of several values that lie one after another."""
    return [body.load_as(body.at(pointer, k, kind), kind) for k, kind in enumerate(body.results)]


def store_all(body, pointer, values):
    for k, value in enumerate(values):
        body.store(value, body.at(pointer, k, value.type))


def guarded(body, condition, then):
    """Run `then` where a 32-bit operand is not zero."""
    with body.if_then(body.is_true(condition)):
        then()


@form("ld.shared<vector:|.v2|.v4>.b<bits> ..., [$<address>];", "ld.shared<vector:>.b<bits> $0, [$<address>];")
def load_shared(body, at, vector, bits, address):
    return load_all(body, body.shared(at))


@form("st.shared<vector:|.v2|.v4>.b<bits> [$0], ...;")
def store_shared(body, at, *values, vector, bits):
    store_all(body, body.shared(at), values)


@form("ld.global<cache:|.nc|.cs>...b<bits> ..., [$<address>];")
def load_global(body, at, cache, bits, address):
    return load_all(body, body.pointer(at))


@form("{ .reg .pred p; setp.ne.b32 p, ...; ... @p ld.global...b<bits> ..., [$<address>]; }")
def load_global_if(body, at, condition, bits, address):
    """Zeros where the condition does not hold; nothing is read there."""
    before = body.block
    with body.if_then(body.is_true(condition)):
        values, after = load_all(body, body.pointer(at)), body.block
    results = []
    for value in values:
        chosen = body.phi(value.type)
        chosen.add_incoming(value.type(0), before)
        chosen.add_incoming(value, after)
        results.append(chosen)
    return results


@form("st.global<cache:|.cs>...b<bits> [$0], ...;")
def store_global(body, at, *values, cache, bits):
    store_all(body, body.pointer(at), values)


@form("prefetch.global.L2 [$0];", "cp.async.commit_group;", "cp.async.wait_group <pending>;", "griddepcontrol.<what>;",
      "setmaxnreg.<how:dec|inc>.sync.aligned.u32 <count>;")
def nothing(body, *operands, **words):
    """Hints, and waits for what was done at once."""


def _move(body, to, source, size):
    """Copy of 4, 8 or 16 bytes, which are aligned as one access is."""
    word = {4: I32, 8: I64}.get(size, I64)
    for k in range(max(1, size // 8)):
        body.store(body.load_as(body.at(source, k, word), word), body.at(to, k, word))


@form("{ .reg .u64 o; add.s64 o, $1, $2; cp.async.c<level:a|g>.shared.global [$0], [o], <size>, $3; }")
def copy_filled(body, to, source, offset, count, level, size):
    """What the source has not becomes zero."""
    target, source, whole = body.shared(to), body.pointer(body.add(source, offset)), int(size)
    with body.if_else(body.icmp_unsigned("==", count, I32(whole))) as (all_of_it, part):
        with all_of_it:
            _move(body, target, source, whole)
        with part:
            body.check(target, I64(whole), True)
            body.invoke("llvm.memset.p0.i64", VOID, target, I8(0), I64(whole), I1(0))
            body.copy(target, source, body.zext(count, I64))


@form("{ .reg .pred p; .reg .u64 o; setp.ne.s32 p, $3, 0; add.s64 o, $1, $2; @p cp.async.c<level:a|g>.shared.global [$0], [o], <size>; }")
def copy_if(body, to, source, offset, condition, level, size):
    guarded(body, condition, lambda: _move(body, body.shared(to), body.pointer(body.add(source, offset)), int(size)))


# ---- what threads of other blocks may do at the same time

def _add(body, pointer, value):
    body.invoke("cpu.progress", VOID)
    op = "add" if hasattr(value.type, "width") else "fadd"
    return body.atomic_rmw(op, pointer, value, "acq_rel")


@form("red.<order:relaxed|release>.gpu.global.add.<kind:f32|f64|u32> [$0], $1;")
def reduce_global(body, at, value, order, kind):
    _add(body, body.pointer(at), value)


@form("red.relaxed.gpu.global.v4.f32.add [$0], {$1, $2, $3, $4};")
def reduce_four(body, at, *values):
    """Four additions: those of a vector are no more one than they are on a GPU."""
    to = body.pointer(at)
    for k, value in enumerate(values):
        _add(body, body.at(to, k, value.type), value)


@form("red.relaxed.gpu.global.max.u32 [$0], $1;")
def raise_global(body, at, value):
    body.invoke("cpu.progress", VOID)
    body.atomic_rmw("umax", body.pointer(at), value, "acq_rel")


@form("atom.<order>.gpu.global.add.<kind:f32|f64|u32> $0, [$1], $2;")
def fetch_add(body, at, value, order, kind):
    return _add(body, body.pointer(at), value)


@form("ld.acquire.gpu.global.u32 $0, [$1];", waits=IN_GRID)
def load_acquired(body, at):
    """Whoever asks whether others have come lets them run first."""
    body.wait("poll", at)
    return body.load_atomic(body.pointer(at), "acquire", 4, typ=I32)


@form("llvm.nvvm.atomic.load.add.<kind:f32|f64>.p0<same>")
def atomic_add(body, pointer, value, kind, same):
    return _add(body, pointer, value)


@form("llvm.nvvm.membar.<scope>")
def fence(body, scope):
    body.fence("seq_cst")


@form("mov.u32 $0, %dynamic_smem_size;")
def dynamic_bytes(body):
    return body.field("dynamic")


@form("llvm.nvvm.read.ptx.sreg.<what:(?:tid|ntid|ctaid|nctaid)[.][xyz]|laneid>")
def special_register(body, what):
    return body.field(what)


@form("llvm.nvvm.read.ptx.sreg.warpsize")
def warp_size(body):
    return I32(32)
