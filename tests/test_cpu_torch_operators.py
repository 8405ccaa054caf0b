"""The operators and functions of `dnnkern.torch` on the processor: tests that take far longer in the simulator."""
import pytest

pytest.importorskip("torch")

import test_torch_functional  # noqa: E402
import test_torch_operators  # noqa: E402
from kit import sized  # noqa: E402
from test_torch_table import alone  # noqa: E402, F401 (a fixture)

for module in (test_torch_operators, test_torch_functional):
    globals().update(sized(module))
