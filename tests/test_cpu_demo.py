"""The demo's network on the processor, beside float64 and PyTorch: test_demo.py's tests, which take twice as long in the simulator."""
import test_demo
from kit import sized
from test_demo import trained  # noqa: F401 (a fixture)

globals().update(sized(test_demo))
