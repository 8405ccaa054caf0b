"""Kernels on the processor: compiled once, kept on disk, and run on NumPy's memory.

The key of a kernel's code is that of its cubin (`host.compile.cache_key`), the processor, and the sources of `device/cpu`.
"""
import concurrent.futures
import ctypes
import functools
import hashlib
import mmap
import os
import struct
import threading
import time
import weakref

import numpy as np

from ...host.compile import cache_key, is_missing, kept
from ...host.extents import Extent, argument, describe, extent
from ...host.extents import packed as packed_extents
from ...host.jobs import forks, side_by_side
from ...host.processor import cores
from ...host.scalars import shown
from ...host.sources import PACKAGE, digest
from .. import _environment, cpu
from .._parameters import CODE, constant_type, flattened, is_mapped, kernel_name
from . import machine, maps, report, runtime, signals
from .waits import IN_GRID

_MOST_THREADS, _MOST_RESIDENT = runtime.THREADS, 1024
WORTH_SHARING = 2e-4  # seconds of work, beside which it counts little that another thread of the system has to wake up
CHUNKS = 8            # that each of them takes, about, so that all end at the same time
BOUNDS = "bounds" in _environment.checks()  # whether kernels are compiled so that every access is checked
_PACE = 1e-8          # seconds a CUDA thread of a kernel that has not run yet
_lock, _functions = threading.Lock(), {}


@functools.cache
def _sources():
    return digest(*sorted((PACKAGE / "device" / "cpu").glob("*.py")))


def key(kernel, signature) -> str:
    """Name of the kernel's code in the cache: of this processor, this LLVM and these sources, checked or not."""
    parts = cache_key(kernel, signature, cpu.ARCH), machine.identity(), _sources(), "bounds" * BOUNDS
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def file_of(kernel, signature) -> str:
    """Name of the kernel's file in the cache directory."""
    return f"cpu/{machine.identity()}/{key(kernel, signature)}.o"


def compile_kernel(kernel, signature) -> cpu.Code:
    """The kernel for these parameter types, from the disk cache or compiled."""
    return kept(cpu.Code, lambda: file_of(kernel, signature), lambda: cpu.compile_kernel(kernel, signature, BOUNDS))


def compile_ahead(launches):
    """Compile the kernels of these launches that are neither in memory nor on disk, side by side. Only where this process may have children
    and what they make is kept; whatever is not there afterwards is compiled by who needs it."""
    wanted = dict.fromkeys((k.kernel, k.signature) for k in launches)
    if len(wanted) > 1 and forks():
        missing = [pair for pair in wanted if (*pair, BOUNDS) not in _functions and is_missing(file_of(*pair))]
        if len(missing) > 1:
            side_by_side([functools.partial(compile_kernel, *pair) for pair in missing])


class Function:
    """A kernel in memory; `pace` is what its last launch took a thread, in seconds."""
    _PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint32, ctypes.c_uint32)

    def __init__(self, code):
        self.shared, self.waits, self.checked, self._loaded = code.shared, code.waits, code.checked, machine.Loaded(code.code)
        signals.install()
        self.run = self._PROTOTYPE(self._loaded.function("cpu.run"))
        self.pace = _PACE
        self.constants = list(self._constants()) if code.checked else []

    def _constants(self):
        at = self._loaded.variable("cpu.constants")
        while low := ctypes.c_uint64.from_address(at).value:
            yield Extent(low, low + ctypes.c_uint64.from_address(at + 8).value, "a constant")
            at += 16


def function(kernel, signature) -> Function:
    """The kernel for these parameter types, compiled and loaded once a process."""
    with _lock:
        which = kernel, signature, BOUNDS
        if which not in _functions:
            _functions[which] = Function(compile_kernel(kernel, signature))
        return _functions[which]


class _Mapping:
    """Address space of `count` arenas, and the signals of the thread that makes them."""

    def __init__(self, count):
        size = 1 << runtime.ARENA_BITS
        self.memory = mmap.mmap(-1, (count + 1) * size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0))
        at = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.base = -(-at // size) * size
        for k in range(count):
            signals.guard(self.base + k * size)
        signals.enter(self.base)
        weakref.finalize(self, signals.leave, self.base)


class _Arenas(threading.local):
    """This thread's arenas, as many one after another as a launch has had blocks at once."""
    count = 0

    def of(self, count) -> int:
        """Address of the first of `count` arenas."""
        if count > self.count:
            self.mapping, self.count = _Mapping(count), count
        return self.mapping.base


_arenas = _Arenas()


def launch(kernel, signature, grid, block, packed, shared=0, cluster=(1, 1, 1), cooperative=False, extents=list):
    """Run a kernel to its end.

    Parameters
    ----------
    packed : bytes
        Its arguments, eight bytes each; pointers are addresses of NumPy's memory.
    extents : callable
        Gives the list of `Extent` of the memory that the kernel was given.

    Raises
    ------
    report.Fault
        The kernel has ended early: its threads wait for each other for ever, or one has done what cannot be gone on from.
    """
    name = kernel_name(kernel)
    blocks, threads = grid[0] * grid[1] * grid[2], block[0] * block[1] * block[2]
    if not 0 < threads <= _MOST_THREADS:
        raise ValueError(f"launch of {name}: block {block} has {threads} threads; expected 1 to {_MOST_THREADS}")
    if not 0 < blocks < 1 << 31:
        raise ValueError(f"launch of {name}: grid {grid} has {blocks} blocks; expected 1 to {(1 << 31) - 1}")
    found = function(kernel, signature)
    if found.shared + shared > runtime.SHARED_BYTES:
        raise ValueError(f"launch of {name}: {found.shared} + {shared} bytes of shared memory; expected at most {runtime.SHARED_BYTES}")
    size = cluster[0] * cluster[1] * cluster[2]
    if any(n % along for n, along in zip(grid, cluster)):
        raise ValueError(f"launch of {name}: grid {grid} and clusters of {cluster}; expected multiples of these")
    resident = 1 if not found.waits else blocks if cooperative else size
    if resident > _MOST_RESIDENT:
        raise ValueError(f"launch of {name}: {blocks} blocks of a cooperative launch; expected at most {_MOST_RESIDENT}")
    arguments = ctypes.create_string_buffer(packed, len(packed) or 1)
    listed = packed_extents([*extents(), *found.constants]) if found.checked else None

    def run(first, last):
        """Blocks of the launch, in arenas of the running thread; the exception where the kernel ended early."""
        base = _arenas.of(resident)
        for k in range(resident):
            at = base + (k << runtime.ARENA_BITS) + runtime.BLOCK
            _put(at, "ntid.x", "3I", *block)
            _put(at, "nctaid.x", "6I", *grid, *cluster)
            _put(at, "size", "I", size)
            _put(at, "dynamic", "2I", shared, threads)
            _put(at, "arguments", "Q", ctypes.addressof(arguments))
        if listed is not None:
            _put(base + runtime.GROUP, "extents", "QI", listed.ctypes.data, len(listed), record=runtime.GROUP_RECORD)
        if found.run(base, resident, first, last):
            return report.fault(name, base, functools.partial(describe, extents=extents()))
        return None

    started, workers = time.perf_counter(), 1
    # Who waits for other blocks waits for those before it, which have ended when one thread of the system runs all of them in order.
    if resident < blocks and found.waits < IN_GRID and found.pace * blocks * threads > WORTH_SHARING:
        workers = min(cores(), blocks // resident)
    fault = _shared_out(run, blocks, resident, workers) if workers > 1 else run(0, blocks)
    found.pace = (time.perf_counter() - started) * workers / (blocks * threads)
    if fault is not None:
        raise fault


def _shared_out(run, blocks, resident, workers):
    """Run all blocks, a few times `resident` on whichever of so many threads of the system is free; the exception where one ended early."""
    chunk, ends = resident * max(1, blocks // (CHUNKS * workers * resident)), []
    begins = iter(range(0, blocks, chunk))

    def work():
        for first in begins:  # one step of an iterator in C: no two threads get the same
            if ends:
                return
            fault = run(first, min(first + chunk, blocks))
            if fault is not None:
                ends.append(fault)
    others = [_pool().submit(work) for _ in range(workers - 1)]
    try:
        work()
    except BaseException:  # Ctrl-C: the others work on the caller's memory
        ends.append(None)
        raise
    finally:
        concurrent.futures.wait(others)
    for other in others:
        other.result()
    return ends[0] if ends else None


@functools.cache
def _pool():
    return concurrent.futures.ThreadPoolExecutor(max(1, cores() - 1), "dnnkern")


os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has none of its parent's threads


def _put(at, field, code, *values, record=runtime.BLOCK_RECORD):
    data = struct.pack("<" + code, *values)
    ctypes.memmove(at + record.offset[field], data, len(data))


def scalar(kind, value) -> bytes:
    """A kernel's argument of a scalar type."""
    return struct.pack("<" + CODE[kind], value).ljust(8, b"\0")


def scalars(kind, value) -> bytes:
    """A kernel's arguments of a constant: of a tuple one for each number, or array."""
    return b"".join(scalar("uint64", address(v)) if k.endswith("*") else scalar(k, v if k.startswith("float") else int(v))
                    for k, v in flattened(kind, value))


def address(value) -> int:
    """Of an array of NumPy's, 0 of None."""
    return 0 if value is None else value.__array_interface__["data"][0]


def tensor_map(spec, at, keep) -> bytes:
    """A kernel's argument of the map of the array at an address: where its record is, which `keep` keeps until the launch has ended."""
    keep.append(np.frombuffer(maps.encoded(spec, at), np.uint8))
    return scalar("uint64", address(keep[-1]))


def launch_once(kernel, grid, block, args, shared=0, cluster=(1, 1, 1), cooperative=False, index=0):
    """Compile and run one kernel on NumPy arrays: as `host.executable.launch_once`."""
    signature, packed, keep = [], [], []
    for a in args:
        if is_mapped(a):
            signature.append("tensormap")
            packed.append(tensor_map(a[1], address(a[0]), keep))
        elif isinstance(a, np.ndarray):
            signature.append(a.dtype.name + "*")
            packed.append(scalar("uint64", address(a)))
        else:
            signature.append(constant_type(a))
            packed.append(scalars(signature[-1], a))
    launch(kernel, tuple(signature), _triple(grid), _triple(block), b"".join(packed), shared, _triple(cluster), cooperative,
           functools.partial(_arrays, kernel, args, keep))


def launch_arrays(kernel, grid, block, args, shared=0):
    """Compile and run a kernel as numba.cuda does: NumPy's arrays are arrays there, Python's ints int64, floats float64."""
    signature, packed, name = [], [], kernel_name(kernel)
    for k, a in enumerate(args):
        if isinstance(a, np.ndarray):
            if a.dtype.name not in CODE:
                raise TypeError(f"{name}: argument {k} is an array of {a.dtype}; expected one of {', '.join(CODE)}")
            layout = "C" if a.flags.c_contiguous else "F" if a.flags.f_contiguous else "A"
            signature.append(f"{a.dtype.name} {a.ndim} {layout}")
            packed += [scalar("int64", v) for v in (0, 0, a.size, a.itemsize, address(a), *a.shape, *a.strides)]
            continue
        kind = a.dtype.name if isinstance(a, np.generic) else {int: "int64", float: "float64"}.get(type(a))
        if kind not in CODE:
            raise TypeError(f"{name}: argument {k} is {shown(a)}; expected an array of `dnnkern.device.cuda`, an int, a float or a scalar "
                            "of NumPy's")
        signature.append(kind)
        packed.append(scalar(kind, a))
    launch(kernel, tuple(signature), _triple(grid), _triple(block), b"".join(packed), shared,
           extents=functools.partial(_arrays, kernel, args))


def _arrays(kernel, args, keep=()):
    """Extents of arrays, those of tensor maps and these themselves among them."""
    arrays = [(k, m) for k, a in enumerate(args) for m in (a[:1] if is_mapped(a) else a if isinstance(a, tuple) else (a,))]
    return [extent(a, argument(kernel, k)) for k, a in arrays if isinstance(a, np.ndarray)] + [extent(a, "a tensor map") for a in keep]


def _triple(extents):
    given = extents if isinstance(extents, tuple) else (extents,)
    return tuple(given) + (1,) * (3 - len(given))
