"""Registers that move between the warpgroups of a block (setmaxnreg, sm_90a): fewer for those that only copy, more for those that compute.

A kernel with ``launch_bounds=(threads, blocks)`` starts with 65536 / (threads * blocks) registers a thread, rounded down to a multiple of
8, or with the most it claims if that is less. A warpgroup, 128 threads from a multiple of 128 on, gives some of its own to the block's
pool, or waits until the pool has what it claims::

    check_register_budget(384, ((128, 40), (256, 232)))      # host, where the kernel is made
    release, claim = make_register_release(40), make_register_claim(232)

    @cuda.jit(launch_bounds=(384, 1))
    def kernel(...):
        if cuda.threadIdx.x < 128:
            release()                                        # the whole warpgroup
        else:
            claim()

A claim that the pool can never meet waits for ever: on a GPU the kernel hangs, in the simulator it is a deadlock. Without the number of
blocks in `launch_bounds` ptxas cannot tell what the kernel starts with, and ignores the instructions.
"""
import functools

from . import SIMULATED, instruction

REGISTERS = 65536  # of a multiprocessor


def _granted(threads, blocks):
    """Registers a thread that a launch gives: what ptxas may use for these launch bounds."""
    return min(REGISTERS // (blocks * threads) // 8 * 8, 256)


if SIMULATED:
    from .sim.engine import current, park, wake
    from .sim.errors import Misuse

    class _Pool:
        """A block's registers: `free` ones, those a thread of each warpgroup has, who is in a move, how often each has moved."""

        def __init__(self, block):
            bounds = block.launch.options.get("launch_bounds")
            if not isinstance(bounds, (tuple, list)) or len(bounds) < 2 or not bounds[1]:
                raise Misuse(f"setmaxnreg: kernel {block.launch.name} has launch_bounds {bounds}; without (threads, blocks a "
                             "multiprocessor) ptxas does not know how many registers it starts with, and ignores the instruction")
            self.start = _granted(bounds[0], bounds[1])
            self.free, self.waiters, self.groups = 0, [], {}

    class _Group:
        """What a warpgroup has, and the meeting of its threads in a move."""
        __slots__ = "registers", "arrived", "move", "waiters", "moves"

        def __init__(self, registers):
            self.registers, self.arrived, self.move, self.waiters, self.moves = registers, 0, None, [], 0

    def _move(claim, count):
        name = f"setmaxnreg.{'inc' if claim else 'dec'} {count}"

        def move():
            thread = current()
            block, number = thread.block, thread.tid >> 7
            pool = block.__dict__.get("registers")
            if pool is None:
                pool = block.registers = _Pool(block)
            group = pool.groups.get(number)
            if group is None:
                if block.n < 128 * (number + 1):
                    raise Misuse(f"{name}: it takes a warpgroup of 128 threads; the block of {block.n} has {block.n - 128 * number} from "
                                 f"thread {128 * number} on")
                group = pool.groups[number] = _Group(pool.start)
            if group.arrived and group.move != (claim, count):
                raise Misuse(f"{name}: thread {thread.tid} is here, others of warpgroup {number} in setmaxnreg."
                             f"{'inc' if group.move[0] else 'dec'} {group.move[1]}: all must execute the same")
            group.move = claim, count
            group.arrived += 1
            moves = group.moves
            if group.arrived < 128:
                while group.moves == moves:
                    park(group.waiters, lambda: f"{name} of warpgroup {number}: " + (
                        f"{group.arrived} of its 128 threads arrived" if group.arrived < 128 else "the last thread waits for the pool"))
                return
            had = group.registers
            # A launch may give more than the kernel was compiled to start with, so the first claim may find it has enough.
            if count > had if not claim else count < had != pool.start:
                raise Misuse(f"{name}: warpgroup {number} has {had} registers a thread already")
            if claim:
                while pool.free < 128 * (count - had):
                    park(pool.waiters, lambda: f"{name} of warpgroup {number}: it has {had} of the {pool.start} a thread that the launch "
                                               f"gave and claims 128 * {count - had} = {128 * (count - had)} more, {pool.free} are free")
            if not claim or count > had:
                pool.free -= 128 * (count - had)
                group.registers = count
            group.arrived, group.moves = 0, moves + 1
            wake(group.waiters)
            wake(pool.waiters)
        return move
else:
    def _move(claim, count):
        return None


def check_register_budget(launch_threads, shares, blocks=1):
    """Raise ValueError, with the arithmetic, if the moves of a kernel can never be met: on a GPU it would hang.

    Parameters
    ----------
    launch_threads : int
        Threads of a block, the first of the `launch_bounds`.
    shares : tuple of (int, int)
        (threads, registers a thread after the moves) of each part of the block.
    blocks : int
        Blocks a multiprocessor, the second.
    """
    terms = " + ".join(f"{threads} * {registers}" for threads, registers in shares)
    threads = sum(threads for threads, _ in shares)
    if threads != launch_threads or any(t < 128 or t % 128 for t, _ in shares):
        raise ValueError(f"check_register_budget: the shares {terms} are of {threads} threads, the block has {launch_threads}; "
                         "each is of whole warpgroups of 128")
    for _, registers in shares:
        _check("check_register_budget", registers)
    given = _granted(launch_threads, blocks)
    total = sum(threads * registers for threads, registers in shares)
    if total > given * launch_threads:
        raise ValueError(f"check_register_budget: {terms} = {total} registers are more than the {launch_threads} * {given} = "
                         f"{given * launch_threads} that a launch of {launch_threads} threads, {blocks} a multiprocessor, is given; the "
                         "kernel would wait for ever")


def _check(what, count):
    if count not in range(24, 257, 8):
        raise ValueError(f"{what}: {count} registers a thread; it is a multiple of 8 from 24 to 256")


@functools.cache
def make_register_release(count):
    """Device function: the warpgroup keeps `count` registers a thread, at most what it has, and gives up the others. Host function."""
    _check("make_register_release", count)
    return instruction(f"setmaxnreg.dec.sync.aligned.u32 {count};", (), (), memory=True, twin=_move(False, count))


@functools.cache
def make_register_claim(count):
    """Device function: the warpgroup takes registers from the pool, as soon as they are there, until it has `count` a thread.

    Host function.
    """
    _check("make_register_claim", count)
    return instruction(f"setmaxnreg.inc.sync.aligned.u32 {count};", (), (), memory=True, twin=_move(True, count))
