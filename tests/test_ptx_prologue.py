"""What products that make their operands as they load them compile to, for sm_80 and sm_90a: no stack, no spill, no call."""
import pytest
from sass import assembled

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from test_ptx import device  # noqa: E402

from dnnkern.conv import ConvProblem  # noqa: E402
from dnnkern.device.pointwise import Function  # noqa: E402
from dnnkern.device.program import Program, Step  # noqa: E402
from dnnkern.engine.prologues import Prologue  # noqa: E402
from dnnkern.host.tensor import Tensor  # noqa: E402
from dnnkern.matmul import MatmulProblem  # noqa: E402

CAST = Program((), (Step(Function.of("identity"), (0,)),))
SCALE_BIAS_RELU = Program((("float32", "column"), ("float32", "column")), (
    Step(Function.of("mul"), (0, 1)), Step(Function.of("add"), (3, 2)), Step(Function.of("relu"), (4,))))


def problem(m, n, k, a="bfloat16", b="bfloat16", of_a=None, of_b=None):
    """A product of bfloat16, both operands with k fastest."""
    def prologue(program, along):
        return program and Prologue(program, "bfloat16", [Tensor.packed(along, "float32")] * len(program.operands))
    return MatmulProblem(Tensor.packed((m, k), a), Tensor.packed((n, k), b), Tensor.packed((m, n), "bfloat16"), transpose_b=True,
                         prologue_a=prologue(of_a, (1, k)), prologue_b=prologue(of_b, (1, n)))


PROBLEMS = {"int8-weights": (problem(32, 12288, 4096, b="int8", of_b=CAST), 168),
            "int8": (problem(4096, 4096, 4096, "int8", of_a=CAST), None),
            "scale-bias-relu": (problem(4096, 4096, 4096, of_a=SCALE_BIAS_RELU), None),  # as many as there are, and none is spilled
            "float32": (problem(4096, 4096, 4096, "float32", of_a=SCALE_BIAS_RELU), 176)}


@pytest.mark.ptx
@pytest.mark.parametrize("name", ["int8-weights", "int8", "scale-bias-relu"])
def test_operands_are_made_between_products(name):
    """By wgmma: the products of the steps before are still under way, and none waits for them all."""
    p, target = PROBLEMS[name][0], device("sm_90a")
    wgmma = next(a for a in dispatch.algorithms("matmul") if a.name == "wgmma_prologue").configured(p, target)
    launch = wgmma.build(p, target, wgmma.config)[-1]
    code = assembled(launch.kernel, launch.signature, target.arch)
    assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL") and not code.calls, code.report
    first, *_, last = (k for k, line in enumerate(code.lines) if line.startswith("HGMMA"))
    waits = [line.split("gsb0, ")[1] for line in code.lines[first:last] if line.startswith("WARPGROUP.DEPBAR")]
    assert waits == ["0x3"] * 3, waits


@pytest.mark.ptx
@pytest.mark.parametrize("name, registers", [("implicit_gemm_wgmma", 168), ("halo_wgmma", 84)])
def test_images_are_made_without_spills(name, registers):
    """A convolution of padded pixels, scale, bias and ReLU in front of it."""
    target, channels = device("sm_90a"), 128
    p = ConvProblem("conv_fwd", Tensor.packed((64, 28, 28, channels), "float16"), Tensor.packed((channels, 3, 3, channels), "float16"),
                    Tensor.packed((64, 28, 28, channels), "float16"), padding=1, layout="NHWC",
                    prologue_a=Prologue(SCALE_BIAS_RELU, "float16", [Tensor.packed((channels,), "float32")] * 2))
    found = next(a for a in dispatch.algorithms("conv_fwd") if a.name == name).configured(p, target)
    launch = found.build(p, target, found.config)[-1]
    code = assembled(launch.kernel, launch.signature, target.arch)
    assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL") and not code.calls, code.report
    assert code.registers <= registers and "serializ" not in code.report, code.report


@pytest.mark.ptx
def test_images_are_made_while_tensor_cores_multiply():
    """In front of a filter's gradient, in the stage: the products of the stage before are waited for after the next have begun."""
    target = device("sm_90a")
    p = ConvProblem("conv_bwd_filter", Tensor.packed((64, 56, 56, 64), "float16"), Tensor.packed((64, 3, 3, 64), "float16"),
                    Tensor.packed((64, 56, 56, 64), "float16"), padding=1, layout="NHWC",
                    prologue_a=Prologue(SCALE_BIAS_RELU, "float16", [Tensor.packed((64,), "float32")] * 2))
    found = next(a for a in dispatch.algorithms("conv_bwd_filter") if a.name == "implicit_gemm_wgmma").configured(p, target)
    launch = found.build(p, target, found.config)[0]
    code = assembled(launch.kernel, launch.signature, target.arch)
    assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL") and not code.calls, code.report
    assert "serializ" not in code.report, code.report
    waits = [line for line in code.lines if line.startswith("WARPGROUP.DEPBAR")]
    assert waits[0].endswith("gsb0, 0x1"), waits
    products = [k for k, line in enumerate(code.lines) if line.startswith("HGMMA")]
    stored = [k for k, line in enumerate(code.lines) if line.startswith("STS.128") and k < products[0]]
    assert len(stored) == 4 and products[-1] < code.lines.index(waits[0]), (stored, products)


@pytest.mark.ptx
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_operands_are_made_in_registers(name, arch):
    p, registers = PROBLEMS[name]
    target = device(arch)
    mma = next(a for a in dispatch.algorithms("matmul") if a.name == "mma").configured(p, target)
    launch = mma.build(p, target, mma.config)[0]
    code = assembled(launch.kernel, launch.signature, target.arch)
    assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL") and not code.calls, code.report
    assert registers is None or code.registers <= registers, code.registers
    assert code.opcodes("LDGSTS"), "the operand that is not made comes by copies"
