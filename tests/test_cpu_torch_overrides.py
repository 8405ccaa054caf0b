"""PyTorch's programs on the processor: tests that take far longer in the simulator."""
import pytest

pytest.importorskip("torch")

import test_torch_above  # noqa: E402
import test_torch_convert  # noqa: E402
import test_torch_distributed  # noqa: E402
import test_torch_modules_optim  # noqa: E402
import test_torch_nn  # noqa: E402
import test_torch_optim  # noqa: E402
import test_torch_overrides  # noqa: E402
import test_torch_programs  # noqa: E402
import test_torch_run  # noqa: E402
import test_torch_table  # noqa: E402
from kit import sized  # noqa: E402
from test_torch_overrides import problems_measured, quick  # noqa: E402, F401 (fixtures)
from test_torch_step import test_a_training_step  # noqa: E402, F401
from test_torch_table import alone  # noqa: E402, F401 (a fixture)

for module in (test_torch_table, test_torch_above, test_torch_optim, test_torch_overrides, test_torch_run, test_torch_nn,
               test_torch_modules_optim, test_torch_convert, test_torch_distributed, test_torch_programs):
    globals().update(sized(module))
