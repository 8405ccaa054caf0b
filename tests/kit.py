"""Launch a kernel on NumPy arrays, on a GPU, on the processor or in the simulator: what the tests of `dnnkern.device` share."""
from dnnkern.device import HOST_MEMORY
from dnnkern.host.executable import launch_once


def launch(kernel, grid, block, *args, shared=0, cluster=1, cooperative=False):
    """Run `kernel` with NumPy arrays (as flat pointers, updated in place), pairs of an array and the spec of a tensor map, Python ints
    (int32), floats (float32) and NumPy scalars."""
    launch_once(kernel, _triple(grid), _triple(block), args, shared=shared, cluster=_triple(cluster), cooperative=cooperative)


def _triple(v):
    v = tuple(v) if isinstance(v, (tuple, list)) else (v,)
    return v + (1,) * (3 - len(v))


def needs(major, minor=0):
    """Mark: skipped on a GPU of a lower compute capability; the simulator has all instructions."""
    import pytest
    lower = False
    if not HOST_MEMORY:
        from numba import cuda
        lower = cuda.is_available() and tuple(cuda.get_current_device().compute_capability) < (major, minor)
    return pytest.mark.skipif(lower, reason=f"needs compute capability {major}.{minor}")


def sized(module):
    """{name: test} of a module's tests that are marked `sized`, or all of a module that is, for the processor's files."""
    found, whole = {}, getattr(getattr(module, "pytestmark", None), "name", None) == "sized"
    for name, test in vars(module).items():
        if not callable(test):  # a module may have marks, too
            continue
        marks = [mark.name for mark in getattr(test, "pytestmark", ())]
        if "sized" in marks or whole and name.startswith("test_"):
            found[f"test_{module.__name__.removeprefix('test_')}_{name.removeprefix('test_')}"] = test
    return found
