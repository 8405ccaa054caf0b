"""What products that reduce their rows compile to: no stack, no spill, no call; each exponential once, a few shuffles a row."""
import pytest
from sass import assembled

from dnnkern import dispatch
from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

import cases.matmul  # noqa: E402, F401
from cases._matmul_rows import ROWS  # noqa: E402
from test_ptx import device  # noqa: E402

from dnnkern.host.tensor import Tensor  # noqa: E402
from dnnkern.matmul import MatmulProblem  # noqa: E402


def problem(name, n, m=16384, k=1024, dtype="bfloat16"):
    """Right operands with k fastest."""
    of, shapes = ROWS[name], {"row": (m, 1), "column": (1, n), "matrix": (m, n)}
    extras = [Tensor((), (), "float32") for _ in of.numbers]
    extras += [Tensor.packed(shapes[by], "float32" if own else dtype) for own, by in of.operands]
    extras += [Tensor.packed(shapes[by], "float32") for by in of.sides]
    return MatmulProblem(Tensor.packed((m, k), dtype), Tensor.packed((n, k), dtype), Tensor.packed((m, n), dtype), transpose_b=True,
                         program=of.make("float32", dtype), extras=extras)


SLOW = pytest.mark.slow


@pytest.mark.ptx
@pytest.mark.parametrize("name, n, tile, shuffles", [
    ("plain-softmax", 256, "64x256 ping-pong", 8), ("layer-norm", 192, "128x192", 8),
    pytest.param("plain-softmax", 250, "64x256 ping-pong", 8, marks=SLOW), pytest.param("rms-norm", 256, "64x256 ping-pong", 4, marks=SLOW),
    pytest.param("softmax", 192, "128x192", 8, marks=SLOW), pytest.param("layer-norm", 100, "128x128 ping-pong", 8, marks=SLOW)])
def test_rows_are_registers(name, n, tile, shuffles):
    p, target = problem(name, n), device("sm_90a")
    chosen = dispatch.named("matmul", "wgmma").configured(p, target)
    (launch,) = chosen.build(p, target, chosen.config)
    code = assembled(launch.kernel, launch.signature, target.arch)
    assert (code.stack, code.spilled) == (0, 0) and not code.opcodes("LDL", "STL") and not code.calls, code.report
    assert not code.slow and str(chosen.config) == tile, (code.slow, str(chosen.config))
    assert code.count("SHFL") == shuffles, "of each level and row two, by the four lanes that share it"
    if "softmax" in name:
        elements = chosen.config.tile.sums
        assert elements <= code.count("MUFU.EX2") <= elements + 4, code.count("MUFU.EX2")
