"""Models of transformers on the processor: tests that take far longer in the simulator."""
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import test_torch_transformers  # noqa: E402
from kit import sized  # noqa: E402
from test_torch_table import alone  # noqa: E402, F401 (a fixture)

globals().update(sized(test_torch_transformers))
