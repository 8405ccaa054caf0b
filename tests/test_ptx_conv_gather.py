"""What the gathered convolutions compile to: the instructions meant, in their main loops little beside products and loads."""
import re

import pytest
from sass import machine_code
from test_ptx import device

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from dnnkern.conv._parse import parse_problem  # noqa: E402

FIRST = "64x3x224x224 k64 7x7 s2 p3 bf16 nhwc"


def launch(op, name, words, text, arch="sm_90a"):
    """The first launch of the first configuration whose name contains `text`."""
    problem, target = parse_problem(words.split(), op), device(arch)
    algorithm = next(a for a in dispatch.algorithms(op) if a.name == name)
    config = next(c for c in algorithm.configs(problem, target) if text in str(c))
    return algorithm.build(problem, target, config)[0]


def assembled(launch, arch="sm_90a"):
    code = machine_code(launch.kernel, launch.signature, arch)
    threads, blocks = launch.kernel.targetoptions["launch_bounds"]
    assert -(-code.registers // 8) * 8 * threads * blocks <= 65536, f"{code.registers} registers for {blocks} blocks of {threads} threads"
    assert not code.doubles
    return code


@pytest.mark.parametrize("op", ["conv_fwd", "conv_bwd_data", "conv_bwd_filter"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_exact_products(op, layout):
    """1024 multiply-adds a stage of 128x64x32, copies straight to shared memory, no division."""
    code = assembled(launch(op, "implicit_gemm", f"64x128x28x28 k128 3x3 p1 f32 {layout}", "128x64x32"))
    sums = [k for k, line in enumerate(code.lines) if line.startswith("FFMA")]
    assert len(sums) >= 1024 and code.count("LDGSTS") >= 12
    loop = code.lines[sums[0]:sums[1023] + 1]
    others = sum(not line.startswith(("FFMA", "LDS")) for line in loop)
    assert others <= 320, f"{others} instructions beside multiply-adds and loads of fragments"
    assert not any(line.startswith(("MUFU", "I2F")) for line in loop), "something is divided"


@pytest.mark.parametrize("op", ["conv_fwd", "conv_bwd_data", "conv_bwd_filter"])
def test_products_on_tensor_cores(op):
    """Channels last: every operand 16 bytes a copy, by ldmatrix to the registers."""
    code = assembled(launch(op, "implicit_gemm_mma", "64x128x28x28 k128 3x3 p1 bf16 nhwc", "128x128x64B w2x2"))
    assert code.count("HMMA.16816.F32.BF16") % 64 == 0 and code.count("HMMA") >= 64
    copies = code.opcodes("LDGSTS")
    assert len(copies) >= 8 and all("BYPASS" in name and ".128" in name for name in copies)
    assert code.count("LDSM") >= 16


@pytest.mark.parametrize("op, text, words, products", [
    ("conv_fwd", "448 pixels w2x2", 80, 80), ("conv_bwd_filter", "224 pixels w2x2", 20, 40), ("conv_bwd_data", "w4 64 rows", 0, 32)])
def test_first_layers(op, text, words, products):
    """Windows are read a word at a time, and multiplied without any register moved between."""
    code = assembled(launch(op, "small_c", FIRST, text))
    at = [k for k, line in enumerate(code.lines) if line.startswith("HMMA")]
    assert len(at) == products and all(re.match(r"HMMA\.16816\.F32\.BF16 ", code.lines[k]) for k in at)
    loop = code.lines[at[0]:at[-1] + 1]
    assert sum(line.startswith("LDS ") for line in code.lines) >= words
    moves = sum(line.startswith(("MOV", "IMAD.MOV")) for line in loop)
    assert moves <= 4, f"{moves} moves between products"
    assert any(name.startswith("LDGSTS") and ".128" in name for name in code.opcodes("LDGSTS"))
