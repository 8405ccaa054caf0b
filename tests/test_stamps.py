"""What stamps of a kernel's clock say: made-up ones, and on a GPU those of kernels."""
import json
from collections import defaultdict

import numpy as np
import pytest

from dnnkern.device import HOST_MEMORY
from dnnkern.device._events import TRACKS, events
from dnnkern.device._stamps import BEGIN, END, THREADS, Site
from dnnkern.host.timeline import ISSUES, RUNS, Lane, began, slices_of

WAIT, COPY, PRODUCT, ONE_LEFT, NONE_LEFT, BARRIER, ALL, ARRIVES = range(3, 11)
SITES = [None, Site("begin", "begins"), Site("end", "ends"), Site("mbarrier", "mbarrier_wait"),
         Site("copy", "issues a copy", "tensor map a"), Site("product", "issues wgmma", "m64n64k16"),
         Site("products", "wgmma wait", pending=1), Site("products", "wgmma wait"), Site("barrier", "bar.sync"),
         Site("barrier", "syncthreads"), Site("arrival", "bar.arrive")]
START = 1_790_000_007_123_456_789  # of the timer, in nanoseconds


def lane(block, thread, first, records, until=2000):
    """A lane whose stamps are cycles since its block's clock showed `first`; two cycles are a nanosecond."""
    def clock(cycles):
        return first + cycles & 0xFFFFFFFF

    def timed(cycles, site):
        timer = START + 500 * block + cycles // 2
        return clock(cycles), timer & 0xFFFFFFFF, site, timer >> 32
    return Lane(block, thread, 5 + block, [timed(0, BEGIN), *((clock(b), clock(e), site, more) for b, e, site, more in records),
                                           timed(until, END)], 0)


def tracks(lanes):
    found, sms = slices_of(lanes, SITES, 1e9, began(lanes))
    by_track = defaultdict(list)
    for block, track, begin, end, text, details in found:
        by_track[block, track].append((begin, end, text, details))
    return by_track, sms


def test_a_warp():
    """What it waits for, and that it runs otherwise; the clock's 32 bits run over meanwhile."""
    found, sms = tracks([lane(0, 32, 2 ** 32 - 500, [(100, 300, WAIT, 0x36818), (300, 900, WAIT, 0x1036820), (1000, 1100, BARRIER, 2)])])
    assert sms == {0: 5} and list(found) == [(0, ("thread", 1))]
    slices = found[0, ("thread", 1)]
    assert np.allclose([s[:2] for s in slices], [(0, 50), (50, 150), (150, 450), (450, 500), (500, 550), (550, 1000)], atol=0.01)
    assert [s[2:] for s in slices] == [(RUNS, {}), ("mbarrier_wait", {"barrier": "mbarrier 0x36818"}),
                                       ("mbarrier_wait", {"barrier": "mbarrier 0x36820"}), (RUNS, {}),
                                       ("bar.sync", {"barrier": "barrier 2"}), (RUNS, {})]


def test_lanes_of_a_warp():
    """Several lanes' records are the warp's; of two that wait for the same, no time counts twice."""
    found, _ = tracks([lane(0, 0, 77, [(100, 300, WAIT, 8)]), lane(0, 3, 77, [(110, 310, WAIT, 8), (400, 500, COPY, 8)])])
    slices = found[0, ("thread", 0)]
    assert np.allclose([s[:2] for s in slices], [(0, 50), (50, 150), (150, 155), (155, 200), (200, 250), (250, 1000)], atol=0.01)
    assert [s[2] for s in slices] == [RUNS, "mbarrier_wait", "mbarrier_wait", RUNS, "issues a copy", RUNS]
    assert slices[4][3] == {"barrier": "mbarrier 0x8", "what": "tensor map a"}


def test_blocks_have_clocks_of_their_own():
    found, sms = tracks([lane(0, 0, 77, [(100, 300, WAIT, 8)]), lane(1, 0, 2 ** 31, [(100, 300, WAIT, 8)])])
    assert sms == {0: 5, 1: 6}
    waits = [next(s for s in found[block, ("thread", 0)] if s[2] != RUNS) for block in (0, 1)]
    assert np.allclose([w[:2] for w in waits], [(50, 150), (550, 650)], atol=0.01)


def test_products():
    """Of a warpgroup, one after the other, each until the wait that it must have ended for."""
    records = [(100, 110, PRODUCT, 0), (200, 210, PRODUCT, 0), (210, 400, ONE_LEFT, 0), (450, 460, PRODUCT, 0), (460, 900, NONE_LEFT, 0)]
    found, _ = tracks([lane(0, 32 * warp, 77, records) for warp in range(4, 8)])
    slices = found[0, ("products", 1)]
    assert [k for k in found if k[1][0] == "products"] == [(0, ("products", 1))], "of its first warp"
    assert np.allclose([s[:2] for s in slices], [(50, 200), (200, 450)], atol=0.01)
    assert [s[2:] for s in slices] == [("wgmma m64n64k16", {"groups": 1}), ("wgmma m64n64k16", {"groups": 2})]


def test_copies():
    """Until the first wait at their barrier ends, side by side where they overlap; one that nobody waits for is not shown."""
    producer = lane(0, 0, 77, [(100, 110, COPY, 8), (120, 130, COPY, 16), (140, 150, COPY, 24), (700, 710, COPY, 0x2000008)])
    consumers = [lane(0, 32 * warp, 77, [(50, 300 + warp, WAIT, 8), (400, 500, WAIT, 16), (600, 800, WAIT, 8)]) for warp in (1, 2)]
    found, _ = tracks([producer, *consumers])
    assert np.allclose([s[:2] for s in found[0, ("copies", 0)]], [(50, 150.5), (350, 400)], atol=0.01), "the barrier's offset in its block"
    assert np.allclose([s[:2] for s in found[0, ("copies", 1)]], [(60, 250)], atol=0.01)
    assert found[0, ("copies", 0)][0][2:] == ("a copy of tensor map a", {"barrier": "mbarrier 0x8"})
    assert len([track for track in found if track[1][0] == "copies"]) == 2


def waits(found, warp, text):
    return [s[:2] for s in found[0, ("thread", warp)] if s[2] == text]


def test_threads_meet():
    """They go on when the last one has come, whatever the clock behind the instruction says; of two pairs of warps at one barrier those are
    together that come one after the other."""
    four = 128 * THREADS + 1
    found, _ = tracks([lane(0, 0, 77, [(100, 101, BARRIER, four), (900, 901, BARRIER, four), (1500, 1501, ALL, 0)]),
                       lane(0, 32, 77, [(200, 201, BARRIER, four), (800, 801, BARRIER, four), (1600, 1601, ALL, 0)]),
                       lane(0, 64, 77, [(140, 141, ARRIVES, four), (700, 701, ARRIVES, four), (1400, 1430, ALL, 0)]),
                       lane(0, 96, 77, [(300, 340, BARRIER, four), (850, 860, BARRIER, four), (1650, 1651, ALL, 0)])])
    assert np.allclose(waits(found, 0, "bar.sync"), [(50, 150), (450, 450.5)], atol=0.01)
    assert np.allclose(waits(found, 1, "bar.sync"), [(100, 150), (400, 450)], atol=0.01)
    assert waits(found, 2, "bar.sync") == waits(found, 2, "bar.arrive") == []
    assert np.allclose(waits(found, 3, "bar.sync"), [(150, 170), (425, 450)], atol=0.01)
    for warp, since in enumerate((750, 800, 700, 825)):
        assert np.allclose(waits(found, warp, "syncthreads"), [(since, max(825, since + 0.5))], atol=0.01)


def test_no_time_passes():
    """A kernel that is shorter than a step of the timer: cycles are as long as the device says."""
    found, _ = tracks([Lane(0, 0, 0, [(10, START & 0xFFFFFFFF, BEGIN, START >> 32), (20, 60, WAIT, 8),
                                      (110, START & 0xFFFFFFFF, END, START >> 32)], 0)])
    wait = next(s for s in found[0, ("thread", 0)] if s[2] != RUNS)
    assert np.isclose(wait[1] - wait[0], 40, atol=0.01)


def test_events():
    rows = [("x", ("thread", 1), 1.0, 2.5, "syncthreads: 1 of 3", {"k": 1}), ("x", ("copies", 0), 1.0, 2.0, "a copy", {})]
    found = events({"x": "kernel, block (0, 0, 0)"}, rows, {("x", ("thread", 1)): "warp 1, thread 40"})
    names = {e["tid"]: e["args"]["name"] for e in found if e["name"] == "thread_name"}
    assert names == {1: "warp 1, thread 40", TRACKS["copies"][0]: "copies 0"}
    assert [(e["name"], e["ts"], e["dur"], e["args"]) for e in found if e["ph"] == "X"] == [
        ("syncthreads", 1.0, 1.5, {"k": 1, "what": "1 of 3"}), ("a copy", 1.0, 1.0, {})]


# ---- of kernels

gpu = [pytest.mark.gpu, pytest.mark.skipif(HOST_MEMORY, reason="needs a GPU")]


def run(problem, algo):
    """(executable after its run, what was wrong with its result)"""
    from dnnkern import dispatch
    from dnnkern.host.executable import make_executable
    from dnnkern.host.operands import Operands
    from dnnkern.host.stamps import StampedExecutable
    from dnnkern.host.timing import Clock
    device, operation = dispatch.device_of(dispatch.current_device()), dispatch.operation_of(problem.op)
    algorithm = dispatch.get_algorithm(problem.op, problem, algo=algo)
    plain = make_executable(operation, problem, algorithm, device)
    parameters = operation.of(problem).parameters(problem, None)
    with Clock(device.index) as clock, Operands(operation, problem, device, None) as operands, \
            StampedExecutable(plain.launches, parameters, device.index) as executable:
        values = operands.values(0, algorithm.workspace(problem, device, algorithm.config))

        def call(each):
            each.execute(values, clock.stream)
            clock.synchronize()
        operands.set_reference(lambda: call(plain))
        wrong = operands.wrong(lambda: call(executable), tolerance=0.0)
        return executable, executable.read(), wrong, device


@pytest.mark.parametrize("op, algo, arguments", [
    pytest.param("matmul", "wgmma", dict(a=("1000x2048", "bfloat16"), b=("2048x1032", "bfloat16")), marks=gpu),
    pytest.param("matmul", "blocked", dict(a=("300x200", "float32"), b=("200x100", "float32")), marks=gpu),
    pytest.param("matmul", "split_k", dict(a=("16x4096", "float32"), b=("4096x16", "float32")), marks=gpu),
    pytest.param("softmax_fwd", "block", dict(x=("333x5000", "float32")), marks=gpu),
    pytest.param("sdpa_fwd", "flash_wgmma", dict.fromkeys("qkv", ("2x4x777x128", "bfloat16")), marks=gpu)])
def test_stamps_of_kernels(op, algo, arguments):
    """The same results to the bit; each warp of the traced blocks begins, does what it does in turn, and ends."""
    from dnnkern.sketch import problem
    asked = problem(op, **arguments)
    executable, read, wrong, device = run(asked, algo)
    assert wrong is None
    assert len(read) == len(executable.launches)
    for launch, stamps, lanes in zip(executable.launches, executable.stamps, read):
        blocks, threads = min(4, int(np.prod(launch.grid))), int(np.prod(launch.block))
        assert {(lane.block, lane.thread // 32) for lane in lanes} == {(b, w) for b in range(blocks) for w in range(-(-threads // 32))}
        assert not any(lane.dropped for lane in lanes)
        for lane in lanes:
            sites = [site for *_, site, _ in lane.records]
            assert all(0 < site < len(stamps.sites) for site in sites)
            assert sites.count(BEGIN) <= 1 and sites[-1] == END and (BEGIN not in sites or sites[0] == BEGIN)
        slices, sms = slices_of(lanes, stamps.sites, device.clock_hz, began(lanes))
        assert len(set(sms.values())) <= blocks and max(sms.values()) < device.sms
        by_track = defaultdict(list)
        for block, track, begin, end, *_ in slices:
            assert end >= begin
            by_track[block, track].append((begin, end))
        for track in by_track.values():
            track.sort()
            assert all(before[1] <= after[0] + 1e-3 for before, after in zip(track, track[1:]))
        length = max(s[3] for s in slices) - min(s[2] for s in slices)
        assert 0 < length < 1e7, "nanoseconds"


@pytest.mark.gpu
@pytest.mark.skipif(HOST_MEMORY, reason="needs a GPU")
def test_a_pipeline():
    """Each copy is issued before a wait at its barrier ends; as many copies as k has steps; products end in their order."""
    from dnnkern.sketch import problem
    asked = problem("matmul", a=("512x2048", "bfloat16"), b=("2048x512", "bfloat16"))
    executable, (lanes,), wrong, device = run(asked, "wgmma")
    assert wrong is None
    stamps, = executable.stamps
    slices, _ = slices_of(lanes, stamps.sites, device.clock_hz, began(lanes))
    per_block = defaultdict(lambda: defaultdict(list))
    for block, (kind, number), begin, end, text, details in slices:
        per_block[block][kind if kind != "thread" else text].append((begin, end, details))
    for found in per_block.values():
        copies, waits, issued = found["copies"], found["mbarrier_wait"], found["issues a copy"]
        assert len(copies) == len(issued) > 0
        for begin, end, details in copies:
            assert begin < end and any(wait[1] == end and wait[2] == details for wait in waits)
        assert sum(details["groups"] for *_, details in found["products"]) == len(found["issues wgmma"]) // 4 > 0, "four warps issue each"
        assert found["wgmma wait"] and found[RUNS]


@pytest.mark.gpu
@pytest.mark.skipif(HOST_MEMORY, reason="needs a GPU")
def test_without_ptxas(monkeypatch):
    """The driver compiles the text."""
    from dnnkern.host import stamps
    from dnnkern.sketch import problem
    monkeypatch.setattr(stamps, "assembler", lambda: None)
    executable, (lanes,), wrong, device = run(problem("matmul", a=("256x512", "bfloat16"), b=("512x256", "bfloat16")), "wgmma")
    assert wrong is None and executable.stamps[0].binary.code.startswith(b"//")
    slices, _ = slices_of(lanes, executable.stamps[0].sites, device.clock_hz, began(lanes))
    assert {"thread", "copies", "products"} == {kind for _, (kind, _), *_ in slices}


@pytest.mark.gpu
@pytest.mark.skipif(HOST_MEMORY, reason="needs a GPU")
def test_what_has_no_room_is_counted(monkeypatch):
    from dnnkern.host import stamps
    from dnnkern.sketch import problem
    monkeypatch.setattr(stamps, "MEMORY", 4 * 384 * 16 * 20)
    executable, (lanes,), wrong, device = run(problem("matmul", a=("128x4096", "bfloat16"), b=("4096x256", "bfloat16")), "wgmma")
    assert wrong is None and max(len(lane.records) for lane in lanes) <= executable.stamps[0].capacity < 100
    assert all(lane.dropped > 0 for lane in lanes if len(lane.records) == executable.stamps[0].capacity) and any(
        lane.dropped for lane in lanes)
    slices_of(lanes, executable.stamps[0].sites, device.clock_hz, began(lanes))


@pytest.mark.gpu
@pytest.mark.skipif(HOST_MEMORY, reason="needs a GPU")
def test_the_command(tmp_path, capsys):
    from dnnkern.__main__ import main
    path = tmp_path / "t.json"
    assert main(["trace", "matmul", "a=1024x1024:bf16", "b=1024x1024", "--algo", "wgmma", "--out", str(path), "--json"]) == 0
    document, file = json.loads(capsys.readouterr().out), json.loads(path.read_text())
    assert (document["unit"], document["algorithm"], document["dropped"]) == ("ns", "wgmma", 0)
    assert 0 < document["time_ms"] <= 1.5 * document["stamped_ms"] and document["waited_ns"] > 0 and document["steps"] is None
    shown = [e for e in file["traceEvents"] if e["ph"] == "X"]
    assert len(shown) == document["slices"] and len({e["pid"] for e in shown}) == document["blocks"]
    assert {e["cat"] for e in shown} == {"thread", "copies", "products"} and set(ISSUES) - {"issues a store"} <= {e["name"] for e in shown}
    kernel, = file["otherData"]["kernels"]
    assert kernel["registers_with_stamps"] >= kernel["registers"] > 0
