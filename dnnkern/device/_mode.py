"""GPU or simulator: decided once, before numba is imported.

``NUMBA_ENABLE_CUDASIM=1`` asks for the simulator and ``=0`` for the hardware (compiling needs no GPU). Where it is not set, a driver that
sees a device decides; without one the simulator runs, and one warning says so. Nothing here creates a CUDA context.
"""
import ctypes
import os
import sys
import warnings

VARIABLE = "NUMBA_ENABLE_CUDASIM"


def driver_devices() -> int:
    """Number of CUDA devices the driver sees; 0 where there is no driver."""
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return 0
    return count.value


def decide() -> bool:
    """True for the simulator. Sets the variable, so that numba decides alike."""
    asked = os.environ.get(VARIABLE, "")
    if asked:
        simulated = asked != "0"
    elif driver_devices():
        simulated = False
    else:
        simulated = True
        warnings.warn(f"dnnkern: no CUDA device found, kernels run in the simulator ({VARIABLE}=1 asks for it and silences this)",
                      RuntimeWarning, stacklevel=2)
    loaded = sys.modules.get("numba.cuda")
    if loaded is not None and bool(loaded.core.config.ENABLE_CUDASIM) != simulated:
        if simulated:
            raise ImportError("numba.cuda was imported for the hardware before dnnkern, and there is no CUDA device to run on: set "
                              f"{VARIABLE}=1 before the first import of numba.cuda, or import dnnkern.device before it")
        raise ImportError("numba.cuda was imported as the simulator before dnnkern, and "
                          f"{VARIABLE} now asks for the hardware: set it before the first import of numba.cuda")
    os.environ[VARIABLE] = "1" if simulated else "0"
    return simulated


SIMULATED = decide()
