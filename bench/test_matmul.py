"""pytest-benchmark suites of matmul: ``python -m pytest bench/ --benchmark-group-by=param:problem``.

What pytest-benchmark reports is device time per call: its timer is a clock that moves by what CUDA events measured. Each pair of problem
and algorithm passes the correctness check before it is timed. ``DNNKERN_BENCH_SETS`` and ``DNNKERN_BENCH_DTYPES`` choose others than the
small and the square products in float32 and bfloat16.
"""
import os
import time

import pytest

from bench.peers import peers_of
from bench.shapes.matmul import Case, cases
from dnnkern import dispatch
from dnnkern.device import SIMULATED
from dnnkern.find import Trial, operation_of, set_reference
from dnnkern.host.operands import Operands
from dnnkern.host.timing import PAUSE, WINDOW, Clock

DTYPES = os.environ.get("DNNKERN_BENCH_DTYPES", "float32,bfloat16").split(",")
SETS = os.environ.get("DNNKERN_BENCH_SETS", "small,square").split(",")
if SIMULATED:
    PROBLEMS = [Case(8, 8, 8, dtype=dtype) for dtype in DTYPES]
else:
    PROBLEMS = [case for name in SETS for case in cases(name, DTYPES) if case.problem.flops < 2e11]
PEERS = {module.NAME: module for module in peers_of("matmul")[0]}
ALGORITHMS = [a.name for a in dispatch.algorithms("matmul")] + list(PEERS)
ROUNDS = 3 if SIMULATED else 9


class DeviceTime:
    """A timer for pytest-benchmark that stands still but for what `advance` adds."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def advance(self, seconds):
        self.now += seconds


DEVICE_TIME = DeviceTime()


@pytest.fixture(scope="module")
def clock():
    with Clock(dispatch.current_device()) as clock:
        yield clock


@pytest.fixture(scope="module")
def stage(clock):
    """The operands of the problem at hand, kept while consecutive tests ask for the same one."""
    kept = {}

    def get(case):
        if case not in kept:
            for operands in kept.values():
                operands.__exit__()
            kept.clear()
            clock.release()
            device, operation = dispatch.device_of(clock.index), operation_of("matmul")
            kept[case] = Operands(operation, case.problem, device)
            set_reference(operation, case.problem, kept[case], device, clock)
        return kept[case]
    yield get
    clock.release()
    for operands in kept.values():
        operands.__exit__()


@pytest.mark.benchmark(timer=DEVICE_TIME)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("problem", PROBLEMS, ids=str)
def test_matmul(benchmark, problem, algorithm, stage, clock):
    """Device time per call."""
    operands, device = stage(problem), dispatch.device_of(clock.index)
    contender = _peer(problem, algorithm, operands, clock) if algorithm in PEERS else _ours(problem, algorithm, operands, device, clock)
    contender.call(0)
    calls = 1 if SIMULATED else max(1, min(500, int(WINDOW / clock.seconds(lambda: contender.call(0)))))
    batch = contender.capture(clock, calls)

    def timed():
        DEVICE_TIME.advance(clock.seconds(batch, lead=batch) / calls)
    benchmark.extra_info.update(calls=calls, tflop=problem.problem.flops / 1e12, megabytes=problem.problem.bytes / 1e6)
    benchmark.pedantic(timed, setup=lambda: time.sleep(0 if SIMULATED else PAUSE), rounds=ROUNDS, warmup_rounds=1)


def _ours(problem, name, operands, device, clock):
    algorithm = next(a for a in dispatch.algorithms("matmul") if a.name == name)
    reason = dispatch.refusal(algorithm, problem.problem, device)
    if reason:
        pytest.skip(reason)
    bound = algorithm.configured(problem.problem, device)
    if bound.estimate(problem.problem, device, bound.config) > 0.05:
        pytest.skip("predicted to take more than 50 ms")
    trial = Trial(bound, problem.problem, device)
    assert trial.prepare(operation_of("matmul"), operands, clock), trial.error
    return trial.contender(operands, clock)


def _peer(problem, name, operands, clock):
    peer = PEERS[name].make(problem, operands, clock)
    if peer is None:
        pytest.skip(f"{name} cannot do it")
    wrong = operands.wrong(peer.write)
    assert not wrong, wrong
    return peer.contender
