"""What a kernel compiles to, down to machine code: for the tests that need no GPU, only the linker and nvdisasm."""
import functools
import importlib.util
import pathlib
import re
import subprocess
import tempfile

import pytest


def tool(name):
    """Path of a program of the toolkit's wheels; the test is skipped where it is not installed."""
    spec = importlib.util.find_spec("nvidia")
    for root in spec.submodule_search_locations if spec else ():
        for path in pathlib.Path(root).glob(f"*/bin/{name}*"):
            return path
    pytest.skip(f"{name} is not installed")


class Assembled:
    """A kernel's PTX and machine code for `arch`. That it keeps everything in registers and calls nothing is asserted.

    Attributes
    ----------
    ptx : str
        Its instructions.
    lines : list of str
        The instructions of the machine code, without predicates.
    registers : int
    report : str
        What the linker's ptxas says.
    """

    def __init__(self, kernel, signature, arch, folder):
        from dnnkern.device._numba_compile import Compiled
        from dnnkern.host.compile import link
        compiled, cubin = Compiled(kernel, signature, arch), folder / "kernel.cubin"
        text = compiled.ptx()
        self.ptx = text[text.index("{", text.index(".entry")):].replace(compiled.entry, "kernel")
        code, self.report = link(compiled.ltoir, arch)
        cubin.write_bytes(code)
        assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in self.report, self.report
        assert "Performance Loss" not in self.report, self.report
        self.registers = int(re.search(r"Used (\d+) registers", self.report)[1])
        code = subprocess.run([tool("nvdisasm"), "-c", cubin], capture_output=True, text=True, check=True).stdout
        self.lines = re.findall(r"/\*[0-9a-f]{4,}\*/ +(?:@!?U?P\w+ +)?([A-Z][^;]*\S) *;", code)
        assert ".local" not in self.ptx and "call" not in self.ptx and not self.opcodes("LDL", "STL", "CALL")

    def opcodes(self, *beginnings):
        """Names, sorted, of the instructions whose names begin so."""
        return sorted(name for line in self.lines if (name := line.split()[0]).startswith(beginnings))

    def count(self, beginning):
        """How many instructions have names that begin so."""
        return len(self.opcodes(beginning))


@functools.cache
def assembled(kernel, signature, arch):
    """`Assembled`, once a process: the small launches that many configurations share."""
    with tempfile.TemporaryDirectory() as folder:
        return Assembled(kernel, signature, arch, pathlib.Path(folder))
