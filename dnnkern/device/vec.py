"""Accesses of 4, 8 and 16 bytes, and what they need: pointers to another element type, pointer arithmetic, shared-memory addresses.

A name says what the access is, left to right::

    load4          the 4 elements p[i], ..., p[i+3], as a tuple       store4          p[i], ..., p[i+3] = a tuple
    load4_nc       through the read-only path (ld.global.nc)          store4_cs       evict first (st.global.cs)
    load4_if       with a last argument: 0 reads nothing, gives 0
    load4_nc_if    both
    ..._into       with `buffer, k` in front: buffer[k:k+4]           ..._from        p, i, buffer, k: from buffer[k:k+4]

`p` is a flat pointer to global memory or, for plain load4 and store4, a 1-D shared array. `i` counts elements of `p`; the access must lie
at a multiple of its size, which the simulator checks (a GPU stops the kernel with a misaligned address). 1 and 2 in place of 4 are accesses
of as many elements: load4 of ``float32*`` or ``uint32*``, load2 of ``float64*`` are 16 bytes. 8- and 16-bit elements are read as words,
``load4(as_u32(p), i)`` being 8 16-bit elements or 16 bytes, unpacked by `convert.element`.

Plain accesses are visible to the optimiser, which keeps them in order with stores and barriers. The others are volatile instructions that
stay where the program has them: write the loads of a phase next to each other. ``_nc`` memory must not be written while the kernel runs.

>>> @cuda.jit(launch_bounds=256)                                           # doctest: +SKIP
... def copy(x, y, chunks):                                                # x, y: "uint16*", 8 of them a chunk
...     c = i32(cuda.blockIdx.x * 256 + cuda.threadIdx.x)
...     if c < chunks:
...         store4(as_u32(y), i32(4 * c), load4_nc(as_u32(x), i32(4 * c)))
"""
from . import SIMULATED, device_function, instruction

if SIMULATED:
    import numpy as np

    from .sim.engine import current
    from .sim.errors import Misuse
    from .sim.pointer import at_address
    from .sim.scalars import converter, u32, u64

    def _window(at, dtype, count, what):
        """The running thread, its block's shared memory as elements of `dtype`, and the number among them of that at address `at`, checked
        for `count` of them."""
        thread = current()
        memory, nbytes = thread.block.shared, count * dtype.itemsize
        byte = int(at) - memory.base
        if (byte + memory.base) % nbytes or not 0 <= byte <= memory.used - nbytes:
            raise Misuse(f"{what}: {nbytes} bytes at shared address {int(at):#x} are misaligned or outside the block's "
                         f"{memory.base:#x} .. {memory.base + memory.used:#x}")
        return thread, memory, byte // dtype.itemsize

    def _prefetch_twin(p):
        """Nothing is read; an address outside the array is an error."""
        p.locate(0)

    def shared_load(scalar, count):
        """Twin of an ld.shared."""
        dtype = np.dtype(scalar)

        def load(at):
            thread, memory, k = _window(at, dtype, count, "ld.shared")
            entry = k + memory.code(dtype)
            elements = memory.elements(dtype)
            if count == 1:
                thread.reads.append(entry)
                return elements[k]
            thread.reads.extend(range(entry, entry + count))
            return tuple(elements[k:k + count])
        return load

    def shared_store(scalar, count):
        """Twin of an st.shared."""
        dtype = np.dtype(scalar)
        convert = converter(dtype)

        def store(at, *values):
            thread, memory, k = _window(at, dtype, count, "st.shared")
            entry, elements = k + memory.code(dtype), memory.elements(dtype)
            thread.writes.extend(range(entry, entry + count))
            for n, value in enumerate(values):
                elements[k + n] = convert(value)
        return store

    def _zeros(p, count):
        return [0 if p.dtype.kind in "iu" else p.dtype.type(0)] * count

    def _loads(count, cache="", predicated=False):
        """The twins of a load: returning a tuple (a scalar if count is 1), and filling a buffer."""
        def read(p, i, ok):
            if predicated and not ok:
                return _zeros(p, count)
            return p.load(i, count, count * p.dtype.itemsize)

        def load(p, i, ok=None):
            values = read(p, i, ok)
            return values[0] if count == 1 else tuple(values)

        def load_into(buffer, k, p, i, ok=None):
            for n, value in enumerate(read(p, i, ok)):
                buffer[k + n] = value
        return load, load_into

    def _stores(count, cache=""):
        """The twins of a store: of a tuple (a scalar if count is 1), and from a buffer."""
        def store(p, i, values):
            values = values if isinstance(values, (tuple, list)) else [values]
            if len(values) != count:
                raise TypeError(f"store{count} got {len(values)} values")
            p.store(i, list(values), count * p.dtype.itemsize)

        def store_from(p, i, buffer, k):
            p.store(i, [buffer[k + n] for n in range(count)], count * p.dtype.itemsize)
        return store, store_from

    def _retype(name):
        dtype = np.dtype(name)
        return lambda p: at_address(p, dtype, current()) if isinstance(p, (int, np.integer)) else p.view(dtype)

    def advance(p, n):
        """The flat pointer `n` elements on; any integer, negative too."""
        return p + n

    def address(p, i):
        """64-bit address of element `i` of a flat pointer or a 1-D array."""
        return u64(p.address + int(i) * p.dtype.itemsize)

    def shared_address(array, i):
        """32-bit address, in the shared-memory window, of element `i` of a 1-D shared array."""
        return u32(array.address + int(i) * array.dtype.itemsize)

    def pin(count):
        """Function ``pin(buffer)``: the optimiser may not keep what was computed from the first `count` elements of a local array.

        It costs no instruction. Call it between two phases that unpack the same packed words: without it the compiler keeps all unpacked
        values alive from one to the next, which doubles the registers.
        """
        return lambda buffer: None
else:
    from ._intrinsics import address, advance, pin, shared_address, vector_load, vector_store  # noqa: F401
    from ._intrinsics import retype as _retype

    _prefetch_twin = None

    def shared_load(scalar, count):
        return None

    shared_store = shared_load

    def _loads(count, cache="", predicated=False):
        return vector_load(count, cache, predicated), vector_load(count, cache, predicated, into=True)

    def _stores(count, cache=""):
        return vector_store(count, cache), vector_store(count, cache, source=True)

load2, load2_into = _loads(2)
load4, load4_into = _loads(4)
load1_nc, load1_nc_into = _loads(1, ".nc")
load2_nc, load2_nc_into = _loads(2, ".nc")
load4_nc, load4_nc_into = _loads(4, ".nc")
load1_if, load1_if_into = _loads(1, "", predicated=True)
load2_if, load2_if_into = _loads(2, "", predicated=True)
load4_if, load4_if_into = _loads(4, "", predicated=True)
load1_nc_if, load1_nc_if_into = _loads(1, ".nc", predicated=True)
load2_nc_if, load2_nc_if_into = _loads(2, ".nc", predicated=True)
load4_nc_if, load4_nc_if_into = _loads(4, ".nc", predicated=True)
store2, store2_from = _stores(2)
store4, store4_from = _stores(4)
store1_cs, store1_cs_from = _stores(1, ".cs")
store2_cs, store2_cs_from = _stores(2, ".cs")
store4_cs, store4_cs_from = _stores(4, ".cs")

prefetch_l2 = instruction("prefetch.global.L2 [$0];", (), ("uint64",), twin=_prefetch_twin)
"""``prefetch_l2(p)``: the 128 bytes around where a pointer to global memory points are brought into the L2. Nobody waits for them."""

# ``as_u32(p)``: the same address as a ``uint32*``, whatever `p` points to; the index then counts words. `p` may be a 64-bit address too, of
# which the simulator knows those in a table of addresses among the kernel's arguments (`dnnkern.host.table`).
as_i8, as_u8, as_i16, as_u16 = _retype("int8"), _retype("uint8"), _retype("int16"), _retype("uint16")
as_i32, as_u32, as_i64, as_u64 = _retype("int32"), _retype("uint32"), _retype("int64"), _retype("uint64")
as_f32, as_f64 = _retype("float32"), _retype("float64")


def _shared(count, scalar):
    """Load and store of `count` scalars at a 32-bit shared-memory address."""
    bits, vector = scalar[-2:], f".v{count}" if count > 1 else ""
    names = ", ".join(f"${k}" for k in range(count))
    sources = ", ".join(f"${k + 1}" for k in range(count))
    if count > 1:
        names, sources = f"{{{names}}}", f"{{{sources}}}"
    load = instruction(f"ld.shared{vector}.b{bits} {names}, [${count}];", (scalar,) * count, ("uint32",), memory=True,
                       twin=shared_load(scalar, count))
    store = instruction(f"st.shared{vector}.b{bits} [$0], {sources};", (), ("uint32",) + (scalar,) * count, memory=True,
                        twin=shared_store(scalar, count))
    return load, store


# ``load_shared_4u32(address) -> tuple`` and ``store_shared_4u32(address, a, b, c, d)`` at a `shared_address`
load_shared_u16, store_shared_u16 = _shared(1, "uint16")
load_shared_u32, store_shared_u32 = _shared(1, "uint32")
load_shared_2u32, store_shared_2u32 = _shared(2, "uint32")
load_shared_4u32, store_shared_4u32 = _shared(4, "uint32")
load_shared_f32, store_shared_f32 = _shared(1, "float32")
load_shared_2f32, store_shared_2f32 = _shared(2, "float32")
load_shared_4f32, store_shared_4f32 = _shared(4, "float32")
load_shared_f64, store_shared_f64 = _shared(1, "float64")
load_shared_2f64, store_shared_2f64 = _shared(2, "float64")
load_shared_u32x4 = load_shared_4u32


@device_function
def store_shared_u32x4(at, words):
    """Store a tuple of four words at the shared address `at`, a multiple of 16."""
    store_shared_4u32(at, words[0], words[1], words[2], words[3])
