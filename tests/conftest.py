"""Four ways to run the tests, decided as `dnnkern.device` decides it, once a process:

- the simulator (NUMBA_ENABLE_CUDASIM=1): everything but what compiles;
- compiling alone (NUMBA_ENABLE_CUDASIM=0 and no GPU): the files test_ptx*.py;
- the processor (DNNKERN_DEVICE=cpu, or nothing and no GPU): the files test_cpu*.py;
- a GPU: everything but the simulator's own tests and doctests. What runs kernels there is marked `gpu`.
"""
import atexit
import contextlib
import gc
import os
import shutil
import tempfile
import warnings

import in_parts  # before anything that asks for GPUs
import kept
import pytest

# Simulated kernels and compilers make many objects and few cycles: at the collector's usual pace some of the simulator's tests took 65 s
# instead of 48, some of those that compile 123 s instead of 114.
gc.set_threshold(200_000, 50, 100)

# Before dnnkern is imported: what the user or an earlier run measured must decide nothing here, so each process has a cache of its own.
# Compiled kernels alone are kept (`kept`): compiling is most of a run.
_CACHE = tempfile.mkdtemp(prefix="dnnkern-tests-")
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
os.environ["DNNKERN_CACHE_DIR"] = _CACHE
with contextlib.suppress(OSError):  # where nothing can be kept, everything is compiled again
    for _part in ("cubin", "cpu"):
        (kept.folder() / _part).mkdir(parents=True, exist_ok=True)
        os.symlink(kept.folder() / _part, os.path.join(_CACHE, _part))
for _name in ("DNNKERN_LOG", "DNNKERN_CHECK", "DNNKERN_SIM_POLICY", "DNNKERN_SIM_SEED", "COLUMNS"):
    os.environ.pop(_name, None)
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # else JAX takes most of a GPU at once, of several processes the first
os.environ["DNNKERN_PREFER"] = "device"  # tests of what is chosen mean the choice of a GPU

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from dnnkern.device import DEVICE, SIMULATED
    from dnnkern.device._mode import driver_devices
    from dnnkern.host import chosen

chosen.KEEPS = False  # tests change what choices rest on; but processes that they start keep them, and test_chosen.py does

import selection  # noqa: E402

MODE = DEVICE if DEVICE != "cuda" else "gpu" if driver_devices() else "compile"
_HOST_ONLY = ("test_docs", "test_cases")


def _range(text):
    """"N", or "M:N"."""
    first, _, last = text.rpartition(":")
    return range(int(first or 0), int(last))


def pytest_addoption(parser):
    parser.addoption("--seeds", type=_range, metavar="[M:]N", help="random graphs: of seeds 0, or M, to N - 1, instead of a few")
    parser.addoption("--full", action="store_true", help="every algorithm on every problem, instead of a sample with each at least once")
    parser.addoption("--select", action="store_true", help="what has changed, and a sample of the rest (see selection.py)")
    parser.addoption("--since", metavar="COMMIT", help="with --select: changed is what differs from here; default: where all tests passed")
    parser.addoption("--record", metavar="FILE", help="write what every test took")
    parser.addoption("--few", type=int, metavar="N", help="N of the tests selected by -k and -m, from all over them")
    parser.addoption("--each", type=int, metavar="N", help="as --few, of each algorithm in the contract")
    in_parts.add_options(parser)
    parser.addoption("--sanitize", action="store_true", help="rerun the contract under compute-sanitizer: memcheck, racecheck, synccheck")
    parser.addoption("--sanitized", type=int, metavar="N",
                     help="with --sanitize: N problems of each algorithm (default: of memcheck all, of the others, which are slow, 12)")


def pytest_configure(config):
    for line in ("gpu: runs kernels, and this process runs them on a GPU", "ptx: compiles for hardware, needs no GPU",
                 "slow: more than a few seconds; on a GPU, gigabytes",
                 "sized: of values at a size that only takes time in the simulator; runs on the processor and on a GPU instead"):
        config.addinivalue_line("markers", line)
    if MODE == "cpu" and not hasattr(config, "workerinput"):
        from dnnkern.host.device import device
        device(0)  # measures the processor, once for all of xdist's processes: what is drawn rests on it
    if config.getoption("--select") and MODE in ("simulator", "cpu") and hasattr(config, "workerinput"):
        selection.sample.share(int(config.workerinput["workerid"].removeprefix("gw")), config.workerinput["workercount"])
    if config.getoption("--few") or config.getoption("--each"):
        config.pluginmanager.register(Few())
    if config.getoption("--select"):
        config.pluginmanager.register(selection.Selection(MODE, config.getoption("--since")))
    in_parts.configure(config)
    if config.getoption("--record"):
        config.pluginmanager.register(selection.Recorder(config.getoption("--record")))


def pytest_collection_finish():
    """All that collecting has made stays: no collection of the collector's looks at it again, of which some tests run many."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish(session):
    if not hasattr(session.config, "workerinput"):
        kept.prune()


def pytest_report_header(config):
    return f"dnnkern: {MODE}{', the full product' if config.getoption('--full') else ''}"


def pytest_ignore_collect(collection_path):
    name = collection_path.name
    if not name.startswith("test_"):
        return None
    compiles, simulates, processor = (name.startswith(f"test_{word}") for word in ("ptx", "sim", "cpu"))
    ignored = {"simulator": compiles or processor, "compile": not compiles, "gpu": simulates or processor, "cpu": not processor}[MODE]
    return True if ignored else None


def pytest_collection_modifyitems(config, items):
    for item in items:
        stem = item.path.stem
        if stem.startswith("test_ptx"):
            item.add_marker("ptx")
        elif MODE == "gpu" and stem not in _HOST_ONLY:
            item.add_marker("gpu")
    asked = config.getoption("-m") or ""
    away = [word for word in ("slow", *(["sized"] if SIMULATED else [])) if not (config.getoption("--full") or word in asked)]
    left = [item for item in items if any(item.get_closest_marker(word) for word in away)]
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not any(item.get_closest_marker(word) for word in away)]


class Few:
    """`--few` and `--each`, applied to what all other plugins have selected."""

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config, items):
        few, each = config.getoption("--few"), config.getoption("--each")
        groups = {}
        for item in items:
            groups.setdefault(tuple(item.name.split("-")[:2]) if each else (), []).append(item)
        kept = [item for group in groups.values() for item in group[::max(1, -(-len(group) // (each or few)))]]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


@pytest.fixture
def simulated():
    """Skips where there is a GPU."""
    if not SIMULATED:
        pytest.skip("of the simulator")


@pytest.fixture
def on_gpu():
    """Skips in the simulator."""
    if SIMULATED:
        pytest.skip("needs a GPU")


@pytest.fixture
def few_multiprocessors(request, monkeypatch):
    """In the simulator a device of four multiprocessors, or as many as a test's parameter says; blocks have several tiles then."""
    if not SIMULATED:
        yield
        return
    import dataclasses

    import contract
    from dnnkern.host import device as host
    small = dataclasses.replace(host.device(0), sms=getattr(request, "param", 4))
    monkeypatch.setattr(contract, "device", lambda: small)
    monkeypatch.setattr(host, "_SIMULATOR", small)
    host.device.cache_clear()
    yield
    monkeypatch.undo()
    host.device.cache_clear()


@pytest.fixture
def shared_out(monkeypatch):
    """On the processor every launch of several blocks is shared out to three threads of the system."""
    from dnnkern.device.cpu import launch
    monkeypatch.setattr(launch, "WORTH_SHARING", 0.0)
    monkeypatch.setattr(launch, "cores", lambda: 3)
    launch._pool.cache_clear()
    yield
    launch._pool.cache_clear()
