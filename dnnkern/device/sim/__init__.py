"""A CUDA device in Python: the second face of `dnnkern.device`.

Kernels run here unmodified, one greenlet a CUDA thread, fast enough for the sizes of a test; breakpoints and `print` work in them. What the
simulator is for is what a GPU does not say:

- **Races.** Every access to shared memory, and to global memory through pointers and arrays, must be ordered after those it conflicts
  with, by barriers, or fences and atomic operations. An access that is not raises `Race`, naming the place, both threads and what is
  missing, whether or not this run's schedule would have hurt. Accesses are told apart to the byte. See `order`.
- **Deadlocks.** When nothing can go on, or all that run only poll, `Deadlock` lists who waits where, equal stories folded.
- **Asynchronous copies** (`mbarrier`, `tma`, `cp_async`) land as late as a GPU may let them, and until then leave NaN. They are in the
  order of accesses like threads, in a proxy of their own: what threads wrote they see behind a fence_async alone. Too few or too many
  bytes expected, parities that do not tell a phase from the one before, and copies that outlive their block are errors.
- **Divergence.** Collectives that some lanes miss, masks that do not agree, threads of a block in different syncthreads.
- **Bounds.** A pointer is a view of the whole allocation behind its array and leaves it nowhere; arrays check every dimension.
- **Alignment**, of pointers after a change of type and of vector accesses. Dynamic shared memory is aligned to 16 bytes, no more.
- **Memory nobody wrote.** Shared and local memory start as 0xFF bytes (NaN, -1) in every block; `Kernel.simulate` takes other bytes, and
  notes where they are read (see `fresh`).
- **Launches** no GPU would take: threads, launch_bounds, shared memory, clusters, arguments.

::

    from dnnkern.device.sim import Pointer, config, cuda, f32

    @cuda.jit(launch_bounds=64)
    def reverse(x, y):
        s = cuda.shared.array(64, f32)
        t = cuda.threadIdx.x
        s[t] = x[t]
        y[t] = s[63 - t]                # Race: a syncthreads is missing

    reverse.simulate(1, 64, [Pointer(x), Pointer(y)])
    reverse[1, 64](x, y)                # or as any Numba program, with NumPy arrays

`config` chooses the schedule ("fifo", "lifo", "random" with a seed) and what is tracked; `install` runs programs written for numba.cuda.
Numba is not imported.

Limits
------
- A loop that polls memory by plain loads never ends: nothing interrupts a thread but barriers, collectives, atomic operations and
  `cuda.nanosleep`. On a GPU such a loop is a race as well.
- Little is typed. Integers are Python ints until cast or stored; in kernels of `dnnkern.device.jit` unsigned ones wrap, and int32 that
  overflow are found under ``config.integers = "checked"`` (see `integers`). A bare float literal takes the type of what it meets, on a GPU
  it is float64 but in kernels of `jit`. Compiling finds those, and all errors of types.
- Float sums are NumPy's, rounded like a GPU's one by one; `cuda.fma` is rounded once. Float arrays of `cuda.local` are ndarrays.
- A fence counts in both directions, and what a barrier joins is passed on by any of its threads. An atomic operation that follows no fence
  passes nothing on: that a value was read proves no order.
- A thread that returns counts as having come to the block's later barriers, in which its lanes and threads are not waited for.
- A launch is one OS thread's work; another waits for it. A forked child waits for nobody: launches of other threads end with the fork.
"""
from .api import cuda
from .config import config
from .engine import STATS, current
from .errors import Deadlock, Misuse, Race, SimError
from .integers import wrapping
from .maps import Map
from .numba_plugin import install
from .pointer import Pointer
from .scalars import f32, f64, i8, i16, i32, i64, u8, u16, u32, u64

__all__ = ["Deadlock", "Map", "Misuse", "Pointer", "Race", "STATS", "SimError", "config", "cuda", "current", "f32", "f64", "i8", "i16",
           "i32", "i64", "install", "u8", "u16", "u32", "u64",
           "wrapping"]
