"""Cached calls on Numba's device arrays, as on a GPU (`bench.pretend`), and the arrays that calls return."""
import contextlib
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import dnnkern  # noqa: E402
from bench.cached import calls_of  # noqa: E402
from bench.pretend import numba_array, pretended_gpu  # noqa: E402
from dnnkern.host import arrays, launch, memory, raw  # noqa: E402


@pytest.fixture
def seen(monkeypatch):
    """The values of every execution, and a mark for every array that is described."""
    from numba.cuda.cudadrv import devices
    monkeypatch.setattr(devices._runtime, "ensure_context", contextlib.nullcontext)  # for slices, which ask nothing of it
    with pretended_gpu():
        found, enqueue, describe = [], launch.Executable.enqueue, arrays.Numba.describe

        def enqueued(plan, frame, stream):
            found.append(plan.layout.unpack_from(frame.storage))
            enqueue(plan, frame, stream)
        monkeypatch.setattr(launch.Executable, "enqueue", enqueued)
        monkeypatch.setattr(arrays.Numba, "describe", lambda self, a: found.append("described") or describe(self, a))
        yield found


def at(*some):
    return tuple(int(a.gpu_data.device_pointer) for a in some)


def test_a_call_that_was_made_before_is_not_described(seen):
    a, b, y = (numba_array(shape) for shape in ((4, 8), (8, 3), (4, 3)))
    for _ in range(3):
        dnnkern.matmul(a, b, out=y)
    seen.clear()
    assert dnnkern.matmul(a, b, out=y) is y
    assert seen == [(*at(a, b, y), 0, 1.0, 1.0)]
    others = [numba_array(shape) for shape in ((4, 8), (8, 3), (4, 3))]
    dnnkern.matmul(*others[:2], out=others[2])
    assert seen[1:] == [(*at(*others), 0, 1.0, 1.0)]
    with pretended_gpu():
        for _ in range(3):
            dnnkern.matmul(a, b, out=y)
        assert calls_of(lambda: dnnkern.matmul(a, b, out=y)) <= 14
        ours = dnnkern.matmul(a, b)  # its memory is the library's own, with Numba's context where arrays of Numba's have a proxy
        for _ in range(3):
            dnnkern.matmul(a, b, out=ours)
        assert calls_of(lambda: dnnkern.matmul(a, b, out=ours)) <= 14


@pytest.mark.parametrize("other, words", [(lambda a: numba_array((4, 7)), "K=7"), (lambda a: a[:, ::2], "K=4"),
                                          (lambda a: numba_array((4, 8), "float64"), "float64"),
                                          (lambda a: numba_array((4, 8), "int32"), "int32"), (lambda a: None, "a: got NoneType"),
                                          (lambda a: np.ones((4, 8), np.float32), "a: got a NumPy array")])
def test_other_arrays_are_noticed(seen, other, words):
    a, b, y = (numba_array(shape) for shape in ((4, 8), (8, 3), (4, 3)))
    for _ in range(3):
        dnnkern.matmul(a, b, out=y)
    for _ in range(3):
        with pytest.raises((TypeError, ValueError), match=words):
            dnnkern.matmul(other(a), b, out=y)
    dnnkern.matmul(a, b, out=y)
    assert seen[-1][:3] == at(a, b, y)


def test_slices_and_views(seen):
    """Memory that another array owns; strides; another dtype of the same size."""
    big, b, y = numba_array((8, 8)), numba_array((8, 3)), numba_array((4, 3))
    for a in (big[:4], big[4:], big[::2], big[4:].view(np.float32), big[2:6]):
        for _ in range(4):
            dnnkern.matmul(a, b, out=y)
            assert seen[-1][:3] == at(a, b, y)
    with pytest.raises(ValueError, match="matmul: out partly overlaps a"):
        dnnkern.matmul(big[:4], b, out=numba_view(big, 8))


def numba_view(a, elements):
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    return DeviceNDArray((4, 3), (12, 4), a.dtype, gpu_data=a.gpu_data.view(4 * elements, 4 * elements + 48))


@pytest.mark.parametrize("shape", [(5,), (2, 3), (1, 4, 1), (3, 1, 2, 2), ()])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
def test_results_are_what_numba_makes(seen, shape, dtype):
    """All that an array says of itself, and what it gives when it is cut, turned and reshaped."""
    from numba.cuda.cudadrv.devicearray import DeviceNDArray
    dtype = np.dtype(dtype)
    ours = memory.numba_array(shape, dtype, 0, 0)
    strides = np.empty(shape, dtype).strides
    numbas = DeviceNDArray(shape, strides, dtype, gpu_data=ours.gpu_data)
    assert type(ours) is type(numbas) and vars(ours).keys() == vars(numbas).keys()
    for name, value in vars(numbas).items():
        mine = vars(ours)[name]
        assert (vars(mine) == vars(value) if name == "_dummy" else mine == value) and type(mine) is type(value), name
    for say in (lambda a: a.__cuda_array_interface__, lambda a: a.nbytes, lambda a: dict(a.flags), lambda a: a._numba_type_,
                lambda a: a.is_c_contiguous(), lambda a: a.is_f_contiguous(), lambda a: a.device_ctypes_pointer.value):
        assert say(ours) == say(numbas)
    for cut in (lambda a: a.ravel(), lambda a: a.reshape(a.size, 1),
                lambda a: a[1:] if a.shape and a.shape[0] > 1 else a, lambda a: a.bind(0)):
        mine, theirs = cut(ours), cut(numbas)
        assert (mine.shape, mine.strides, mine.dtype, at(mine)) == (theirs.shape, theirs.strides, theirs.dtype, at(theirs))
    mine = memory.numba_array(shape, dtype, 0, 0)
    mine.gpu_data.context, mine.stream = None, 7  # arrays share no state
    assert ours.stream == 0 and at(mine) != at(ours)


def test_results_are_freed_once(seen, monkeypatch):
    """On the stream, when the last array of the memory goes, or by hand."""
    freed = []
    monkeypatch.setitem(vars(raw), "cuMemFreeAsync", lambda address, stream: freed.append((address, stream)) or 0)
    x = numba_array((4, 8))
    for _ in range(4):
        y = dnnkern.softmax_fwd(x)
    freed.clear()
    y = dnnkern.softmax_fwd(x)
    (address,) = at(y)
    (before,) = freed
    part, watched = y[1:], weakref.ref(y)
    del y
    assert watched() is None and freed == [before]
    del part
    assert freed == [before, (address, 0)]
    y = dnnkern.softmax_fwd(x, stream=9)
    (address,) = at(y)
    y.gpu_data.free()
    del y
    assert freed[2:] == [(address, 9)]


def test_results_while_a_graph_is_captured(seen, monkeypatch):
    def capturing(stream, found):
        found._obj.value = 1
        return 0
    x = numba_array((4, 8))
    for _ in range(4):
        y = dnnkern.softmax_fwd(x)
    monkeypatch.setitem(vars(raw), "cuStreamIsCapturing", capturing)
    with pytest.raises(RuntimeError, match="a CUDA graph is being captured: memory from the library's pool"):
        dnnkern.softmax_fwd(x)
    assert dnnkern.softmax_fwd(x, out=y) is y
