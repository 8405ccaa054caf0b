"""Tensor maps: what the tensor memory accelerator needs to know of an array, passed to a kernel by value."""
from . import SIMULATED, instruction

if SIMULATED:
    def tensor_map_address(tensor_map):
        """The map itself stands for its address."""
        return tensor_map
else:
    from ._numba_compile import tensor_map_address  # noqa: F401

prefetch_tensor_map = instruction("prefetch.tensormap [$0];", (), ("uint64",), memory=True, twin=lambda tensor_map: None)
"""Bring a map into the descriptor cache; once a block, before the first copy."""
