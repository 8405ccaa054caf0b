"""Operands for measurements: several random sets of a problem's tensors in device memory, together larger than the L2.

And the check that an algorithm's result on them agrees with the naive one's.
"""
import functools
from dataclasses import dataclass

import numpy as np

from ..device import HOST_MEMORY
from . import driver, raw
from .arrays import kind_of
from .compare import largest_difference, largest_difference_on_host
from .dtypes import STORAGE, numpy_dtype
from .tensor import Tensor

MEMORY = 4 << 30  # bytes that the sets may take together
_MOST_SETS = 1024
_PATTERN = 4_194_301  # elements; a prime, so that no two rows of a matrix are the same
_STEP = 999_983

# Largest difference from the naive result that passes, relative to the largest magnitude in it.
TOLERANCE = {"float64": 1e-10, "float32": 1e-4, "float16": 1e-2, "bfloat16": 3e-2, "float8_e4m3fn": 0.2, "float8_e5m2": 0.4}
USUAL = {"eps": 1e-5, "momentum": 0.1, "seed": 20, "offset": 0, "threshold": 1 << 31, "factor": 2.0, "lr": 1e-3,
         "lr / (1 - beta1**step)": 1e-3, "beta1": 0.9, "beta2": 0.999, "gain": 0.1, "gain1": 0.1, "gain2": 1e-3, "kept": 0.9,
         "weight_decay": 1e-2, "lr * weight_decay": 1e-5}
LOOSE = 1e-2  # where the problem lets its inputs be rounded


@dataclass(frozen=True)
class Slot:
    """A tensor in memory: a block, and where in it element 0 is, in bytes."""
    tensor: Tensor
    block: object
    offset: int

    @property
    def start(self):
        """Offset of the first byte that belongs to the tensor."""
        return self.offset + self.tensor.extent[0]

    @property
    def nbytes(self):
        """Bytes from the first to the last that belong to the tensor, gaps included."""
        low, high = self.tensor.extent
        return high - low


class _DeviceMemory:
    """Blocks are addresses."""

    def __init__(self):
        self.blocks = []

    def allocate(self, nbytes):
        self.blocks.append(driver.cuMemAlloc(max(nbytes, 256)))
        return self.blocks[-1]

    def close(self):
        raw.cuCtxSynchronize()
        for block in self.blocks:
            raw.cuMemFree(block)
        self.blocks.clear()

    def write(self, block, offset, array):
        array = np.ascontiguousarray(array)
        driver.cuMemcpyHtoD(block + offset, array.ctypes.data, array.nbytes)

    def read(self, block, offset, nbytes):
        out = np.empty(nbytes, np.uint8)
        driver.cuMemcpyDtoH(out.ctypes.data, block + offset, nbytes)
        return out

    def copy(self, block, offset, source, source_offset, nbytes):
        driver.cuMemcpyDtoDAsync(block + offset, source + source_offset, nbytes, 0)

    def fill(self, block, offset, byte, nbytes):
        driver.cuMemsetD8Async(block + offset, byte, nbytes, 0)

    def settle(self):
        """Wait for copies and fills: measurements run on another stream."""
        driver.cuCtxSynchronize()

    def argument(self, slot):
        """What `Executable.execute` takes for the slot."""
        return slot.block + slot.offset


class _HostMemory:
    """Blocks are byte arrays, for the simulator."""

    def allocate(self, nbytes):
        raw = np.zeros(nbytes + 16, np.uint8)
        skip = -raw.ctypes.data % 16
        return raw[skip:skip + nbytes]

    def close(self):
        pass

    def write(self, block, offset, array):
        data = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        block[offset:offset + data.size] = data

    def read(self, block, offset, nbytes):
        return block[offset:offset + nbytes].copy()

    def copy(self, block, offset, source, source_offset, nbytes):
        block[offset:offset + nbytes] = source[source_offset:source_offset + nbytes]

    def fill(self, block, offset, byte, nbytes):
        block[offset:offset + nbytes] = byte

    def settle(self):
        pass

    def argument(self, slot):
        t = slot.tensor
        return np.ndarray(t.shape, STORAGE[t.dtype], slot.block, slot.offset, tuple(s * t.itemsize for s in t.strides))


def sets_for(size, moved, l2_bytes, memory):
    """How many sets of `size` bytes have three times the L2 of bytes that a call moves, which of a table may be a few rows; as many as the
    memory holds, one at least."""
    wanted = min(-(-3 * l2_bytes // max(min(moved, size), 1)), _MOST_SETS)
    return max(1, min(wanted, memory // max(size, 1)))


class Operands:
    """Sets of operands of one problem. A context manager; memory is freed at its end.

    Parameters
    ----------
    operation : dnnkern.host.front.Operation
        The problem's attributes named by `operation.operands` are the tensors of its operands.
    problem : problem
    device : Device
        Whose context is current.
    given : sequence of arrays, optional
        Values for the operands, in the operation's order, copied into every set; default: random ones, or what the problem's
        `operand_values(name)` says where it has one and it is not None.
    memory : int
        Bytes the sets may take; there is one set at least.
    """

    def __init__(self, operation, problem, device, given=None, memory=MEMORY):
        operation = operation.of(problem)
        self.operation, self.problem, self.device = operation, problem, device
        self.memory = _HostMemory() if HOST_MEMORY else _DeviceMemory()
        self.tensors = {name: getattr(problem, name) for name in operation.operands}
        self.outputs = dict(zip(getattr(problem, "output_names", None) or operation.outputs, problem.outputs))
        in_place = getattr(problem, "in_place", False)  # True: all that may be; else their names
        self.aliased = {name for name in operation.in_place
                        if in_place and (in_place is True or name in in_place) and self.tensors[name] is not None}
        updated = {name: self.tensors[name] for name in operation.updates if self.tensors[name] is not None}
        self.results = {**self.outputs, **updated}  # what a run writes
        self._workspace = self._reference = None
        if given is not None:
            given = (*given, *(None,) * (len(self.tensors) - len(given)))
            self._check_given(given)
        fresh = [t for name, t in (*self.tensors.items(), *self.outputs.items()) if t is not None and name not in self.aliased]
        size = sum(_room(t) for t in fresh)
        count = 1 if HOST_MEMORY else sets_for(size, problem.bytes, device.l2_bytes, memory)
        try:
            block = None if HOST_MEMORY else self.memory.allocate(count * size)
            self.sets = [self._make_set(block, k * size) for k in range(count)]
            self._fill(given)
            self._saved = {name: self._copy_of(self.sets[0][name]) for name in (*self.aliased, *updated)}
            self.memory.settle()
        except BaseException:
            self.memory.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.memory.close()

    def __len__(self):
        return len(self.sets)

    # ---- layout and values

    def _check_given(self, given):
        if len(given) != len(self.tensors):
            raise ValueError(f"{self.operation.op}: {len(given)} arrays given; expected {', '.join(self.tensors)} (None for a missing one)")
        for (name, t), x in zip(self.tensors.items(), given):
            have = None if x is None else kind_of(x).tensor(x)
            if (have is None) != (t is None) or have and (have.shape, have.strides, have.dtype) != (t.shape, t.strides, t.dtype):
                raise ValueError(f"{self.operation.op}: {name} is {have}; the problem has {t}")

    def _make_set(self, block, at):
        """{operand or output: Slot}, in a block from byte `at` on."""
        slots = {}
        named = [(n, t) for n, t in (*self.outputs.items(), *self.tensors.items()) if t is not None and n not in self.aliased]
        for name, t in named:
            if HOST_MEMORY:
                block, at = self.memory.allocate(_room(t)), 0  # an array of its own: an overrun is noticed
            # Element 0 lies at an address with exactly the problem's alignment.
            slots[name] = Slot(t, block, at - t.extent[0] // 256 * 256 + (t.alignment if t.alignment < 16 else 0))
            at += _room(t)
        for name in self.aliased:
            slots[name] = slots[self.operation.outputs[0]]
        return slots

    def _fill(self, given):
        patterns, special = {}, getattr(self.problem, "operand_values", lambda name: None)
        for number, slots in enumerate(self.sets):
            for position, (name, t) in enumerate(self.tensors.items()):
                if t is None or not t.size:
                    continue
                slot = slots[name]
                if given is not None:
                    self._copy_given(slot, given[position])
                    continue
                if (values := special(name)) is not None:
                    self._write(slot, values)
                    continue
                if t.dtype not in patterns:
                    values = _pattern(t.dtype)
                    patterns[t.dtype] = self.memory.allocate(values.nbytes), values.nbytes
                    self.memory.write(patterns[t.dtype][0], 0, values)
                source, length = patterns[t.dtype]
                done, at = 0, (number * len(self.tensors) + position) * _STEP * t.itemsize % length
                while done < slot.nbytes:
                    step = min(length - at, slot.nbytes - done)
                    self.memory.copy(slot.block, slot.start + done, source, at, step)
                    done, at = done + step, 0

    def _write(self, slot, values):
        t = slot.tensor
        low, high = t.extent
        raw = np.zeros(high - low, np.uint8)
        np.ndarray(t.shape, STORAGE[t.dtype], raw, -low, tuple(s * t.itemsize for s in t.strides))[...] = values
        self.memory.write(slot.block, slot.start, raw)

    def _copy_given(self, slot, x):
        if HOST_MEMORY:
            self.memory.argument(slot)[...] = kind_of(x).host_view(x)
        else:
            self.memory.copy(slot.block, slot.start, kind_of(x).describe(x)[1] + slot.tensor.extent[0], 0, slot.nbytes)

    def _copy_of(self, slot):
        block = self.memory.allocate(slot.nbytes)
        self.memory.copy(block, 0, slot.block, slot.start, slot.nbytes)
        return block

    # ---- what executables take

    @functools.cached_property
    def scalars(self):
        """Values of the run-time numbers: the usual ones of `USUAL`; else 1, or 1/2 where the problem says that they are not 1."""
        flags = {"alpha": "scaled"}
        return tuple(USUAL[name] if name in USUAL else 0.5 if getattr(self.problem, flags.get(name, name), False) else 1.0
                     for name in self.operation.scalars)

    def workspace(self, nbytes):
        """A slot of at least `nbytes`, full of NaN when it is new; None for none."""
        if not nbytes:
            return None
        if self._workspace is None or self._workspace.tensor.size < nbytes:
            self._workspace = Slot(Tensor.packed((nbytes,), "uint8"), self.memory.allocate(nbytes), 0)
            self.memory.fill(self._workspace.block, 0, 0xFF, nbytes)
            self.memory.settle()
        return self._workspace

    def values(self, k, workspace_bytes=0):
        """The tuple that `Executable.execute` takes, for set k."""
        scratch = self.workspace(workspace_bytes)
        missing = None if HOST_MEMORY else 0
        slots = [self.sets[k].get(name) for name in (*self.operation.operands, *self.operation.outputs)]
        return (*(missing if s is None else self.memory.argument(s) for s in (*slots, scratch)), *self.scalars)

    def array(self, k, name):
        """An operand or output of set k as an object other frameworks can wrap: NumPy in the simulator, else `__cuda_array_interface__`.

        bfloat16, which that interface lacks, is int16 there, and 8-bit floats are uint8.
        """
        slot = self.sets[k].get(name)
        if slot is None:
            return None
        return self.memory.argument(slot) if HOST_MEMORY else _Interface(slot)

    # ---- the check

    def _prepare(self):
        """Outputs of set 0 hold poison, operands that are overwritten their first values."""
        for name, t in self.outputs.items():
            slot = self.sets[0][name]
            self.memory.fill(slot.block, slot.start, 0xFF if t.dtype.startswith(("float", "bfloat")) else 0x7F, slot.nbytes)
        for name, block in self._saved.items():
            slot = self.sets[0][name]
            self.memory.copy(slot.block, slot.start, block, 0, slot.nbytes)
        self.memory.settle()

    def set_reference(self, run):
        """Remember what `run()` writes for set 0 as the right result. `run` waits for its end."""
        self._prepare()
        run()
        self._reference = {name: self._copy_of(self.sets[0][name]) for name in self.results}
        self.memory.settle()

    def wrong(self, run, tolerance=None, names=None) -> str | None:
        """None if what `run()` writes for set 0 agrees with the reference, else how it differs; `names`: of these outputs alone."""
        self._prepare()
        run()
        for name, t in self.results.items():
            slot = self.sets[0][name]
            if not t.size or names is not None and name not in names:
                continue
            if HOST_MEMORY:
                got, expected = (self.memory.read(block, at, slot.nbytes).view(numpy_dtype(t.dtype))
                                 for block, at in ((slot.block, slot.start), (self._reference[name], 0)))
                worst, scale = largest_difference_on_host(got, expected)
            else:
                worst, scale = largest_difference(slot.block + slot.start, self._reference[name], slot.nbytes // t.itemsize, t.dtype,
                                                  self.device.index)
            bound = self.tolerance(t.dtype) if tolerance is None else tolerance
            if not worst <= bound * scale:
                return f"{name} differs from the naive result by {worst:.3g}, tolerance {bound * scale:.3g}, largest value {scale:.3g}"
        return None

    def tolerance(self, dtype):
        """Largest relative difference from the naive result, for an output of this dtype."""
        bound = TOLERANCE.get(dtype, 0.0)
        loose = LOOSE if getattr(self.problem, "math", None) else getattr(self.problem, "loose", 0.0)
        return max(bound, loose) if bound else bound


class _Interface:
    """A slot as `__cuda_array_interface__`."""

    def __init__(self, slot):
        t = slot.tensor
        self.tensor = t
        face = {"float16": "float16", "bfloat16": "int16", "bool": "bool"}.get(t.dtype, STORAGE[t.dtype])
        strides = tuple(s * t.itemsize for s in t.strides)
        self.__cuda_array_interface__ = {"shape": t.shape, "strides": strides, "version": 3, "stream": None,
                                         "typestr": np.dtype(face).str, "data": (slot.block + slot.offset, False)}


def _room(t):
    """Bytes reserved for a tensor: its extent on both sides of element 0, and a shift of 16, in multiples of 256."""
    low, high = t.extent
    return (-(low // 256) + -(-(high + 16) // 256)) * 256


@functools.cache
def _pattern(dtype):
    """Random values as storage words; normal for floats, small for integers."""
    rng = np.random.default_rng(20)
    count = min(_PATTERN, 65521) if HOST_MEMORY else _PATTERN
    if dtype.startswith(("float", "bfloat")):
        values = rng.standard_normal(count, np.float32) + np.float32(0.1)
    else:
        values = rng.integers(0 if dtype.startswith("u") or dtype == "bool" else -4, 2 if dtype == "bool" else 5, count)
    return values.astype(numpy_dtype(dtype)).view(STORAGE[dtype])
