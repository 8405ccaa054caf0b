"""Launch a kernel on NumPy arrays, in the simulator or on the GPU: what the tests of `dnnkern.device` share."""
import numpy as np

from dnnkern.device import SIMULATED


def launch(kernel, grid, block, *args, shared=0, cluster=1, cooperative=False):
    """Run `kernel` with NumPy arrays (as flat pointers, updated in place), Python ints (int32), floats (float32) and NumPy scalars."""
    if SIMULATED:
        from dnnkern.device.sim import Pointer
        values = [Pointer(a) if isinstance(a, np.ndarray) else np.float32(a) if isinstance(a, float) else a for a in args]
        kernel.simulate(_triple(grid), _triple(block), values, shared=shared, cluster=_triple(cluster), cooperative=cooperative)
        return
    from dnnkern.host.launch import launch_once
    launch_once(kernel, _triple(grid), _triple(block), args, shared=shared, cluster=_triple(cluster), cooperative=cooperative)


def _triple(v):
    v = tuple(v) if isinstance(v, (tuple, list)) else (v,)
    return v + (1,) * (3 - len(v))
