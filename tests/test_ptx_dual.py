"""What dual products compile to, for sm_80 and sm_90a: no stack, no spill, no call; products that do not wait for each other."""
import pytest
from sass import assembled

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

import cases.matmul  # noqa: E402, F401
from cases._matmul_dual import DUALS  # noqa: E402
from test_ptx import device  # noqa: E402

from dnnkern.host.tensor import Tensor  # noqa: E402
from dnnkern.matmul import MatmulProblem  # noqa: E402


def problem(name, m=4096, n=11008, k=4096, dtype="bfloat16"):
    """Right operands with k fastest; operands and side outputs of the program have the same type."""
    of, b = DUALS[name], Tensor.packed((n, k), dtype)
    shapes = ((1, n),) * (2 * of.biases) + ((m, n),) * (of.matrix + 2 * of.sides)
    return MatmulProblem(Tensor.packed((m, k), dtype), b, Tensor.packed((m, n), dtype), transpose_b=True, b_dual=b,
                         program=of.make("float32", dtype), extras=[Tensor.packed(shape, dtype) for shape in shapes])


# algorithm, architecture, program, the tile that is chosen, registers
CHOSEN = [("wgmma_dual", "sm_90a", "swiglu", "128x256", 168), ("wgmma_dual", "sm_90a", "geglu-biases", "128x256", 168),
          ("wgmma_dual", "sm_90a", "reglu-stored", "128x256", 168), ("wgmma_dual", "sm_90a", "swiglu-all", "128x256", 168),
          ("mma_dual", "sm_80", "swiglu", "128x256x64B w2x4 s4", 224), ("mma_dual", "sm_80", "geglu-biases", "128x256x64B w2x4 s4", 232)]


@pytest.mark.ptx
@pytest.mark.parametrize("name, arch, program, tile, registers", CHOSEN)
def test_both_sums_are_in_one_thread(name, arch, program, tile, registers):
    p, target = problem(program), device(arch)
    chosen = next(a for a in dispatch.algorithms("matmul") if a.name == name).configured(p, target)
    assert str(chosen.config) == tile
    (launch,) = chosen.build(p, target, chosen.config)
    code = assembled(launch.kernel, launch.signature, target.arch)
    assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL") and not code.calls, code.report
    assert code.registers <= registers and "serializ" not in code.report, (code.registers, code.report)
    assert not code.opcodes("SHFL"), "both sums of an element are in one thread"


@pytest.mark.ptx
@pytest.mark.parametrize("m", [4096, 512])
def test_dispatch_takes_it(m):
    """By estimates, on Hopper."""
    p, target = problem("swiglu", m), device("sm_90a")
    able = [a.configured(p, target) for a in dispatch.algorithms("matmul") if a.refusal(p, target) is None]
    assert {a.name for a in able} == {"naive", "mma_dual", "wgmma_dual"}
    assert min(able, key=lambda a: a.seconds(p, target)).name == "wgmma_dual"
