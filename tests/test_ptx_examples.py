"""What the products of examples/ compile to. No GPU needed."""
import importlib.util
import pathlib
import types

import pytest
from sass import machine_code

from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

SOURCE = pathlib.Path(__file__).resolve().parent.parent / "examples" / "tensor_core_gemm.py"


def test_tensor_core_gemm():
    spec = importlib.util.spec_from_file_location("tensor_core_gemm", SOURCE)
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    got = machine_code(example.gemm, ("tensormap",) * 3 + ("int32",))
    assert got.registers == 65536 // 384 // 8 * 8, "the most that a launch of 384 threads gives; setmaxnreg moves them"
    assert got.count("USETMAXREG") == 2 and got.count("STSM") == 16
    assert set(got.opcodes("HGMMA", "UTMALDG", "UTMASTG")) == {"HGMMA.64x256x16.F32.BF16", "UTMALDG.2D", "UTMASTG.2D"}
    assert got.opcodes("MEMBAR") == ["MEMBAR.ALL.CTA"], "the fence of all memory waits for the device"


def test_gemm_steps():
    """Accumulators stay in registers, and each step has the instructions that its text promises."""
    text = (SOURCE.parent / "gemm_steps.py").read_text()
    steps = types.ModuleType("gemm_steps")
    definitions = text[:text.index("NAMES = []")]  # what follows runs them
    exec(compile(definitions, str(SOURCE.parent / "gemm_steps.py"), "exec"), steps.__dict__)
    operand = {"sm_80+": "uint16*", "sm_90a": "tensormap"}
    got = {kernel.__name__: machine_code(kernel, (operand[arch], operand[arch], "uint16*", *("int32",) * 3))
           for kernel, _, _, _, arch, _ in steps.STEPS}
    assert list(got) == ["naive", "tiles", "registers", "pipelined", "tensor_cores", "warpgroups"]
    for name, code in got.items():
        assert not code.count("LDL") and not code.count("STL"), f"{name} spills, or indexes a local array by a variable"
    assert not got["naive"].count("LDS") and got["tiles"].count("LDS")
    assert {*got["registers"].opcodes("LDG", "LDS")} == {"LDG.E.128", "LDS.128"} and got["registers"].count("FFMA") == 64
    assert got["pipelined"].count("FFMA") == 512 and {*got["pipelined"].opcodes("LDS")} >= {"LDS.128"}
    assert got["pipelined"].count("LDGSTS") == got["tensor_cores"].count("LDGSTS") == 3 * 4, "two stages ahead of the loop, one in it"
    assert {*got["tensor_cores"].opcodes("HMMA")} == {"HMMA.16816.F32.BF16"} and got["tensor_cores"].count("HMMA") == 2 * 16
    assert {*got["warpgroups"].opcodes("HGMMA")} == {"HGMMA.64x256x16.F32.BF16"} and got["warpgroups"].count("USETMAXREG") == 2
    assert not got["warpgroups"].opcodes("MEMBAR")
