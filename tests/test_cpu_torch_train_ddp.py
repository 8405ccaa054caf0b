"""Training on several ranks of the processor."""
import pytest

pytest.importorskip("torch")

import test_torch_train_ddp  # noqa: E402
from kit import sized  # noqa: E402
from test_torch_train_ddp import copy, half, whole  # noqa: E402, F401 (fixtures)

globals().update(sized(test_torch_train_ddp))
