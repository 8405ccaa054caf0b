"""Launching: arguments packed into one buffer a thread and plan, then one cuLaunchKernelEx a kernel, or a launch of several as a graph
where their values come often.

A kernel argument is a constant of the plan, or *dynamic*: named, and given at each execution (pointers, and scalars such as alpha).
"""
import ctypes
import functools
import struct
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..device._parameters import CODE, fields, flattened, is_structure, kernel_name
from ..preference import remark
from . import driver, raw
from .compile import compile_kernel
from .device import device, on_device
from .driver import CudaError, failed
from .graphs import Replays
from .suggest import nearest
from .table import DeviceTable, Slot, Table

if TYPE_CHECKING:
    from .tensormap import Im2colMap, TensorMap

_LIMIT_DEFAULT_SHARED = 48 * 1024


@dataclass(frozen=True)
class Argument:
    """One kernel parameter: its type ("float32*", "int32", "int64x6" for a tuple, or a NamedTuple class whose annotations are such types)
    and a constant, or the name of a dynamic value. Of a NamedTuple each member is a constant, or an `Argument` of the class's type.

    `offset` is added to a pointer, in bytes: several kernels share one workspace that way. A "tensormap" is the `spec` of an array whose
    address is the dynamic value. A "uint64*" whose `spec` is a `Table` is that table, made anew where an address in it has changed.
    """
    type: str | type
    value: object
    offset: int = 0
    spec: "TensorMap | Im2colMap | Table | None" = None

    @property
    def is_dynamic(self):
        return isinstance(self.value, str)

    @property
    def is_pointer(self):
        return isinstance(self.type, str) and self.type.endswith("*")

    @functools.cached_property
    def members(self):
        """The arguments that a structure with dynamic members is made of, in order; () of any other."""
        if not (is_structure(self.type) and any(isinstance(v, Argument) for v in self.value)):
            return ()
        for (_, kind), v in zip(fields(self.type), self.value, strict=True):
            if isinstance(v, Argument) and v.type != kind:
                raise TypeError(f"a member of {self.type.__qualname__} is {v}; expected the type {kind}")
        return tuple(v if isinstance(v, Argument) else Argument(kind, v) for (_, kind), v in zip(fields(self.type), self.value))


@dataclass(frozen=True)
class Launch:
    """One kernel launch of a plan."""
    kernel: object
    grid: tuple
    block: tuple
    arguments: tuple
    shared: int = 0
    cluster: tuple = (1, 1, 1)
    cooperative: bool = False
    dependent: bool = False

    @property
    def signature(self):
        return tuple(a.type for a in self.arguments)

    @functools.cached_property
    def parameters(self):
        """Its arguments as they are passed: of a structure with dynamic members these."""
        return tuple(m for a in self.arguments for m in a.members or (a,))

    def __post_init__(self):
        threads = self.block[0] * self.block[1] * self.block[2]
        if not 1 <= threads <= 1024:
            raise ValueError(f"launch of {kernel_name(self.kernel)}: {threads} threads per block; expected 1 to 1024")
        for size, bound, axis in zip(self.grid, (2 ** 31 - 1, 65535, 65535), "xyz"):
            if not 1 <= size <= bound:
                raise ValueError(f"launch of {kernel_name(self.kernel)}: grid {self.grid}; {axis} is 1 to {bound}")


class _Config(ctypes.Structure):
    """CUlaunchConfig."""
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint), ("stream", ctypes.c_void_p),
                ("attributes", ctypes.c_void_p), ("count", ctypes.c_uint)]


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute: an id, and a value of 64 bytes."""
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_char * 4), ("value", ctypes.c_uint * 16)]


_struct = functools.cache(struct.Struct)  # one of each format, so that those that layers take turns with stay in caches


@functools.cache
def _library(code):
    return driver.cuLibraryLoadData(code, None, None, 0, None, None, 0)


_shared_lock = threading.Lock()


@functools.cache
def _most_shared(kernel, index):
    """[bytes of dynamic shared memory that a kernel's launches may have on a device]."""
    return [0]


def _allow_shared(kernel, index, handle, shared):
    """Let a kernel's launches have so many bytes of it. Plans share kernels: what another one needs stays allowed."""
    with _shared_lock:
        most = _most_shared(kernel, index)
        if shared > most[0]:
            driver.cuKernelSetAttribute(raw.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, shared, kernel, handle)
            most[0] = shared


class Function:
    """A compiled kernel loaded on a device, with the attributes a launch needs set once."""

    def __init__(self, binary, index, shared, cluster):
        self.binary = binary
        self.library = _library(binary.code)
        self.kernel = kernel = driver.cuLibraryGetKernel(self.library, binary.entry.encode())
        handle = driver.cuDeviceGet(index)
        if binary.shared + shared > _LIMIT_DEFAULT_SHARED:  # static and dynamic together
            _allow_shared(kernel, index, handle, shared)
        if cluster[0] * cluster[1] * cluster[2] > 8:
            driver.cuKernelSetAttribute(raw.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, kernel, handle)
        self.handle = driver.cuKernelGetFunction(kernel)


class _Frame:
    """One thread's argument storage and launch configurations of one plan."""

    def __init__(self, executable):
        self.storage = ctypes.create_string_buffer(max(8, executable.storage_bytes))
        base = ctypes.addressof(self.storage)
        self.keep, self.calls, self.configs, self.maps = [], [], [], []
        self.tables = [Slot(offset, table) for offset, table in executable.tables]
        for launch, function, slots in zip(executable.launches, executable.functions, executable.slots):
            parameters = (ctypes.c_void_p * len(slots))()
            for k, slot in enumerate(slots):
                if isinstance(slot, int):
                    parameters[k] = base + slot
                elif isinstance(slot, tuple):
                    self.maps.append(_Map(*slot, parameters, k))
                else:
                    parameters[k] = executable.constants_at[slot]
            config = _Config()
            config.grid[:], config.block[:], config.shared = launch.grid, launch.block, launch.shared
            attributes = _attributes(launch)
            config.attributes, config.count = ctypes.addressof(attributes) if attributes else None, len(attributes or ())
            self.keep += [parameters, attributes]
            self.configs.append(config)
            self.calls.append((ctypes.addressof(config), function.handle, ctypes.addressof(parameters), None))
        self.stream, self.addresses = None, None  # of the last launch; of a list that `repeat` was given last
        self.at = None  # where a site's arrays lie whose call the frame holds
        self.replays = executable.replays() if executable.is_replayed else None

    def set_stream(self, stream):
        """Launch on this stream from now on."""
        for config in self.configs:
            config.stream = stream
        self.stream = stream


class _Map:
    """A tensor map in a frame, number `k` of a kernel's parameters. It is encoded once for each address, and passed where it lies."""
    __slots__ = "position", "offset", "spec", "parameters", "k", "address", "known"
    _REMEMBERED = 256  # layers of the same shapes, which share a plan, and allocators that go in circles

    def __init__(self, position, offset, spec, parameters, k):
        self.position, self.offset, self.spec, self.parameters, self.k = position, offset, spec, parameters, k
        self.address, self.known = None, {}  # {address: (where its map lies, what lies there)}

    def set(self, address):
        """Describe the array at this address from now on."""
        found = self.known.get(address)
        if found is None:
            if len(self.known) == self._REMEMBERED:
                del self.known[next(iter(self.known))]
            found = self.known[address] = _aligned(self.spec.encode(address + self.offset))
        self.parameters[self.k] = found[0]
        self.address = address


def _aligned(code):
    """A copy of an encoded tensor map: its address, and the memory that has it."""
    storage = ctypes.create_string_buffer(len(code) + 63)
    at = -(-ctypes.addressof(storage) // 64) * 64
    ctypes.memmove(at, code, len(code))
    return at, storage


def _side_by_side(constants):
    """Memory that has these bytes, eight or fewer of each, and {bytes: their address}. A launch reads all of a plan's constants, some of
    which have a hundred: each by itself would be as many lines that the processor fetches."""
    memory = ctypes.create_string_buffer(8 * len(constants) + 8)
    base, found = -(-ctypes.addressof(memory) // 8) * 8, {}
    for constant in sorted(constants):
        at = found[constant] = base + 8 * len(found)
        ctypes.memmove(at, constant, len(constant))
    return memory, found


def _attributes(launch):
    wanted = []
    if launch.cluster != (1, 1, 1):
        wanted.append((raw.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, launch.cluster))
    if launch.cooperative:
        wanted.append((raw.CU_LAUNCH_ATTRIBUTE_COOPERATIVE, (1,)))
    if launch.dependent:
        wanted.append((raw.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, (1,)))
    attributes = (_Attribute * len(wanted))()
    for attribute, (kind, values) in zip(attributes, wanted):
        attribute.id = kind
        attribute.value[:len(values)] = values
    return attributes if wanted else None


def _positions(launches, parameters):
    """{name: its index in the values of a call}; ValueError if a launch takes a name that no call has."""
    known = dict.fromkeys(name for name, _ in parameters)
    for launch in launches:
        for a in launch.parameters:
            for name in a.spec.names if isinstance(a.spec, Table) else (a.value,) if a.is_dynamic else ():
                if name not in known:
                    raise ValueError(f"launch of {kernel_name(launch.kernel)}: Argument({a.type!r}, {name!r}); expected a constant, or one "
                                     f"of {', '.join(map(repr, known))}{nearest(name, known)}")
    return {name: k for k, name in enumerate(name for name, kind in parameters if kind != "null")}


def _shifted_pointers(launches, order):
    """[(index of a value, offset)] of the pointers at an offset that launches take."""
    found = {}
    for launch in launches:
        for a in launch.parameters:
            if a.is_dynamic and a.offset and a.type != "tensormap" and a.value in order and not isinstance(a.spec, Table):
                found[order[a.value], a.offset] = None
    return list(found)


class Executable:
    """A plan's launches, compiled and loaded on one device. `execute` may be called from several threads at once."""

    def __init__(self, launches, parameters, index):
        """`parameters`: ((name, type), ...) of the dynamic values, in the order `execute` takes them; "pointer" is a type.

        A parameter of type "null" is a pointer that is null in every call: `execute` takes no value for it.
        """
        self.launches, self.parameters, self.index = tuple(launches), tuple(p for p in parameters if p[1] != "null"), index
        absent = {name for name, kind in parameters if kind == "null"}
        order = _positions(self.launches, parameters)
        arch = device(index).arch
        with on_device(index):
            self.functions = [Function(self.compiled(k, arch), index, k.shared, k.cluster) for k in self.launches]
        fields = ["Q" if kind == "pointer" else CODE[kind] for _, kind in self.parameters]
        self.shifted = _shifted_pointers(self.launches, order)  # they follow the dynamic values, each of which has eight bytes
        self.slots, size = [], 8 * (len(fields) + len(self.shifted))
        self.tables, known = [], {}
        for launch in self.launches:
            slots = []
            for a in launch.parameters:
                if a.type == "tensormap":
                    slots.append((order[a.value], a.offset, a.spec))
                elif isinstance(a.spec, Table):
                    if a.spec not in known:
                        known[a.spec] = size
                        self.tables.append((size, DeviceTable(a.spec, order, index)))
                        size += 8
                    slots.append(known[a.spec])
                elif a.is_dynamic and a.value in absent:
                    slots.append(bytes(8))
                elif not a.is_dynamic:
                    slots += [struct.pack("<" + CODE[scalar], v) for scalar, v in flattened(a.type, a.value)]
                elif not a.offset:
                    slots.append(8 * order[a.value])
                else:
                    slots.append(8 * (len(fields) + self.shifted.index((order[a.value], a.offset))))
            self.slots.append(slots)
        self.storage_bytes = size
        self.constants, self.constants_at = _side_by_side({slot for slots in self.slots for slot in slots if isinstance(slot, bytes)})
        self.pointers = sum(kind == "pointer" for _, kind in self.parameters)
        self.layout, numbers, packed = (_struct("<" + "".join(f + "x" * (8 - struct.calcsize(f)) for f in some))
                                        for some in (fields, fields[self.pointers:], fields + ["Q"] * len(self.shifted)))
        self.pack, self.pack_numbers = packed.pack_into, numbers.pack_into
        self.local = threading.local()
        self.mapped = tuple(slot[0] for slots in self.slots for slot in slots if isinstance(slot, tuple))  # positions of values
        self.is_steady = not self.tables
        self.is_replayed = self.is_steady and len(self.launches) > 1

    def compiled(self, launch, arch):
        """The `Binary` of a launch's kernel."""
        return compile_kernel(launch.kernel, launch.signature, arch)

    def new_frame(self):
        """One that the caller keeps, for a thread of its own."""
        return _Frame(self)

    def filled(self, values):
        """A frame of its own that has these values, of a plan that `is_steady`."""
        frame = _Frame(self)
        self.pack(frame.storage, 0, *values, *[values[position] + offset for position, offset in self.shifted])
        for tensor_map in frame.maps:
            tensor_map.set(values[tensor_map.position])
        return frame

    def frame(self):
        """The thread's."""
        try:
            return self.local.frame
        except AttributeError:
            self.local.frame = _Frame(self)
            return self.local.frame

    def replays(self):
        """The thread's graphs of the launches."""
        try:
            return self.local.replays
        except AttributeError:
            self.local.replays = Replays(self.index, len(self.launches))
            return self.local.replays

    def execute(self, values, stream):
        """Launch on a stream: pack the values, one driver call a kernel, or one for all. Nothing is allocated, checked or waited for.

        A plan that `is_steady` needs no more than its values in a frame, `shifted` pointers after them, the frame's maps of the values that
        are `mapped`, and `enqueue`, or `replay` where it `is_replayed`, again and again for the same values: `sites` do it all, in frames
        of their own.
        """
        try:
            frame = self.local.frame
        except AttributeError:
            frame = self.frame()
        if self.shifted:
            values = (*values, *[values[position] + offset for position, offset in self.shifted])
        frame.addresses = None
        self.pack(frame.storage, 0, *values)
        for tensor_map in frame.maps:
            if values[tensor_map.position] != tensor_map.address:
                tensor_map.set(values[tensor_map.position])
        for table in frame.tables:
            table.set(frame.storage, values, stream)
        if self.is_replayed:
            self.replay(frame, stream)
        else:
            self.enqueue(frame, stream)

    def again(self, values, stream):
        """`execute` of a plan without tables, with a tuple that may be the very one that was given last: then nothing is packed."""
        frame = self.frame()
        if frame.addresses is not values:
            self.execute(values, stream)
            frame.addresses = values
        elif self.is_replayed:
            self.replay(frame, stream)
        else:
            self.enqueue(frame, stream)

    def repeat(self, addresses, numbers, stream):
        """`execute` for a plan without a workspace: with the addresses, a tuple, and the numbers. Where the very tuple was given last, the
        numbers alone are packed."""
        frame = self.frame()
        if frame.addresses is not addresses or self.is_replayed:
            self.execute((*addresses, 0, *numbers), stream)
            frame.addresses = addresses
            return
        self.pack_numbers(frame.storage, 8 * self.pointers, *numbers)
        for table in frame.tables:
            table.renew(frame.storage, stream)
        self.enqueue(frame, stream)

    def enqueue(self, frame, stream):
        """Launch what is in the frame, kernel by kernel."""
        if stream != frame.stream:
            frame.set_stream(stream)
        launch = raw.cuLaunchKernelEx
        for call in frame.calls:
            status = launch(*call)
            if status:
                self._failed(status, call)

    def replay(self, frame, stream):
        """Launch what is in the frame, as a graph where it came often."""
        replays = frame.replays
        if replays.rest:
            replays.rest -= 1
        elif replays.run(self, frame, stream):
            return
        self.enqueue(frame, stream)

    def _failed(self, status, call):
        # A thread that never used CUDA has no current context, and one that last used another device has the wrong one.
        if status in (raw.CUDA_ERROR_INVALID_CONTEXT, raw.CUDA_ERROR_INVALID_HANDLE):
            with on_device(self.index):
                status = raw.cuLaunchKernelEx(*call)
        if status:
            try:
                failed(status)
            except CudaError as error:
                raise CudaError(f"launch failed on device {self.index}: {error}") from None


class HostExecutable:
    """A plan whose values are NumPy views in storage dtype instead of addresses."""

    def __init__(self, launches, parameters, index):
        self.launches, self.parameters, self.index = tuple(launches), tuple(p for p in parameters if p[1] != "null"), index
        self.order = _positions(self.launches, parameters)
        self.absent = {name for name, kind in parameters if kind == "null"}

    def value(self, a, values):
        """What an argument is in a call with these values; None is a null pointer."""
        if not a.is_dynamic:
            return a.value
        return None if a.value in self.absent else values[self.order[a.value]]


class SimulatedExecutable(HostExecutable):
    """The same plan in the simulator. `title` says of a program's own call what it is, so that a long one is remarked on."""

    def __init__(self, launches, parameters, index, title=None):
        super().__init__(launches, parameters, index)
        self.title = title

    def execute(self, values, stream, **how):
        """Run every launch to its end; `how` is for `Kernel.simulate`. TypeError of values that a GPU would not take."""
        if len(values) != len(self.parameters):
            raise TypeError(f"{len(values)} values of a plan with {len(self.parameters)}: {', '.join(name for name, _ in self.parameters)}")
        started = time.perf_counter()
        for launch in self.launches:
            arguments = [self._argument(a, values) for a in launch.arguments]
            launch.kernel.simulate(launch.grid, launch.block, arguments, shared=launch.shared, cluster=launch.cluster,
                                   cooperative=launch.cooperative, **how)
        if self.title is not None:
            remark(self.title, time.perf_counter() - started)

    def _argument(self, a, values):
        import numpy as np

        from ..device.sim import Map, Pointer
        from ..device.sim.scalars import as_parameter
        if isinstance(a.spec, Table):
            return a.spec.simulated([values[self.order[name]] for name in a.spec.names])
        if a.members:
            return a.type(*[self._argument(member, values) for member in a.members])
        value = self.value(a, values)
        if a.type == "tensormap":
            return Map(_shifted(value, a.offset), a.spec)
        if a.is_pointer:
            dtype = np.dtype(a.type[:-1])
            return Pointer(np.empty(0, dtype)) if value is None else _shifted(value, a.offset).view(dtype)
        return as_parameter(a.type, value)


def _shifted(array, offset):
    """A simulated pointer to `offset` bytes after an array's first one."""
    import numpy as np

    from ..device.sim import Pointer
    pointer = Pointer(array)
    return pointer.view(np.dtype(np.uint8)) + offset if offset else pointer
