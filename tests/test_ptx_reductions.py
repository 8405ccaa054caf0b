"""What products with reductions compile to: no stack, no spill, no call; registers of the kernels for channels' sums and the largest."""
import pytest
from sass import assembled

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from test_ptx import device  # noqa: E402

from dnnkern.device.pointwise import Function  # noqa: E402
from dnnkern.device.program import Program, Step  # noqa: E402
from dnnkern.engine.prologues import Prologue  # noqa: E402
from dnnkern.host.tensor import Tensor  # noqa: E402
from dnnkern.matmul import MatmulProblem  # noqa: E402

M, N, K = 2048, 2040, 4096
SHAPES = {"rows": (1, N), "columns": (M, 1), "all": (1, 1)}
GENSTATS = (1, "add", "rows", "float32"), (1, "sum_square", "rows", "float32")
AMAX, ROWS = ((1, "amax", "all", "float32"),), ((1, "max", "columns", "float32"),)


def product(reductions, made=False):
    """The results are rounded, and these are reduced; `made`: of an a that scale, bias and ReLU make."""
    program = Program((), [Step(Function.of("identity"), (0,), "bfloat16")], (), None, 1, reductions)
    steps = [Step(Function.of(mode), operands, to) for mode, operands, to in (
        ("scale", (0, 1), None), ("bias", (3, 2), None), ("relu", (4,), "bfloat16"))]
    vectors = [Tensor.packed((1, K), "float32")] * 2
    prologue = Prologue(Program([("float32", "column")] * 2, steps), "bfloat16", vectors) if made else None
    extras = [Tensor.packed(SHAPES[over], dtype) for _, _, over, dtype in reductions]
    return MatmulProblem(Tensor.packed((M, K), "bfloat16"), Tensor((K, N), (1, K), "bfloat16"), Tensor.packed((M, N), "bfloat16"),
                         prologue_a=prologue, program=program, extras=extras)


# (algorithm, architecture): registers that are allotted
KERNELS = {("mma", "sm_80"): 232, ("wgmma", "sm_90a"): 168, ("wgmma_prologue", "sm_90a"): 240}


@pytest.mark.parametrize("reductions", [GENSTATS, pytest.param(AMAX, marks=pytest.mark.slow), pytest.param(ROWS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name, arch", KERNELS)
def test_chosen_configurations(name, arch, reductions):
    target, problem = device(arch), product(reductions, name == "wgmma_prologue")
    algorithm = dispatch.named("matmul", name).configured(problem, target)
    *_, main, last = algorithm.build(problem, target, algorithm.config)
    for launch, registers in ((main, KERNELS[name, arch]), (last, 32)):
        code = assembled(launch.kernel, launch.signature, arch)
        assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL", "ATOM", "RED.") and not code.calls, code.report
        assert not code.slow, code.slow
        assert code.registers <= registers, code.registers
