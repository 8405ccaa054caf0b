"""What convolutions with reductions compile to: no stack, no spill, no call, products that do not wait for each other; registers of the
kernels for batch normalization's sums."""
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

SHAPES = {"rows": lambda k: (1, 1, 1, k), "columns": lambda k: (64, 56, 56, 1), "all": lambda k: (1, 1, 1, 1)}
GENSTATS = (1, "add", "rows", "float32"), (1, "sum_square", "rows", "float32")
AMAX = ((1, "amax", "all", "float32"),)


def convolution(reductions, channels, filters, taps=3, made=False):
    """The results are rounded, and these are reduced; `made`: of an image that scale, bias and ReLU make."""
    def vectors(count):
        return [Tensor.packed((channels,), "float32") for _ in range(count)]
    program = Program((), [Step(Function.of("identity"), (0,), "float16")], (), None, 1, reductions)
    steps = [Step(Function.of("scale"), (0, 1), None), Step(Function.of("bias"), (3, 2), None), Step(Function.of("relu"), (4,), "float16")]
    prologue = Prologue(Program([("float32", "column")] * 2, steps), "float16", vectors(2)) if made else None
    return ConvProblem("conv_fwd", Tensor.packed((64, 56, 56, channels), "float16"),
                       Tensor.packed((filters, taps, taps, channels), "float16"), Tensor.packed((64, 56, 56, filters), "float16"),
                       padding=taps // 2, layout="NHWC", program=program, prologue_a=prologue,
                       extras=[Tensor.packed(SHAPES[over](filters), dtype) for _, _, over, dtype in reductions])


def gradient(channels):
    """Of an image, behind ReLU's gradient; with the sums of dy and of dy times the normalized x, as dbn_weight has them."""
    steps = [Step(Function.of(mode), operands, to) for mode, operands, to in (
        ("relu_backward", (0, 1), "float16"), ("sub", (1, 2), None), ("mul", (5, 3), None), ("mul", (6, 4), None))]
    program = Program([("float16", "matrix"), *[("float32", "column")] * 2], steps, (), 4, 1,
                      [(4, "add", "rows", "float32"), (7, "add", "rows", "float32")])
    image, vector = Tensor.packed((64, 56, 56, channels), "float16"), Tensor.packed((1, 1, 1, channels), "float32")
    return ConvProblem("conv_bwd_data", image, Tensor.packed((256, 3, 3, channels), "float16"), Tensor.packed((64, 56, 56, 256), "float16"),
                       padding=1, layout="NHWC", program=program, extras=[image, *[vector] * 4])


def test_sums_of_batchnorms_gradient():
    target, problem = device("sm_90a"), gradient(256)
    algorithm = dispatch.named("conv_bwd_data", "implicit_gemm_wgmma").configured(problem, target)
    main, last = algorithm.build(problem, target, algorithm.config)
    for launch in (main, last):
        code = assembled(launch.kernel, launch.signature, "sm_90a")
        assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL", "ATOM", "RED.") and not code.calls, code.report
        assert not code.slow, code.slow
    assert algorithm.workspace(problem, target, algorithm.config) <= 2 * 4 * 256 * 132  # a state of each block


# (algorithm, channels, filters, taps, whether the image is made): reductions
KERNELS = [("implicit_gemm_wgmma", 256, 256, 3, False, GENSTATS), ("implicit_gemm_wgmma", 64, 256, 1, True, GENSTATS),
           ("implicit_gemm_wgmma", 128, 128, 3, True, GENSTATS), ("halo_wgmma", 64, 64, 3, False, GENSTATS),
           ("halo_wgmma", 64, 64, 3, True, GENSTATS), ("halo_wgmma", 64, 64, 3, False, AMAX),
           ("implicit_gemm_mma", 128, 256, 3, False, GENSTATS)]


@pytest.mark.parametrize("name, channels, filters, taps, made, reductions", KERNELS)
def test_chosen_configurations(name, channels, filters, taps, made, reductions):
    target, problem = device("sm_90a"), convolution(reductions, channels, filters, taps, made)
    algorithm = dispatch.named("conv_fwd", name).configured(problem, target)
    main, last = algorithm.build(problem, target, algorithm.config)
    threads = main.block[0]
    for launch, registers in ((main, 65536 // threads // 8 * 8), (last, 32)):
        code = assembled(launch.kernel, launch.signature, "sm_90a")
        assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL", "ATOM", "RED.") and not code.calls, code.report
        assert not code.slow, code.slow
        assert code.registers <= registers, code.registers
