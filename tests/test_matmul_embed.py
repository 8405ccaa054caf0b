"""Products inside another operation's plan: every algorithm, with all its operands in one workspace."""
import numpy as np
import pytest
from labs import aligned_bytes

from dnnkern.host.device import device
from dnnkern.host.launch import SimulatedExecutable
from dnnkern.host.tensor import Tensor
from dnnkern.engine.embed import Place, choices, embedded, scratch_bytes
from dnnkern.matmul._problem import MatmulProblem

SIZES = (3, 12, 8, 20)  # matrices, m, n, k
A, B, Y, SCRATCH = 256, 4096, 8192, 12288


def products(math=None):
    """The problem, a and b contiguous along m and n, and its algorithms."""
    z, m, n, k = SIZES
    a, b, y = (Tensor.packed(shape, "float32") for shape in ((z, k, m), (z, k, n), (z, m, n)))
    problem = MatmulProblem(a=a, b=b, y=y, transpose_a=True, math=math)
    return problem, choices(problem, device(), 99)


@pytest.mark.parametrize("math", [None, "tf32"])
def test_every_algorithm_reads_and_writes_where_it_is_told(math, simulated):
    z, m, n, k = SIZES
    problem, found = products(math)
    assert len(found) >= 3 and len({x.name for x in found}) == len(found)
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-4, 5, shape).astype(np.float32) for shape in ((z, k, m), (z, k, n)))
    for product in found:
        need = SCRATCH + scratch_bytes(product, problem, device())
        workspace = aligned_bytes(need)
        workspace[...] = 0xFF
        for at, x in ((A, a), (B, b)):
            workspace[at:at + x.nbytes] = x.reshape(-1).view(np.uint8)
        before = workspace.copy()
        places = {name: Place("workspace", at) for name, at in (("a", A), ("b", B), ("y", Y), ("workspace", SCRATCH))}
        launches = embedded(product, problem, device(), places)
        assert not any(arg.value in ("alpha", "beta") for launch in launches for arg in launch.arguments)
        SimulatedExecutable(launches, (("workspace", "pointer"),), 0).execute((workspace,), None)
        y = workspace[Y:Y + 4 * z * m * n].view(np.float32).reshape(z, m, n)
        np.testing.assert_array_equal(y, np.swapaxes(a, 1, 2) @ b, err_msg=str(product))
        changed = np.flatnonzero(workspace[:SCRATCH] != before[:SCRATCH])
        assert changed.min() >= Y and changed.max() < Y + y.nbytes, product


def test_a_missing_place_is_named():
    problem, found = products()
    with pytest.raises(ValueError, match="reads 'b', and no place"):
        embedded(found[0], problem, device(), {"a": Place("x"), "y": Place("y")})
