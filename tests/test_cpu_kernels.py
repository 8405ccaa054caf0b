"""What the processor refuses of the kernels of the compiled tier's list: nothing. They are lowered and written, not optimised or run."""
import cases
import pytest
from representative import representative

from dnnkern import dispatch
from dnnkern.device import cpu
from dnnkern.host.device import device as device_of

REFUSED = {}  # (operation, algorithm): why
EVERY = 24    # algorithms of which one is lowered; with --full all, on all of their cases


def pytest_generate_tests(metafunc):
    if "algorithm" in metafunc.fixturenames:
        found = [(op, a) for op in cases.modules() for a in dispatch.algorithms(op)]
        if not metafunc.config.getoption("--full"):
            found = found[::EVERY]
        metafunc.parametrize("op, algorithm", [pytest.param(op, a, id=f"{op}-{a.name}") for op, a in found])


def _kernels(op, algorithm, full):
    """(kernel, signature) of the launches of the algorithm's cases."""
    target, found = device_of(0), {}
    able = [case for case in representative(op, algorithm) if algorithm.refusal(case.problem(), target) is None]
    for case in able if full else able[:1]:
        problem = case.problem()
        bound = algorithm.configured(problem, target)
        for launch in bound.build(problem, target, bound.config):
            found[launch.kernel, launch.signature] = launch
    return list(found)


def test_nothing_is_refused(op, algorithm, request):
    if (op, algorithm.name) in REFUSED:
        pytest.skip(REFUSED[op, algorithm.name])
    kernels = _kernels(op, algorithm, request.config.getoption("--full"))
    assert kernels, "no case of the compiled tier is for this algorithm"
    for kernel, signature in kernels:
        text, _, _ = cpu.ir_text(kernel, signature)
        assert "define i32 @cpu.run(" in text
