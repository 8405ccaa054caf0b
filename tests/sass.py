"""What a kernel compiles to, down to machine code: for the tests that need no GPU, only the linker and nvdisasm."""
import functools
import hashlib
import importlib.util
import pathlib
import re
import struct
import subprocess
import tempfile
from dataclasses import dataclass

import kept
import pytest
from parts import part

# PTX of `div` and `rem` of integers, whose reciprocal alone is rounded up; of float32, whose operands are checked; of float64.
_DIVISION = r"U?I2F\S*\.RP\b|U?I2F\.U16\b|FCHK|MUFU\.RCP64H"
_DOUBLE = r"D(ADD|MUL|FMA|SETP|MNMX|MMA)\b|\S*(\.F64|64H)\b"
# What ptxas says if products of a warpgroup wait for each other, or registers do not move.
_SLOW = r"Performance Loss|C7508|C7514|serialized|ignored"
_PREDICATE = re.compile(r"@!?U?P\w+ +")
# Of nvdisasm's lines: an instruction, or a label; and of both the names that another compilation may give otherwise.
_LINE = re.compile(r"^ +/\*[0-9a-f]{4,}\*/ +([^;]*\S) *;|^((?:\.L_|\$|_Z)[^:\s]*:)$", re.MULTILINE)
_NAME = re.compile(r"\.L_\w+|\$\w[\w$]*|_Z\w[\w$]*")
FORMAT = 1  # of what is kept: another one where the lines are written in another way


def tool(name):
    """Path of a program of the toolkit's wheels; the test is skipped where it is not installed."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations if spec else ():
        for path in pathlib.Path(root).glob(f"*/bin/{name}*"):
            return path
    pytest.skip(f"{name} is not installed")


@dataclass(frozen=True)
class MachineCode:
    """A kernel's machine code for one architecture.

    Attributes
    ----------
    report : str
        What the linker's ptxas says.
    listing : tuple of str
        The instructions with their predicates, and labels: ".L2:". Without addresses; names are numbered as they come, so that the same
        machine code has the same listing whatever its functions are called.
    data : tuple of str
        Constants and initialised arrays: where they are, their bytes and a hash.
    """
    report: str
    listing: tuple
    data: tuple

    @functools.cached_property
    def lines(self):
        """The instructions, without predicates."""
        return tuple(_PREDICATE.sub("", line, 1) if line[0] == "@" else line for line in self.listing if line[-1] != ":")

    def opcodes(self, *beginnings):
        """Names, sorted, of the instructions whose names begin so."""
        return sorted(name for line in self.lines if (name := line.split()[0]).startswith(beginnings))

    def count(self, beginning):
        """How many instructions have names that begin so."""
        return len(self.opcodes(beginning))

    def reported(self, pattern):
        """The number that the linker's ptxas reports where `pattern` has its group; 0 if it says nothing of it."""
        found = re.search(pattern, self.report)
        return int(found[1]) if found else 0

    @property
    def registers(self):
        return self.reported(r"Used (\d+) registers")

    @property
    def stack(self):
        """Bytes of local memory a thread, spilled registers aside."""
        return self.reported(r"(\d+) bytes stack frame")

    @property
    def spilled(self):
        """Bytes of registers that are stored to local memory and loaded again."""
        return self.reported(r"(\d+) bytes spill stores") + self.reported(r"(\d+) bytes spill loads")

    @property
    def shared(self):
        """Bytes of static shared memory."""
        return self.reported(r"(\d+) bytes smem")

    @property
    def doubles(self):
        """The instructions on float64: arithmetic, comparisons, conversions, atomics. Those that only copy eight bytes have no type."""
        return [line for line in self.lines if re.match(_DOUBLE, line)]

    @property
    def divisions(self):
        """One instruction or more of each division and remainder, of integers and of IEEE floats; `div.approx` is a multiplication."""
        return [line for line in self.lines if re.match(_DIVISION, line)]

    @property
    def calls(self):
        """Calls of functions; not those of the slow paths that ptxas has for divisions and square roots, which have a label or its name."""
        return [line for line in self.lines if line.startswith("CALL") and not re.search(r"`\((\$__|\.L)", line)]

    @property
    def waits_for_device(self):
        """Fences of all memory, whatever they were written for: they wait for the whole device."""
        return self.opcodes("MEMBAR.ALL.GPU", "MEMBAR.SC.GPU", "MEMBAR.ALL.SYS", "MEMBAR.SC.SYS")

    @property
    def moved_registers(self):
        """Registers a thread that `setmaxnreg` leaves to the producer, and that it gives the consumers."""
        kinds = "DEALLOC", "TRY_ALLOC"
        return tuple(int(line.rsplit(" ", 1)[1], 16) for kind in kinds for line in self.lines if line.startswith(f"USETMAXREG.{kind}"))

    @property
    def slow(self):
        """Lines of the report that warn of serialised products or of registers that do not move."""
        return [line for line in self.report.splitlines() if re.search(_SLOW, line)]


def assembled(kernel, signature, arch):
    """`MachineCode` of a kernel, of which nothing is asserted."""
    def make():
        ltoir, _ = part("compile_ltoir")(kernel, signature, arch)
        code, report = part("link")(ltoir, arch)
        return report, disassembled(code), data(code)
    report, *lines = kept.json_of(f"assembled-{FORMAT}/{version(tool('nvdisasm'))}/{part('cache_key')(kernel, signature, arch)}", make)
    return MachineCode(report, *map(tuple, lines))


def disassembled(cubin):
    """`MachineCode.listing` of a cubin.

    It is kept under the code itself: sources that were moved compile to the same, and nvdisasm takes a third of a second to begin.
    """
    def make():
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(cubin)
            file.flush()
            # The analysis of data flow (-ndf: without) is a quarter of the time, and adds no more than comments.
            text = subprocess.run([disassembler, "-c", "-ndf", file.name], capture_output=True, text=True, check=True).stdout
        return renamed(instruction or label for instruction, label in _LINE.findall(text))
    disassembler = tool("nvdisasm")
    code = hashlib.sha256(cubin[0x30:0x34])  # the header's flags: which architecture
    for name, content in sections(cubin):
        if name.startswith((".text", ".rela.text", ".rel.text")):
            code.update(content)
    return kept.json_of(f"listing-{FORMAT}/{version(disassembler)}/{code.hexdigest()}", make)


def renamed(lines):
    """Lines of nvdisasm with names that say what a thing is and the how manieth: ".L0" a label, "F0" a function. ptxas's own functions, for
    divisions say, keep theirs without the number that it has put before."""
    known, count = {}, {}

    def name(found):
        if found[0] not in known:
            kind = ".L" if found[0].startswith(".L_") else "F" if found[0].startswith("_Z") else re.sub(r".*(?=\$__)", "", found[0])
            known[found[0]] = f"{kind}{count.get(kind, 0)}" if kind in (".L", "F") else kind
            count[kind] = count.get(kind, 0) + 1
        return known[found[0]]
    return [_NAME.sub(name, line) for line in lines]


def data(cubin):
    """`MachineCode.data` of a cubin."""
    return [f"{'.'.join(name.split('.')[:3])}: {len(content)} bytes {hashlib.sha256(content).hexdigest()[:16]}"
            for name, content in sections(cubin) if name.startswith((".nv.constant", ".nv.global"))]


def sections(cubin):
    """(name, content) of the sections of an ELF file of 64 bits; of one that has no content in the file, nothing."""
    table, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3a)
    heads = [struct.unpack_from("<IIQQQQ", cubin, table + k * size) for k in range(count)]  # name, type, flags, address, offset, bytes
    for name, kind, _, _, offset, length in heads:
        name += heads[names][4]
        yield cubin[name:cubin.index(b"\0", name)].decode(), b"" if kind == 8 else cubin[offset:offset + length]


@functools.cache
def version(program):
    """Of a program of the toolkit: "V13.5.37"."""
    return re.search(r"\bV[\d.]+", subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout)[0]


def machine_code(kernel, signature, arch="sm_90a"):
    """`MachineCode` of a kernel; that it keeps everything in registers and calls nothing is asserted."""
    code = assembled(kernel, signature, arch)
    assert (code.stack, code.spilled) == (0, 0) and not code.slow, code.report
    assert not code.opcodes("LDL", "STL", "CALL")
    return code


def ptx(kernel, signature, arch="sm_90a"):
    """A kernel's instructions in PTX, its name replaced by "kernel"."""
    from dnnkern.device._numba_compile import compile_ptx

    def make():
        text, entry = compile_ptx(kernel, signature, arch)
        return text[text.index("{", text.index(".entry")):].replace(entry, "kernel")
    return kept.json_of(f"ptx/{part('cache_key')(kernel, signature, arch)}", make)
