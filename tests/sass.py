"""What a kernel compiles to, down to machine code: for the tests that need no GPU, only the linker and nvdisasm."""
import functools
import importlib.util
import pathlib
import re
import subprocess
import tempfile
from dataclasses import dataclass

import kept
import pytest

# PTX of `div` and `rem` of integers, whose reciprocal alone is rounded up; of float32, whose operands are checked; of float64.
_DIVISION = r"U?I2F\S*\.RP\b|U?I2F\.U16\b|FCHK|MUFU\.RCP64H"
_DOUBLE = r"D(ADD|MUL|FMA|SETP|MNMX|MMA)\b|\S*(\.F64|64H)\b"
# What ptxas says if products of a warpgroup wait for each other, or registers do not move.
_SLOW = r"Performance Loss|C7508|C7514|serialized|ignored"


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
    lines : tuple of str
        The instructions, without predicates.
    """
    report: str
    lines: tuple

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
        return [line for line in self.lines if line.startswith("CALL") and not re.search(r"\$__internal_|`\(\.L_x_", line)]

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
    from dnnkern.device._numba_compile import compile_ltoir
    from dnnkern.host.compile import cache_key, link
    disassembler = tool("nvdisasm")

    def make():
        ltoir, _ = compile_ltoir(kernel, signature, arch)
        code, report = link(ltoir, arch)
        with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
            cubin.write(code)
            cubin.flush()
            # The analysis of data flow (-ndf: without) is a quarter of the time, and adds no more than comments.
            text = subprocess.run([disassembler, "-c", "-ndf", cubin.name], capture_output=True, text=True, check=True).stdout
        return report, re.findall(r"/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\w+ +)?([A-Z][^;]*\S) *;", text)
    report, lines = kept.json_of(f"machine-code/{_version(disassembler)}/{cache_key(kernel, signature, arch)}", make)
    return MachineCode(report, tuple(lines))


@functools.cache
def _version(program):
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
    from dnnkern.host.compile import cache_key

    def make():
        text, entry = compile_ptx(kernel, signature, arch)
        return text[text.index("{", text.index(".entry")):].replace(entry, "kernel")
    return kept.json_of(f"ptx/{cache_key(kernel, signature, arch)}", make)
