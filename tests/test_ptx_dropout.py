"""What the kernels of dropout compile to: 16-byte accesses under way before the random bits are drawn, integer arithmetic for those."""
import dataclasses

import pytest

from dnnkern.device import SIMULATED

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from test_ptx_transform import accesses, assembled  # noqa: E402

from dnnkern.dropout._parse import parse_problem  # noqa: E402
from dnnkern.host.tensor import Tensor  # noqa: E402


@pytest.mark.parametrize("op", ["dropout_fwd", "dropout_bwd"])
@pytest.mark.parametrize("dtype, loads", [("bf16", 2), ("f16", 2), ("f32", 2), ("f64", 4)])
def test_two_loads_of_16_bytes_a_thread(op, dtype, loads):
    code, launch = assembled(parse_problem(["8192x4096", dtype], op), "vector")
    assert accesses(code, "LDG")[128] == loads == accesses(code, "STG")[128]
    assert bool(code.doubles) == (dtype == "f64") and not code.divisions
    assert code.registers <= 40, "six blocks of 256 threads a multiprocessor"


def test_the_loads_come_before_the_random_bits():
    code, _ = assembled(parse_problem("8192x4096 bf16".split(), "dropout_fwd"), "vector")
    names = [line.split()[0] for line in code.lines]
    first = next(k for k, name in enumerate(names) if name.startswith("LDG") and ".128" in name)
    last = next(k for k, name in enumerate(names) if name.startswith("STG") and ".128" in name)
    wide = [k for k, name in enumerate(names) if name.startswith("IMAD.WIDE.U32") or name.startswith("IMAD.HI.U32")]
    assert sum(first < k < last for k in wide) >= 32, "two calls of ten rounds with two products each, but some of the first"


def test_a_seed_in_memory_is_one_load():
    problem = parse_problem("8192x4096 bf16".split(), "dropout_fwd")
    problem = dataclasses.replace(problem, seed_array=Tensor.packed((1,), "int64"))
    code, _ = assembled(problem, "vector")
    assert accesses(code, "LDG")[64] == 1 and accesses(code, "LDG")[128] == 2
    assert code.registers <= 40
