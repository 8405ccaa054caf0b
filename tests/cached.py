"""Calls that were made before, seen as on a GPU: what tests of them share."""
import collections
import itertools
import struct
import sys
import threading
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import dnnkern  # noqa: E402
from bench.pretend import pretended_gpu  # noqa: E402
from dnnkern.host import arrays, guards, launch, raw  # noqa: E402

torch = pytest.importorskip("torch")


class Seen:
    """What kernels were given, and how many arrays were described, since `clear`; how often each of the driver's functions was called.

    Kernels that are captured run when their graph is launched. `graphs` are what those that are there were given.
    """
    ASIDE = 0xA51DE000  # the handle of every stream that is made

    def __init__(self, monkeypatch):
        self.values, self.by_thread, self.described, self.shifted = [], {}, 0, 0
        self.driver, self.graphs, self.captured, self.handles = collections.Counter(), {}, [], itertools.count(0x6000)
        enqueue = launch.Executable.enqueue
        for name in raw.FUNCTIONS:
            monkeypatch.setitem(vars(raw), name, self._counted(name, getattr(raw, name)))

        def enqueued(plan, frame, stream):
            values = plan.layout.unpack_from(frame.storage)
            behind = struct.unpack_from(f"<{len(plan.shifted)}Q", frame.storage, 8 * len(values))
            assert behind == tuple(values[position] + offset for position, offset in plan.shifted)
            self.shifted = len(behind)
            (self.captured if stream == self.ASIDE else self.values).append(values)
            self.by_thread[threading.get_ident()] = values
            return enqueue(plan, frame, stream)

        def counted(function):
            def count(kind, *rest):
                self.described += 1
                return function(kind, *rest)
            return count
        monkeypatch.setattr(launch.Executable, "enqueue", enqueued)
        for name in ("describe", "describe_call"):
            monkeypatch.setattr(arrays.Torch, name, counted(getattr(arrays.Torch, name)))

    def _counted(self, name, function):
        own = getattr(self, "_" + name, function)

        def call(*given):
            self.driver[name] += 1
            return own(*given)
        return call

    def _cuStreamCreate(self, at, flags):
        at._obj.value = self.ASIDE
        return 0

    def _cuStreamBeginCapture(self, stream, mode):
        self.captured.clear()
        return 0

    def _cuGraphInstantiateWithFlags(self, at, graph, flags):
        at._obj.value = next(self.handles)
        (self.graphs[at._obj.value],) = self.captured
        return 0

    def _cuGraphLaunch(self, graph, stream):
        self.values.append(self.graphs[graph])
        return 0

    def _cuGraphExecDestroy(self, graph):
        del self.graphs[graph]
        return 0

    def clear(self):
        self.values.clear()
        self.driver.clear()
        self.described = 0

    def addresses(self, count):
        """The first ones of the latest execution."""
        return self.values[-1][:count]


@pytest.fixture(name="seen")
def seen_fixture(monkeypatch):
    with pretended_gpu():
        yield Seen(monkeypatch)


@pytest.fixture(name="either_way", params=[True, False], ids=["guards", "described"])
def either_way_fixture(request, monkeypatch):
    """With guards, and where torch has none."""
    if not request.param:
        monkeypatch.setattr(guards, "_is_sound", lambda: False)
    return request.param


def lists(count=3, shape=(4, 4), **how):
    return [[torch.ones(shape, **how) for _ in range(count)] for _ in range(3)]


def step(lists, **more):
    params, grads, momenta = lists
    dnnkern.sgd_step(params, grads, momenta, lr=0.5, momentum=0.5, **more)


def warm(lists):
    for _ in range(3):
        step(lists)


def flat(lists):
    return tuple(t.data_ptr() for some in lists for t in some)


def tensors(*shapes, **how):
    return [torch.ones(shape, **how) for shape in shapes]


def product(a, b, y=None, **more):
    return dnnkern.matmul(a, b, out=y, **more)


@pytest.fixture(name="abc")
def abc_fixture(seen):
    """Operands and the result of a product that was made before, with a site."""
    found = tensors((4, 8), (8, 3), (4, 3))
    for _ in range(3):
        product(*found)
    seen.clear()
    return found


def now(seen, *arrays):
    """Whether the latest execution was of these arrays."""
    return seen.addresses(len(arrays)) == tuple(t.data_ptr() for t in arrays)
