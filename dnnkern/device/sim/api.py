"""`cuda`: the one object that stands for numba.cuda, outside kernels and inside."""
import math
import sys

import numpy as np

from ..host_memory import HostFunctions
from . import engine, order, warp
from .arrays import local_array
from .atomics import Atomic
from .engine import pause
from .kernel import jit
from .names import ArrayName
from .scalars import as_dtype, i64


class _Shared:
    """Namespace `cuda.shared`."""

    @staticmethod
    def array(shape, dtype, alignment=None):
        """The block's array that this line of code creates; shape 0 is the dynamic shared array."""
        caller = sys._getframe(1)
        thread = engine.CURRENT
        return thread.block.shared_array(thread, caller.f_code, caller.f_lasti, shape, as_dtype(dtype), alignment)


class _Local:
    """Namespace `cuda.local`."""

    @staticmethod
    def array(shape, dtype, alignment=None):
        """The thread's own array, full of NaN or ones."""
        caller = sys._getframe(1)
        name = ArrayName("local array", caller.f_code, caller.f_lasti)
        return local_array(shape, as_dtype(dtype), name, engine.CURRENT.block.launch.fresh.local(name))


class _Const:
    """Namespace `cuda.const`."""

    @staticmethod
    def array_like(ary):
        """`ary`, read-only."""
        out = np.array(ary)
        out.flags.writeable = False
        return out


class _Grid:
    """What `cuda.cg.this_grid()` gives."""

    @staticmethod
    def sync():
        """Barrier of all threads of the launch."""
        caller = sys._getframe(1)
        engine.CURRENT.block.launch.sync(engine.CURRENT, caller.f_code, caller.f_lasti)


class _CooperativeGroups:
    """Namespace `cuda.cg`."""

    @staticmethod
    def this_grid():
        return _Grid


class Cuda(HostFunctions):
    """numba.cuda's names, as far as kernels and small programs use them."""

    jit = staticmethod(jit)
    shared, local, const, atomic, cg = _Shared, _Local, _Const, Atomic, _CooperativeGroups
    warpsize = 32
    dtype = staticmethod(as_dtype)

    threadIdx = property(lambda self: engine.CURRENT.threadIdx)
    blockIdx = property(lambda self: engine.CURRENT.blockIdx)
    blockDim = property(lambda self: engine.CURRENT.block.launch.block_size)
    gridDim = property(lambda self: engine.CURRENT.block.launch.grid_size)
    laneid = property(lambda self: engine.CURRENT.lane)

    @staticmethod
    def grid(ndim):
        """Position of the thread in the grid: a number, or a tuple of `ndim` numbers."""
        t = engine.CURRENT
        size = t.block.launch.block_dim
        at = tuple(i64(b) * n + i for b, n, i in zip(t.blockIdx, size, t.threadIdx))
        return at[0] if ndim == 1 else at[:ndim]

    @staticmethod
    def gridsize(ndim):
        """Threads of the grid in each of `ndim` directions."""
        launch = engine.CURRENT.block.launch
        size = tuple(i64(g) * b for g, b in zip(launch.grid, launch.block_dim))
        return size[0] if ndim == 1 else size[:ndim]

    @staticmethod
    def syncthreads():
        """Barrier of the block."""
        caller = sys._getframe(1)
        thread = engine.CURRENT
        thread.block.sync(thread, caller.f_code, caller.f_lasti)

    @staticmethod
    def syncthreads_count(predicate):
        caller = sys._getframe(1)
        return sum(engine.CURRENT.block.vote(engine.CURRENT, caller.f_code, caller.f_lasti, predicate))

    @staticmethod
    def syncthreads_and(predicate):
        caller = sys._getframe(1)
        return int(all(engine.CURRENT.block.vote(engine.CURRENT, caller.f_code, caller.f_lasti, predicate)))

    @staticmethod
    def syncthreads_or(predicate):
        caller = sys._getframe(1)
        return int(any(engine.CURRENT.block.vote(engine.CURRENT, caller.f_code, caller.f_lasti, predicate)))

    syncwarp = staticmethod(warp.syncwarp)
    shfl_sync, shfl_xor_sync = staticmethod(warp.shfl_sync), staticmethod(warp.shfl_xor_sync)
    shfl_up_sync, shfl_down_sync = staticmethod(warp.shfl_up_sync), staticmethod(warp.shfl_down_sync)
    ballot_sync, all_sync, any_sync = staticmethod(warp.ballot_sync), staticmethod(warp.all_sync), staticmethod(warp.any_sync)
    eq_sync, match_any_sync = staticmethod(warp.eq_sync), staticmethod(warp.match_any_sync)
    match_all_sync, activemask = staticmethod(warp.match_all_sync), staticmethod(warp.activemask)
    lanemask_lt = staticmethod(warp.lanemask_lt)

    @staticmethod
    def threadfence():
        """Orders the thread's accesses before it with those after it, for all threads of the device."""
        order.fence(engine.CURRENT, device=True)

    threadfence_system = threadfence

    @staticmethod
    def threadfence_block():
        """Orders the thread's accesses before it with those after it, for the threads of its block."""
        order.fence(engine.CURRENT, device=False)

    @staticmethod
    def nanosleep(ns):
        """Let all other threads run first."""
        pause(lambda: "nanosleep")

    @staticmethod
    def popc(x):
        """Number of set bits."""
        return _bits(x)[0].bit_count()

    @staticmethod
    def clz(x):
        """Leading zero bits of a 32-bit integer, of a 64-bit one if it does not fit."""
        value, width = _bits(x)
        return width - value.bit_length()

    @staticmethod
    def ffs(x):
        """Position of the lowest set bit, counted from 1; 0 if there is none."""
        value, _ = _bits(x)
        return (value & -value).bit_length()

    @staticmethod
    def brev(x):
        """Bits in reverse order."""
        value, width = _bits(x)
        return int(f"{value:0{width}b}"[::-1], 2)

    @staticmethod
    def fma(a, b, c):
        """a * b + c, rounded once (for float64: from Python 3.13 on)."""
        if isinstance(a, np.float32) and isinstance(b, np.float32) and isinstance(c, np.float32):
            return np.float32(np.float64(a) * np.float64(b) + np.float64(c))
        return np.float64(math.fma(a, b, c)) if hasattr(math, "fma") else a * b + c

    @staticmethod
    def cbrt(x):
        return np.cbrt(x)

    @staticmethod
    def selp(predicate, a, b):
        return a if predicate else b

    def __getattr__(self, name):
        raise AttributeError(f"the simulator's cuda has no attribute {name!r}")


def _bits(x):
    """`x` as an unsigned integer and its width: 32 bits where it fits."""
    x = int(x)
    width = 32 if -2 ** 31 <= x < 2 ** 32 else 64
    return x & ((1 << width) - 1), width


cuda = Cuda()
