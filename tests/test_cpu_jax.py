"""JAX's tests on the processor: they take longer in the simulator."""
import test_jax
from kit import sized
from test_jax import alone  # noqa: F401 (a fixture)

globals().update(sized(test_jax))
