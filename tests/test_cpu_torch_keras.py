"""Keras' models on the processor: tests that take far longer in the simulator."""
import test_torch_keras
from kit import sized
from test_torch_keras import alone  # noqa: F401 (a fixture)

globals().update(sized(test_torch_keras))
