"""Every example in a docstring runs, in the simulator."""
import doctest
import importlib
import pkgutil

import pytest

import dnnkern
from dnnkern.device import SIMULATED

pytestmark = pytest.mark.skipif(not SIMULATED, reason="the examples show NumPy arrays")

# Modules that exist for the hardware alone, or run something when imported.
_NOT_HERE = "dnnkern.device._numba"
MODULES = sorted(m.name for m in pkgutil.walk_packages(dnnkern.__path__, "dnnkern.")
                 if not m.name.startswith(_NOT_HERE) and not m.name.endswith("__main__"))


@pytest.mark.parametrize("name", ["dnnkern", *MODULES])
def test_examples(name):
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        if error.name in ("torch", "keras", "cupy", "jax", "onnx", "sklearn", "matplotlib"):
            pytest.skip(f"{error.name} is not installed")
        raise
    result = doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0, f"{result.failed} of {result.attempted} examples in {name} fail"


def test_there_are_examples():
    """And the finder finds them: a function without one would pass unnoticed, none at all must not."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    modules = [importlib.import_module(name) for name in ("dnnkern.matmul", "dnnkern.registry", "dnnkern.host.arrays")]
    found = {t.name for module in modules for t in finder.find(module) if t.examples}
    assert {"dnnkern.matmul.matmul", "dnnkern.registry.register", "dnnkern.host.arrays.view"} <= found


def test_every_public_name_is_documented():
    for name in dnnkern.__all__:
        value = getattr(dnnkern, name)
        assert value.__doc__, name
