"""The simulator's schedules: what meets, what waits, what overlaps."""
from collections import defaultdict

import numpy as np
import pytest

from dnnkern import dispatch, find
from dnnkern.device import SIMULATED, cuda, jit
from dnnkern.host.executable import make_executable
from dnnkern.host.operands import Operands
from dnnkern.sketch import problem

pytestmark = pytest.mark.skipif(not SIMULATED, reason="of the simulator")
if SIMULATED:
    from dnnkern.device.sim import Pointer
    from dnnkern.device.sim.schedule import BYTES, COLUMNS, LATENCY, RUNS, Schedule


@jit
def uneven(x):
    t = cuda.threadIdx.x
    for i in range(3 + 2 * t):
        x[t] += 1.0
    cuda.syncthreads()
    if t == 1:
        x[1] = x[1] - x[0]


def of_kernel(kernel, threads, *arrays):
    schedule = Schedule()
    kernel.simulate(1, threads, [Pointer(a) for a in arrays], schedule=schedule)
    return schedule.close()


def of_problem(name, algo, **arguments):
    described = problem(name, **arguments)
    device, operation = dispatch.device_of(dispatch.current_device()), dispatch.operation_of(described.op)
    algorithm, schedule = dispatch.get_algorithm(described.op, described, algo=algo), Schedule()
    with Operands(operation, described, device, None) as operands:
        values = operands.values(0, find.Trial(algorithm, described, device).memory)
        make_executable(operation, described, algorithm, device).execute(values, 0, schedule=schedule)
    return schedule.close()


def tracks(schedule):
    """{(block, track): [(begin, end, text, details)]}, in order; slices of one track follow each other."""
    found = defaultdict(list)
    for block, track, begin, end, text, details in schedule.slices:
        found[schedule.blocks[block], track].append((begin, end, text, details))
    for slices in found.values():
        slices.sort(key=lambda s: s[0])
        assert all(before[1] <= after[0] for before, after in zip(slices, slices[1:])), slices
    return found


def test_threads_meet_at_the_time_of_the_last():
    """Each turn of the loop reads and writes: 6, 10, 14 accesses, then the barrier."""
    x = np.zeros(3, np.float32)
    found = tracks(of_kernel(uneven, 3, x))
    assert x.tolist() == [3.0, 2.0, 7.0]
    name = "uneven, block (0, 0, 0)"
    first, second, last = (found[name, ("thread", t)] for t in range(3))
    assert [s[:2] for s in first] == [(0, 7), (7, 14)] and first[1][2].startswith("syncthreads: 1 of 3 threads"), "it steps to the barrier"
    assert [s[:2] for s in second] == [(0, 11), (11, 14), (14, 17)], "two reads and a write after the barrier"
    assert [s[:3] for s in last] == [(0, 14, RUNS)]


def test_launches_follow_each_other():
    schedule = of_problem("matmul", "split_k", a=("16x512", "float32"), b=("512x16", "float32"))
    ends = defaultdict(lambda: [10 ** 9, 0])
    for block, _, begin, end, *_ in schedule.slices:
        span = ends[block.launch.name]
        span[:] = min(span[0], begin), max(span[1], end)
    (_, first), (second, last) = sorted(ends.values())
    assert first <= second and last == schedule.end


def test_a_pipeline_of_copies_and_products():
    """Copies land so long after they were issued, waits end when the copies of their phase have landed, products follow each other."""
    schedule = of_problem("matmul", "wgmma", a=("64x1280", "bfloat16"), b=("1280x64", "bfloat16"))
    found = tracks(schedule)
    landed = defaultdict(int)
    copies = [s for (_, (kind, _)), slices in found.items() if kind == "copies" for s in slices]
    for begin, end, _, details in copies:
        assert end - begin == LATENCY + details["bytes"] // BYTES
        landed[details["barrier"], details["phase"]] = max(landed[details["barrier"], details["phase"]], end)
    assert sum(details["bytes"] for *_, details in copies) == 2 * 64 * 1280 * 2
    waits = [(end, text.partition(": ")[2], details) for (_, (kind, _)), slices in found.items() if kind == "thread"
             for _, end, text, details in slices if text.startswith("mbarrier_wait")]
    for end, barrier, details in waits:
        assert (barrier, details["phase"]) not in landed or end == landed[barrier, details["phase"]]
    assert sum((barrier, details["phase"]) in landed for _, barrier, details in waits) > 100, "consumers have waited for copies"
    (products,) = (slices for (_, (kind, _)), slices in found.items() if kind == "products")
    assert len(products) == 20 and all(end - begin == 4 * 64 // COLUMNS for begin, end, *_ in products), "of 64 columns of k each"
    issued = sorted(begin for begin, *_ in copies)
    assert issued[-1] > min(end for _, end, *_ in products), "the ring is shorter than the loop: the last copies wait for a free stage"


def test_events():
    schedule = of_kernel(uneven, 70, np.zeros(70, np.float32))
    events = schedule.events()
    slices = [e for e in events if e["ph"] == "X"]
    assert {e["tid"] for e in slices} == {0, 1, 2}, "one thread of each warp"
    assert [e["args"]["name"] for e in events if e["name"] == "process_name"] == ["uneven, block (0, 0, 0)"]
    assert "warp 0, thread 1" in [e["args"]["name"] for e in events if e["name"] == "thread_name"], "who is busy longest"
    assert all(e["dur"] > 0 and e["pid"] == 0 for e in slices)


def test_a_schedule_changes_nothing():
    """Results, and what a launch without one does."""
    x, y = np.zeros(3, np.float32), np.zeros(3, np.float32)
    of_kernel(uneven, 3, x)
    uneven.simulate(1, 3, [Pointer(y)])
    assert (x == y).all()
