"""JAX's tests on the processor: they take longer in the simulator."""
import test_jax
import test_jax_bench
import test_jax_enable
from kit import sized
from test_jax import alone  # noqa: F401 (a fixture)
from test_jax_bench import quick  # noqa: F401 (a fixture)

for module in (test_jax, test_jax_bench, test_jax_enable):
    globals().update(sized(module))
