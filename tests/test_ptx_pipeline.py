"""A ring's state costs what two variables do, in machine code."""
import re

import pytest
from sass import ptx

from dnnkern.device import SIMULATED, cuda, jit, u32

if SIMULATED:
    pytest.skip("compiles for hardware; the simulator replaces numba.cuda in this process", allow_module_level=True)

from dnnkern.device.mbarrier import mbarrier_arrive, mbarrier_wait  # noqa: E402
from dnnkern.device.pipeline import make_pipeline  # noqa: E402


def test_a_state_is_two_variables():
    """The same loop with `PipelineState` and with a stage and a phase, each in a variable, is unrolled alike; nothing is in memory."""
    stages = 5
    pipe = make_pipeline(stages)

    @jit(launch_bounds=32)
    def of_states(y, base, steps):
        state, total, bars = pipe.consumer_start(), u32(0), pipe.barriers(u32(base))
        before = pipe.consumer_start()
        for k in range(steps):
            pipe.consumer_wait(bars, state)
            total = total * 3 + y[state.stage]
            if k > 0:
                pipe.consumer_release(bars, before, cuda.threadIdx.x)
            before, state = state, pipe.next(state)
        y[state.stage] = total + state.phase

    @jit(launch_bounds=32)
    def of_variables(y, base, steps):
        stage, phase, total, full = u32(0), u32(0), u32(0), u32(base)
        before = u32(0)
        for k in range(steps):
            mbarrier_wait(full + 8 * stage, phase)
            total = total * 3 + y[stage]
            if k > 0:
                if cuda.threadIdx.x == 0:
                    mbarrier_arrive(full + 8 * stages + 8 * before)
            before, stage = stage, stage + 1
            if stage == stages:
                stage, phase = u32(0), phase ^ 1
        y[stage] = total + phase

    texts = [ptx(kernel, ("uint32*", "int32", "int32"), "sm_90a") for kernel in (of_states, of_variables)]
    assert ".local" not in texts[0]
    waits, others = (len(re.findall(r"mbarrier\.try_wait", text)) for text in texts)
    assert waits == others > 1
    opcodes = [sorted(re.findall(r"^\t([a-z][\w.]*)", text, re.MULTILINE)) for text in texts]
    assert opcodes[0] == opcodes[1]
