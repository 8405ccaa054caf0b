"""A plan whose kernels write stamps of the clock (`device._stamps`): compiled, run on a GPU, and read.

The linker makes PTX of a kernel's LTO-IR, the same that it makes machine code of. With stamps in it the toolkit's ptxas makes machine code
of that, or the driver where no ptxas is found. Not the linker: it compiles PTX as one of several units (see `compile`).
"""
import ctypes
import functools
import math
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass

import numpy as np

from ..device._events import events
from ..device._parameters import kernel_name
from ..device._stamps import HEAD, RECORD, STAMPS, stamped
from . import driver, raw
from .compile import Binary
from .device import on_device
from .launch import Executable
from .timeline import ISSUES, RUNS, Lane, began, slices_of

BLOCKS = 4           # of each launch
MEMORY = 256 << 20   # bytes of each launch's records


def ptx_of(kernel, signature, arch) -> tuple:
    """The optimised PTX of a kernel, text and entry name. Needs no GPU."""
    from cuda.core import Linker, LinkerOptions, ObjectCode

    from ..device._numba_compile import compile_ltoir
    ltoir, entry = compile_ltoir(kernel, signature, arch)
    options = LinkerOptions(arch=arch, link_time_optimization=True, ptx=True)
    linker = Linker(ObjectCode.from_ltoir(ltoir), options=options)
    return bytes(linker.link("ptx").code).rstrip(b"\0").decode(), entry


@functools.cache
def assembler() -> str | None:
    """Path of ptxas: of the toolkit's wheels, of a toolkit that CUDA_HOME or the path names, or of the usual folder."""
    from cuda import pathfinder
    find = getattr(pathfinder, "find_nvidia_binary_utility", None)  # of pathfinder 1.3 and later
    usual = "/usr/local/cuda/bin/ptxas"
    return find and find("ptxas") or shutil.which("ptxas") or (usual if os.path.exists(usual) else None)


def assemble(text, arch) -> tuple:
    """Machine code of PTX, and what ptxas says of it; the text itself where there is no ptxas: the driver compiles it when it is loaded.
    RuntimeError, in its words, where ptxas refuses it."""
    program = assembler()
    if program is None:
        return text.encode() + b"\0", ""
    with tempfile.TemporaryDirectory() as folder:
        source, made = os.path.join(folder, "stamped.ptx"), os.path.join(folder, "stamped.cubin")
        with open(source, "w", encoding="utf-8") as file:
            file.write(text)
        done = subprocess.run([program, f"-arch={arch}", "-v", source, "-o", made], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr.strip() or done.stdout.strip()}")
        with open(made, "rb") as file:
            return file.read(), done.stdout + done.stderr


def _number(pattern, text):
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


@dataclass
class Stamps:
    """The stamps of one launch.

    Attributes
    ----------
    name : str
        The kernel's.
    constant : str
        Of the constant that has the address of the memory.
    sites : list of Site
    lanes, capacity : int
        Threads that may stamp, and records of each.
    plain, binary : Binary
        The kernel without stamps, and with them.
    memory : int
        Its address.
    """
    name: str
    constant: str
    sites: list
    lanes: int
    capacity: int
    plain: Binary
    binary: Binary
    memory: int = 0

    @property
    def nbytes(self):
        return HEAD + self.lanes * self.capacity * RECORD


class StampedExecutable(Executable):
    """The same plan as an `Executable`; `read` has what its last run stamped. A context manager: memory is freed at its end.

    Attributes
    ----------
    stamps : list of Stamps
        Of each launch.
    """

    def __init__(self, launches, parameters, index):
        self.stamps = []
        super().__init__(launches, parameters, index)
        with on_device(index):
            for function, stamps in zip(self.functions, self.stamps):
                stamps.memory = driver.cuMemAlloc(stamps.nbytes)
                address = ctypes.c_uint64(stamps.memory)
                constant = driver.cuLibraryGetGlobal(None, function.library, stamps.constant.encode())
                driver.cuMemcpyHtoD(constant, ctypes.addressof(address), 8)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        driver.cuCtxSynchronize()
        for stamps in self.stamps:
            raw.cuMemFree(stamps.memory)

    def compiled(self, launch, arch):
        """With stamps. Each launch has a module of its own, with its own memory, also where it has the kernel of another."""
        lanes = min(BLOCKS, math.prod(launch.grid)) * math.prod(launch.block)
        capacity, constant = MEMORY // (lanes * RECORD), f"{STAMPS}_{len(self.stamps)}"
        plain = super().compiled(launch, arch)
        text, entry = ptx_of(launch.kernel, launch.signature, arch)
        text, sites = stamped(text, BLOCKS, capacity, constant, [a.value for a in launch.parameters if a.type == "tensormap"])
        code, log = assemble(text, arch)
        binary = Binary(code, entry, arch, _number(r"Used (\d+) registers", log), plain.shared,
                        _number(r"(\d+) bytes (?:cumulative )?stack", log))
        self.stamps.append(Stamps(kernel_name(launch.kernel), constant, sites, lanes, capacity, plain, binary))
        return binary

    def clear(self):
        """Forget what was stamped."""
        for stamps in self.stamps:
            driver.cuMemsetD8(stamps.memory, 0, HEAD)
        driver.cuCtxSynchronize()

    def read(self) -> list:
        """The `Lane`s of each launch that has ended."""
        driver.cuCtxSynchronize()
        return [self._lanes(launch, stamps) for launch, stamps in zip(self.launches, self.stamps)]

    def _lanes(self, launch, stamps):
        threads, found = math.prod(launch.block), []
        head = _read(stamps.memory, (stamps.lanes, 2))
        for number_of_lane in head[:, 0].nonzero()[0]:
            wanted, sm = map(int, head[number_of_lane])
            kept = min(wanted, stamps.capacity)
            records = _read(stamps.memory + HEAD + int(number_of_lane) * stamps.capacity * RECORD, (kept, RECORD // 4))
            block, thread = divmod(int(number_of_lane), threads)
            found.append(Lane(block, thread, sm, records.tolist(), wanted - kept))
        return found


def _read(address, shape):
    out = np.empty(shape, np.uint32)
    driver.cuMemcpyDtoH(out.ctypes.data, address, out.nbytes)
    return out


def events_of(executable, device) -> tuple:
    """(fields of the command's document, events, what else its file says) of a run that has ended."""
    found, blocks, kernels, read = [], {}, [], executable.read()
    origin = min(map(began, read))
    for number, (launch, stamps, lanes) in enumerate(zip(executable.launches, executable.stamps, read)):
        slices, sms = slices_of(lanes, stamps.sites, device.clock_hz, origin)
        for block, sm in sorted(sms.items()):
            index = np.unravel_index(block, launch.grid[::-1])[::-1]
            blocks[number, block] = f"{stamps.name}, block {tuple(map(int, index))}, multiprocessor {sm}"
        found += [((number, block), track, begin / 1e3, end / 1e3, text, details) for block, track, begin, end, text, details in slices]
        kernels.append({"kernel": stamps.name, "blocks": math.prod(launch.grid), "registers": stamps.plain.registers,
                        "registers_with_stamps": stamps.binary.registers, "spilled_bytes": stamps.binary.stack,
                        "dropped": sum(lane.dropped for lane in lanes)})
    waited = sum(1e3 * (end - begin) for _, (kind, _), begin, end, text, _ in found if kind == "thread" and text not in (RUNS, *ISSUES))
    told = {"blocks": len(blocks), "slices": len(found), "waited_ns": waited, "dropped": sum(kernel["dropped"] for kernel in kernels)}
    return told, events(blocks, found), {"kernels": kernels}
