"""Warp collectives: shuffles, votes, reductions and scans over the 32 lanes.

Every lane named in ``members`` must execute the same call; functions without that argument are for the whole warp. Values may be float32,
float64, int32, uint32, int64 or uint64. The reductions exchange with the lane whose number differs in one bit, from the highest bit down,
so all lanes get the same bits and a run repeats exactly.

>>> @cuda.jit(launch_bounds=256)                                           # doctest: +SKIP
... def row_sums(x, sums, rows):                                           # a warp a row of 32
...     row = i32(cuda.blockIdx.x * 8 + warp_id())
...     if row < rows:
...         total = reduce_sum(x[i32(32 * row + lane_id())])
...         if lane_id() == 0:
...             sums[row] = total
"""
from . import SIMULATED, cuda, device_function, i32, instruction, u32
from .fastmath import maximum, minimum
from .numeric import target_arch

FULL = 0xFFFFFFFF

if SIMULATED:
    def shuffle_xor_sync(members, value, lane_mask):
        """`value` of the lane whose number is this one's XOR `lane_mask`, among the lanes of the bit mask `members`."""
        return cuda.shfl_xor_sync(members, value, lane_mask)

    def shuffle_up_sync(members, value, delta):
        """`value` of the lane `delta` below; the lowest `delta` lanes keep their own."""
        return cuda.shfl_up_sync(members, value, delta)

    def shuffle_down_sync(members, value, delta):
        """`value` of the lane `delta` above; the highest `delta` lanes keep their own."""
        return cuda.shfl_down_sync(members, value, delta)

    def shuffle_sync(members, value, lane):
        """`value` of lane `lane`."""
        return cuda.shfl_sync(members, value, lane)

    def add(a, b):
        """Sum of two values of one type, in that type: on a GPU an int32 sum does not widen, and wraps."""
        return a + b

    def _elect_twin(members):
        """The lowest lane of them."""
        from .sim.warp import exchange
        return int(cuda.laneid == min(exchange("elect.sync", members, 0)))

    def _the_same(values):
        from .sim.errors import Misuse
        if len(set(values)) > 1:
            raise Misuse(f"uniform: lanes give {min(values)} to {max(values)}; expected the same of all")
        return values[0]

    def _exchange(kind, combine):
        """Twin of a collective that combines the values of all members."""
        from .sim.warp import exchange

        def collective(value, members):
            return combine([v for _, v in sorted(exchange(kind, members, value).items())])
        return collective
else:
    from ._intrinsics import add
    from ._intrinsics import shuffle as _shuffle
    shuffle_xor_sync, shuffle_up_sync = _shuffle("bfly", 31), _shuffle("up", 0)
    shuffle_down_sync, shuffle_sync = _shuffle("down", 31), _shuffle("idx", 31)

    _elect_twin = _the_same = None

    def _exchange(kind, combine):
        return None


@device_function
def shuffle_xor(value, lane_mask):
    """`value` of the lane whose number is this one's XOR `lane_mask`."""
    return shuffle_xor_sync(u32(FULL), value, lane_mask)


@device_function
def shuffle_up(value, delta):
    """`value` of the lane `delta` below; the lowest `delta` lanes keep their own."""
    return shuffle_up_sync(u32(FULL), value, delta)


@device_function
def shuffle_down(value, delta):
    """`value` of the lane `delta` above; the highest `delta` lanes keep their own."""
    return shuffle_down_sync(u32(FULL), value, delta)


@device_function
def broadcast(value, lane):
    """`value` of lane `lane`, in every lane."""
    return shuffle_sync(u32(FULL), value, lane)


# ---- where a thread is

@device_function
def thread_id():
    """Number of the thread in its block, whatever the block's shape."""
    return i32(cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z))


@device_function
def lane_id():
    """Number of the thread in its warp, in a block whose first dimension is a multiple of 32 or the only one."""
    return cuda.threadIdx.x & 31


@device_function
def warp_id():
    """Number of the warp in its block, in a one-dimensional block."""
    return cuda.threadIdx.x >> 5


# ---- votes

_ballot = instruction("{ .reg .pred p; setp.ne.b32 p, $1, 0; vote.sync.ballot.b32 $0, p, $2; }", ("uint32",), ("int32", "uint32"),
                      memory=True, twin=lambda p, members: cuda.ballot_sync(members, p))
_any = instruction("{ .reg .pred p, q; setp.ne.b32 p, $1, 0; vote.sync.any.pred q, p, $2; selp.s32 $0, 1, 0, q; }", ("int32",),
                   ("int32", "uint32"), memory=True, twin=lambda p, members: int(cuda.any_sync(members, p)))
_all = instruction("{ .reg .pred p, q; setp.ne.b32 p, $1, 0; vote.sync.all.pred q, p, $2; selp.s32 $0, 1, 0, q; }", ("int32",),
                   ("int32", "uint32"), memory=True, twin=lambda p, members: int(cuda.all_sync(members, p)))
_elect = instruction("{ .reg .pred p; elect.sync _|p, $1; selp.s32 $0, 1, 0, p; }", ("int32",), ("uint32",), memory=True, twin=_elect_twin)


@device_function
def ballot(predicate):
    """Bit mask (uint32) of the lanes in which `predicate` is true."""
    return _ballot(predicate, u32(FULL))


@device_function
def any_lane(predicate):
    """True in every lane if `predicate` is in some."""
    return _any(predicate, u32(FULL)) != 0


@device_function
def all_lanes(predicate):
    """True in every lane if `predicate` is in all."""
    return _all(predicate, u32(FULL)) != 0


@device_function
def elect():
    """True in one lane of the warp and False in the others; sm_90.

    What only that lane does, the compiler knows, is done once: bulk copies and their addresses need no loop over the lanes.
    """
    return _elect(u32(FULL)) != 0


# ---- reductions and scans

def make_reduce(combine, width=32):
    """Device function ``reduce(value)``: `combine` over aligned groups of `width` lanes (a power of two), in every lane.

    `combine(a, b)` must give the same for (b, a), and the type of its operands.
    """
    if width not in (1, 2, 4, 8, 16, 32):
        raise ValueError(f"make_reduce: width {width} is not a power of two up to 32")
    steps = width.bit_length() - 1

    @device_function
    def reduce(value):
        for s in range(steps):
            value = combine(value, shuffle_xor(value, width >> s + 1))
        return value
    return reduce


reduce_sum, reduce_max, reduce_min = make_reduce(add), make_reduce(maximum), make_reduce(minimum)


def make_scan(combine):
    """Device function ``scan(value)``: lane k gets `combine` over lanes 0 to k."""
    @device_function
    def scan(value):
        lane = lane_id()
        for s in range(5):
            below = shuffle_up(value, 1 << s)
            if lane >= 1 << s:
                value = combine(below, value)
        return value
    return scan


scan_sum = make_scan(add)

# ---- one instruction for 32-bit integers, from sm_80 on

_redux_sum = instruction("redux.sync.add.s32 $0, $1, $2;", ("int32",), ("int32", "uint32"), memory=True,
                         twin=_exchange("redux.sync.add", lambda values: i32(sum(values))))
_redux_max = instruction("redux.sync.max.s32 $0, $1, $2;", ("int32",), ("int32", "uint32"), memory=True,
                         twin=_exchange("redux.sync.max", max))
_redux_min = instruction("redux.sync.min.s32 $0, $1, $2;", ("int32",), ("int32", "uint32"), memory=True,
                         twin=_exchange("redux.sync.min", min))
_redux_same = instruction("redux.sync.max.s32 $0, $1, $2;", ("int32",), ("int32", "uint32"), memory=True,
                          twin=_exchange("uniform", _the_same))


def _redux(modern, otherwise, what):
    @device_function
    def redux(value):
        if target_arch() >= 800:
            return modern(value, u32(FULL))
        return otherwise(value)
    redux.__doc__ = what
    return redux


_WORDS = "{} of an int32 over the warp, in every lane, wrapping; one redux.sync where there is one."
redux_sum = _redux(_redux_sum, reduce_sum, _WORDS.format("Sum"))
redux_max = _redux(_redux_max, reduce_max, _WORDS.format("Maximum"))
redux_min = _redux(_redux_min, reduce_min, _WORDS.format("Minimum"))
uniform = _redux(_redux_same, reduce_max, "An int32 that is the same in all lanes, so that the compiler knows it: it, and what follows "
                 "from it, lies in registers of the warp. The simulator raises where lanes differ.")
