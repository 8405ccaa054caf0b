"""What the tensor-core product of examples/ compiles to. No GPU needed."""
import importlib.util
import pathlib

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
