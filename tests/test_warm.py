"""Recorded calls: nothing runs, and all that another process needs to compile their kernels can be sent to it."""
import pickle
import threading

import numpy as np
import pytest
from cases import modules

import dnnkern
from dnnkern import dispatch
from dnnkern.device import HOST_MEMORY
from dnnkern.host.compiler import Job
from dnnkern.host.device import described, device
from dnnkern.preference import RECORDING, value_of
from dnnkern.warming import Recorder

pytestmark = pytest.mark.skipif(not HOST_MEMORY, reason="of NumPy's arrays")
ONES = np.ones((4, 8), np.float32)


def test_a_recorded_call_gives_zeros_and_leaves_its_arrays_alone():
    x, y, m = ONES.copy(), np.full((4, 8), 7, np.float32), [np.full(5, 3, np.float32)]
    with dnnkern.recording() as recorded:
        z = dnnkern.softmax_fwd(x)
        assert dnnkern.activation_fwd(x, "relu", out=y) is y
        pooled, index = dnnkern.max_pool_fwd(np.ones((1, 1, 4, 4), np.float32), 2, return_index=True)
        dnnkern.sgd_step([np.full(5, 2, np.float32)], [np.ones(5, np.float32)], m, lr=0.1, momentum=0.9)
    assert z.shape == (4, 8) and not z.any() and not index.any() and not pooled.any()
    assert (y == 7).all() and (x == 1).all() and (m[0] == 3).all()
    assert [job.op for job in recorded.jobs] == ["softmax_fwd", "activation_fwd", "max_pool_fwd", "sgd_step"]
    assert (dnnkern.activation_fwd(x, "relu", out=y) == 1).all(), "the call after the block runs"


def test_a_call_that_was_made_before_is_recorded_too_and_each_problem_once():
    expected = dnnkern.softmax_fwd(ONES)
    with dnnkern.recording() as recorded:
        for _ in range(3):
            assert not dnnkern.softmax_fwd(ONES).any()
    assert [job.op for job in recorded.jobs] == ["softmax_fwd"]
    assert (dnnkern.softmax_fwd(ONES) == expected).all()


def test_only_the_thread_that_records_records():
    found = []
    with dnnkern.recording() as recorded:
        thread = threading.Thread(target=lambda: found.append(dnnkern.softmax_fwd(ONES)))
        thread.start()
        thread.join()
    assert (found[0] == 0.125).all() and recorded.jobs == []


def test_preferences_hold_in_a_recording_and_end_with_their_blocks():
    with dnnkern.recording() as recorded, dispatch.prefer("naive"):
        dnnkern.matmul(ONES, ONES.T.copy())
        assert value_of(RECORDING) is recorded
    with dispatch.prefer("naive"), dnnkern.recording(), dispatch.prefer(None):
        assert value_of(dnnkern.preference.VARIABLE) is None and value_of(RECORDING) is not None
    assert [job.algo for job in recorded.jobs] == ["naive"] and value_of(RECORDING) is None


def test_errors_are_those_of_the_calls():
    with pytest.raises(ValueError, match="softmax_fwd: axis"):
        with dnnkern.recording() as recorded:
            dnnkern.softmax_fwd(ONES)
            dnnkern.softmax_fwd(ONES, axis=7)
    assert recorded.compiled is None and len(recorded.jobs) == 1 and value_of(RECORDING) is None
    with pytest.raises(ValueError, match="recording: workers"):
        with dnnkern.recording(workers=0):
            pass
    with pytest.raises(TypeError, match="warm: function is 3; expected something to call"):
        dnnkern.warm(3)


def test_the_choice_for_another_device_is_asked_with_what_the_call_said():
    recorder, h200 = Recorder(), described("sm_90a")
    with dnnkern.preference.within(RECORDING, recorder):
        dnnkern.softmax_fwd(ONES, algo="naive")
    job, = recorder.for_devices([h200])
    assert job.device is h200 and job.algo is None and dict(job.choice) == {"algo": "naive"}
    assert [launch.kernel for launch in job.launches()] == [launch.kernel for launch in recorder.jobs[0].launches()]


@pytest.mark.parametrize("op", sorted(modules()))
def test_a_job_survives_the_way_to_another_process(op):
    for case in modules()[op].CASES[:12]:
        problem = case.problem()
        if not problem.is_empty:
            algorithm = dispatch.get_algorithm(op, problem)
            job = Job(op, problem, device(0), algorithm.name, algorithm.config, (("algo", None),))
            assert pickle.loads(pickle.dumps(job)) == job


def test_a_device_of_no_described_architecture():
    with pytest.raises(ValueError, match="arch is 'sm_1'; expected one of sm_70, "):
        described("sm_1")
    assert all(described(arch).arch == arch for arch in ("sm_80", "sm_90a", "sm_100a"))


@pytest.mark.parametrize("op, most", [("conv_bwd_bias", 17), ("softmax_fwd", 73), ("adamw_step", 13), ("rope_fwd", 18)])
def test_a_set_needs_no_more_kernels_than_it_did(op, most):
    """A size that becomes a constant of a kernel makes a kernel of each problem."""
    from bench import sets
    target, found = described("sm_90a"), set()
    for problem in sets.problems("common", op):
        found |= {(kernel.kernel, kernel.signature) for kernel in Job(op, problem, target, choice=(("prefer", "device"),)).kernels()}
    assert len(found) <= most
