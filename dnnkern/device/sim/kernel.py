"""What `cuda.jit` makes: a `Kernel` that simulates its launches, and of device functions the plain Python function."""
import functools
import threading

import numpy as np

from .._fork import in_forked_child
from . import engine, integers, order, trace
from .arrays import Buffer, Layout
from .block import Block
from .config import config
from .errors import Misuse, Race
from .fresh import Fresh
from .maps import Map
from .pointer import Addresses, Pointer, address_of, memory_of, storage
from .scalars import as_argument

MAX_GRID = (2 ** 31 - 1, 65535, 65535)
MAX_BLOCK = (1024, 1024, 64)
MAX_THREADS = 1024
MAX_CLUSTER = 16


def _unlock():
    global _one_launch
    _one_launch = threading.Lock()


_unlock()
in_forked_child(_unlock)


def jit(func_or_sig=None, device=False, **options):
    """Kernel, or device function, as `numba.cuda.jit`: bare, or called with options. Signatures are accepted and not used."""
    if callable(func_or_sig):
        return device_function(func_or_sig) if device else Kernel(func_or_sig, options)
    return lambda function: jit(function, device=device, **options)


def device_function(function):
    """`function` as kernels call it: itself, with a code object of its own."""
    # Static shared arrays are told apart by code object: two functions made by one factory get one each, as they do from Numba.
    function.__code__ = function.__code__.replace()
    return function


class Allocation(Buffer):
    """Memory behind arguments; `views` are their names, dtypes, first bytes, and shapes (None of pointers)."""

    def __init__(self, raw, index, base):
        super().__init__(raw, index, base)
        self.views = []

    def describe(self, byte):
        """Words for the place `byte`: argument, index and address."""
        for name, dtype, first, shape in self.views:
            at, inside = (byte - first) // dtype.itemsize, int(np.prod(shape)) if shape is not None else None
            if inside is None or 0 <= at < inside:
                index = at if inside is None else ", ".join(str(i) for i in np.unravel_index(at, shape))
                return f"argument {name}[{index}] (address {self.base + byte:#x})"
        return f"argument {self.views[0][0]} (address {self.base + byte:#x})"


class Launch(engine.Launch):
    """A launch with its memory: the time line of accesses, the allocations behind the arguments, what `order` keeps about them.

    `arguments` make the kernel's arguments for a given thread; `memories` are the buffers by index, of which 0 is each block's own shared
    memory; `indices` and `clocks` are the blockIdx and the `Clocks` of the blocks by number; `asynchronous`: there are agents beside the
    threads; `options` are the kernel's; `fresh` tells what memory holds that nothing has written.
    """

    def __init__(self, kernel, arguments, fresh, **geometry):
        super().__init__(kernel.__name__, kernel.py_func, make_block=Block, **geometry)
        self.now = self.floor = 0
        self.options, self.fresh = kernel.targetoptions, fresh
        self.memories, self._allocations, self.locations, self.indices = [None], {}, {}, []
        self.clocks, self.asynchronous = [], False
        names = kernel.names
        self.arguments = [self._argument(a, names[k] if k < len(names) else f"#{k}") for k, a in enumerate(arguments)]

    def synchronise(self):
        order.meet_grid(self)

    def blame(self, error, thread):
        order.blame(self, error, thread)

    def _allocation(self, source, *view):
        """The buffer over an allocation's bytes, one for all arguments that look into it, which has another `view` now."""
        base = address_of(source)
        buffer = self._allocations.get(base)
        if buffer is None:
            buffer = self._allocations[base] = Allocation(source, len(self.memories), base)
            self.memories.append(buffer)
        buffer.views.append(view)
        return buffer

    def _argument(self, value, name):
        """Function that gives the argument to a thread."""
        if isinstance(value, Pointer):
            memory = value.buffer
            return value.of_launch(self._allocation(memory.raw, name, value.dtype, value.address - memory.base, None), name)
        if isinstance(value, Addresses):
            for pointer in value.pointers:
                self._allocation(pointer.buffer.raw, name, pointer.dtype, pointer.address - pointer.buffer.base, None)
            return self._argument(value.words, name)
        if isinstance(value, Map):
            pointer = value.pointer
            memory = self._allocation(pointer.buffer.raw, name, pointer.dtype, pointer.address - pointer.buffer.base, None)
            bound = value.of_launch(memory, name)
            return lambda thread: bound
        if isinstance(value, np.ndarray):
            dtype = value.dtype if value.dtype.kind in "biufc" else storage(value.dtype)
            source, byte = memory_of(value)
            if byte % dtype.itemsize or any(s % dtype.itemsize for s in value.strides):
                raise Misuse(f"argument {name}: strides {value.strides} or offset {byte} are not multiples of the {dtype.itemsize} bytes "
                             f"of {dtype}")
            strides = tuple(s // dtype.itemsize for s in value.strides)
            buffer = self._allocation(source, name, dtype, byte, value.shape if value.flags.c_contiguous else None)
            return Layout(buffer, dtype, byte // dtype.itemsize, value.shape, strides, f"argument {name}").of_thread
        if isinstance(value, tuple):
            make = getattr(type(value), "_make", tuple)
            if not any(isinstance(v, (Pointer, Addresses, Map, np.ndarray, tuple)) for v in value):
                scalars = make(as_argument(v) for v in value)
                return lambda thread: scalars
            parts = [self._argument(v, f"{name}[{k}]") for k, v in enumerate(value)]
            return lambda thread: make(give(thread) for give in parts)
        scalar = as_argument(value)
        return lambda thread: scalar


class Kernel:
    """A `@cuda.jit` function that runs in the simulator.

    Attributes
    ----------
    py_func : function
    targetoptions : dict
        The options it was decorated with.
    """

    def __init__(self, function, options):
        self.py_func, self.targetoptions = device_function(function), dict(options)
        functools.update_wrapper(self, function)
        code = function.__code__
        self.names = code.co_varnames[:code.co_argcount]
        self._least = code.co_argcount - len(function.__defaults__ or ())
        self._most = float("inf") if code.co_flags & 4 else code.co_argcount

    def simulate(self, grid, block, args, shared=0, cluster=(1, 1, 1), cooperative=False, schedule=None, fresh=Fresh()):
        """Run every block to its end.

        Parameters
        ----------
        grid, block, cluster : int or tuple of up to three
        args : sequence
            `Pointer`, `Map` and ndarray (updated in place), scalars, tuples of them.
        shared : int
            Bytes of dynamic shared memory.
        cooperative : bool
            All blocks are resident, and `cuda.cg.this_grid().sync()` may be used. None: as many as turn out to be needed.
        schedule : Schedule, optional
            Watches it.
        fresh : Fresh
            What memory of the blocks and threads holds that nothing has written, and who looks at reads of it.

        Raises
        ------
        Misuse, Race, Deadlock
            What the kernel did wrong; its own exceptions pass unchanged. A note names the kernel, the thread and the block.
        """
        grid, block, cluster = _triple(grid), _triple(block), _triple(cluster)
        shared = int(shared)
        self._check(grid, block, cluster, shared, len(args))
        if engine.in_kernel():
            raise Misuse(f"kernel {self.__name__} is launched from inside a kernel")
        if not all(grid):
            return
        with _one_launch, integers.of(self.py_func):
            again = functools.partial(Launch, self, args, fresh, grid=grid, block=block, cluster=cluster, shared=shared,
                                      cooperative=cooperative)
            launch = again()
            memory = trace.saved(launch)
            try:
                with trace.looking(fresh if fresh.looks else None, schedule):
                    launch.run()
            except Race as race:
                trace.locate(race, memory, again)
                raise

    def _check(self, grid, block, cluster, shared, nargs):
        head = f"kernel {self.__name__}: "
        if not self._least <= nargs <= self._most:
            raise Misuse(f"{head}{nargs} arguments given, it takes "
                         f"{self._least if self._least == self._most else f'{self._least} or more'} ({', '.join(self.names)})")
        threads = int(np.prod(block))
        for name, size, most in (("grid", grid, MAX_GRID), ("block", block, MAX_BLOCK)):
            if any(n < (name == "block") or n > m for n, m in zip(size, most)):
                raise Misuse(f"{head}{name} {size} is outside {'1' if name == 'block' else '0'} .. {most}")
        if threads > MAX_THREADS:
            raise Misuse(f"{head}a block of {threads} threads {block} exceeds {MAX_THREADS}")
        bounds = self.targetoptions.get("launch_bounds")
        bound = bounds[0] if isinstance(bounds, (tuple, list)) else bounds
        if bound and threads > bound:
            raise Misuse(f"{head}a block of {threads} threads exceeds its launch_bounds of {bound}")
        if not 0 <= shared <= config.shared_limit:
            raise Misuse(f"{head}{shared} bytes of dynamic shared memory exceed the {config.shared_limit} of a block")
        if int(np.prod(cluster)) > MAX_CLUSTER or any(c < 1 or g % c for g, c in zip(grid, cluster)):
            raise Misuse(f"{head}clusters of {cluster} blocks do not divide the grid {grid}, or have more than {MAX_CLUSTER} blocks")

    def __getitem__(self, configuration):
        configuration = configuration if isinstance(configuration, tuple) else (configuration,)
        if not 2 <= len(configuration) <= 5:
            raise Misuse(f"kernel {self.__name__}: [grid, block, stream, shared bytes, cluster] expected, {len(configuration)} given")
        grid, block, _, shared, cluster = (*configuration, *(None, None, None, 0, (1, 1, 1))[len(configuration):])

        def launch(*args):
            self.simulate(grid, block, args, shared=shared, cluster=cluster or (1, 1, 1), cooperative=None)
        return launch

    def forall(self, ntasks, tpb=128, stream=None, sharedmem=0):
        """Launcher of at least `ntasks` threads in one dimension."""
        return self[-(-ntasks // (tpb or 128)), tpb or 128, stream, sharedmem]

    def __call__(self, *args):
        if engine.in_kernel():  # as a device function
            return self.py_func(*args)
        raise Misuse(f"kernel {self.__name__} is called without a launch configuration: use {self.__name__}[grid, block](...)")


def _triple(v):
    v = tuple(int(n) for n in v) if isinstance(v, (tuple, list)) else (int(v),)
    if not 1 <= len(v) <= 3:
        raise Misuse(f"grid, block and cluster have one to three sizes, not {v}")
    return v + (1,) * (3 - len(v))
