"""DNNKERN_CHECK=unwritten: does uninitialised memory reach a result?

A call runs three times on the same operands. Memory that it must write before it reads, which is outputs and workspace and, in the
simulator, shared memory and local arrays, starts with different values each time. A result that differs depends on it. Values that are
loaded past the end of something but not used are not reported.

Then the call runs again with different values in one memory at a time, and in the simulator at one source line at a time. The message
names the one whose change suffices to change the first wrong element.
"""
import numpy as np

from ..algorithm import Note
from ..device import HOST_MEMORY, SIMULATED
from . import driver
from .check import CheckFailed, download, repro, wait
from .device import on_device

BYTES = 0x7B, 0xFB, 0x00
"""Bytes of unwritten memory, by run: large numbers in every format (1.3e36, as float16 61280), large negative ones, since a maximum or
minimum may mask one of them, and zeros, since squares, flags and infinities may mask both."""
MOST = 30  # source lines tried one by one


def check_unwritten(call, values, stream):
    """Run a call (a `checked.Checked`) repeatedly; CheckFailed if a result depends on former contents of memory."""
    with on_device(call.bound.device):
        _Runs(call, values, stream).check()


class _Written:
    """An array that the call writes. `fresh`: it holds nothing yet; `left` is the index of elements of it that the call does not write."""

    def __init__(self, name, tensor, value, stream, fresh, left):
        self.name, self.tensor, self.value, self.stream, self.fresh, self.left = name, tensor, value, stream, fresh, left
        self.word = np.dtype(f"u{tensor.itemsize}")
        self.before = None if fresh and left is None else self.bits()

    def bits(self):
        """Its elements now, as unsigned integers."""
        stored = self.value if HOST_MEMORY else download(self.value, self.tensor)[1]
        return np.array(stored.view(self.word))

    def put(self, bits, index=...):
        """Replace all elements, or those of an index."""
        if HOST_MEMORY:
            self.value.view(self.word)[index] = bits
            return
        raw, stored = download(self.value, self.tensor)
        stored.view(self.word)[index] = bits
        if raw.size:
            driver.cuMemcpyHtoDAsync(self.value + self.tensor.extent[0], raw.ctypes.data, raw.size, self.stream)
            wait(self.stream)

    def pattern(self, byte):
        """An element that consists of such bytes."""
        return int.from_bytes(bytes([byte]) * self.tensor.itemsize, "little")

    def title(self, at):
        """Words for an element."""
        return f"{self.name}[{', '.join(map(str, at))}]" if at else self.name


class _Runs:
    """Runs of one call, each from the same operands."""

    def __init__(self, call, values, stream):
        self.bound, self.function, self.values, self.stream = call.bound, call.operation.function, values, stream
        wait(stream)
        operation, bound = call.operation, call.bound
        left = operation.leaves(bound.problem, dict(zip(operation.operands, call.operands))) if operation.leaves else {}
        self.written = [_Written(name, bound.tensors[k], values[k], stream, fresh, left.get(name))
                        for k, name, fresh in operation.written_arrays(bound, call.addresses)]
        self.workspace = values[len(bound.tensors)]

    def check(self):
        """The first runs, which decide."""
        runs = [self.run(byte) for byte in BYTES]
        exact = SIMULATED or Note.NONDETERMINISTIC not in self.bound.algorithm.notes
        for array, *each in zip(self.written, *runs):
            kept = np.logical_and.reduce([bits == array.pattern(byte) for bits, byte in zip(each, BYTES)])
            differ = (each[0] != each[1]) | (each[0] != each[2]) if exact else kept
            if array.left is not None:
                differ[array.left] = False
                array.put(array.before[array.left], array.left)
            if differ.any():
                at = tuple(int(i) for i in np.argwhere(differ)[0])
                other = BYTES[1] if each[0][at] != each[1][at] else BYTES[2]
                raise CheckFailed(f"{self.function}: {self.found(array, at, int(differ.sum()), each[0][at], other, kept[at])}\n"
                                  f"  {repro(self.bound.problem, self.bound.algorithm)}")

    def run(self, usual=BYTES[0], changed=None, other=None, fresh=None):
        """Bits of the written arrays after a run where unwritten memory holds the bytes `usual`, or `other` in the memory `changed`."""
        for array in self.written:
            array.put(array.pattern(other if changed == array.name else usual) if array.fresh else array.before)
        self.fill_workspace(other if changed == "workspace" else usual)
        if SIMULATED:
            self.simulate(usual, changed, other, fresh)
        else:
            self.bound.executable.execute(self.values, self.stream)
            wait(self.stream)
        return [array.bits() for array in self.written]

    def fill_workspace(self, byte):
        if not self.bound.workspace:
            return
        if HOST_MEMORY:
            self.workspace.reshape(-1).view(np.uint8)[...] = byte
        else:
            driver.cuMemsetD8Async(self.workspace, byte, self.bound.workspace, self.stream)

    def simulate(self, usual, changed, other, fresh):
        from ..device.sim.errors import annotate
        from ..device.sim.fresh import Fresh
        try:
            self.bound.executable.execute(self.values, self.stream, fresh=fresh or Fresh(usual, other, changed))
        except Exception as error:
            annotate(error, f"in a run of DNNKERN_CHECK=unwritten, where memory that nothing has written holds the bytes {usual:#04x}")
            raise

    # ---- where it comes from

    def found(self, array, at, count, bits, other, kept):
        """Words for the first of `count` wrong elements of an array: after the first run it had these `bits`, which it has not where
        unwritten memory consists of the bytes `other`; or it always is what it was (`kept`)."""
        k = self.written.index(array)

        def changes(changed, fresh=None):
            try:
                return self.run(changed=changed, other=other, fresh=fresh)[k][at] != bits
            except Exception:  # what such a value does is no news
                return False

        of = f"{count} of {array.tensor.size} elements of {array.name} ({array.tensor})"
        fresh = [a.name for a in self.written if a.fresh]
        if kept and array.name in fresh and changes(array.name):
            return f"{of} {'is' if count == 1 else 'are'} written by no kernel of {self.bound.algorithm}, the first {array.title(at)}"
        memories = [*fresh, *["workspace"] * bool(self.bound.workspace), *["shared", "local"] * SIMULATED]
        memory = next(filter(changes, memories), None)
        line = self.line(memory, other, changes) if SIMULATED and memory else None
        words = {"shared": "shared memory", "local": "a local array", "workspace": "the workspace", None: "memory"}
        where = line or words.get(memory, f"{memory} itself" if memory == array.name else memory)
        return (f"{of} depend{'s' * (count == 1)} on what {self.bound.algorithm} has not written, the first {array.title(at)}:\n"
                f"  {where}")

    def line(self, memory, other, changes):
        """Describe where `memory` is read before it is written; None if no thread does."""
        from ..device.sim.config import config
        from ..device.sim.fresh import Fresh
        if not config.lines:
            return None
        looks = [memory] if memory in ("shared", "local") else [self.range_of(memory)]
        every = Fresh(BYTES[0], looks=looks)
        self.run(fresh=every)
        lines = list(every.found.items())
        for where, words in lines[:MOST]:
            if len(lines) == 1 or changes(None, Fresh(BYTES[0], other, where, looks)):
                return f"{words} at {where}"
        return "\n  ".join(f"{words} at {where}, perhaps" for where, words in lines[:3]) or None

    def range_of(self, memory):
        """(address, bytes) of the workspace or of an output, gaps included."""
        if memory == "workspace":
            return self.workspace.__array_interface__["data"][0], self.workspace.nbytes
        array = next(a for a in self.written if a.name == memory)
        low, high = array.tensor.extent
        return array.value.__array_interface__["data"][0] + low, high - low
