"""Compiled programs of PyTorch on the processor."""
import pytest

pytest.importorskip("torch")

import test_torch_compile  # noqa: E402
import test_torch_compile_joined  # noqa: E402
import test_torch_compile_random  # noqa: E402
from kit import sized  # noqa: E402
from test_torch_compile import forgotten, on_addresses  # noqa: E402, F401 (fixtures)
from test_torch_compile_joined import made_of  # noqa: E402, F401 (a fixture)
from test_torch_table import alone  # noqa: E402, F401 (a fixture)

for module in (test_torch_compile, test_torch_compile_joined, test_torch_compile_random):
    globals().update(sized(module))
