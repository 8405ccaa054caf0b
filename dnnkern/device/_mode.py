"""What kernels run on, decided once, as `dnnkern.device` is imported and before numba.cuda is: DEVICE is one of

- "cuda": a GPU. Where there is none kernels can still be compiled.
- "cpu": the processor. numba-cuda's front end lowers a kernel as for sm_90a, LLVM compiles the result (`dnnkern.device.cpu`).
- "simulator": Python, a greenlet a thread (`dnnkern.device.sim`).

The variable DNNKERN_DEVICE names it. ``NUMBA_ENABLE_CUDASIM=1``, or a numba.cuda that was imported as the simulator, asks for the
simulator, and ``=0`` for "cuda". Where nothing is asked for it is a GPU if a driver sees one, else the processor, else, on machines that
the processor's runtime was not written for, the simulator; one warning says what took a GPU's place. No CUDA context is created here.
"""
import ctypes
import os
import platform
import sys
import warnings

VARIABLE, NUMBA_VARIABLE = "DNNKERN_DEVICE", "NUMBA_ENABLE_CUDASIM"
DEVICES = "cuda", "cpu", "simulator"
_PLACES = {"cpu": "on the processor", "simulator": "in the simulator"}


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


def without_processor(asked=False) -> str | None:
    """Why kernels do not run on this machine's processor; None where they do. On aarch64 only if `asked`: no such machine has run them."""
    machine, linux = platform.machine(), sys.platform == "linux"
    if linux and (machine == "x86_64" or machine == "aarch64" and asked):
        return None
    tries = f", where {VARIABLE}=cpu tries it" if linux and machine == "aarch64" else ""
    return f"the processor's runtime is tried out on Linux on x86_64, and this is {sys.platform} on {machine}{tries}"


def asked_for() -> str | None:
    """The device that DNNKERN_DEVICE names; None where it names none, or the index of a GPU."""
    given = os.environ.get(VARIABLE, "")
    if given in DEVICES:
        return given
    if given and not given.isdecimal():
        raise ValueError(f"{VARIABLE}={given!r}; expected one of {', '.join(DEVICES)}, or the index of a GPU")
    return None


def _importer() -> int:
    """The stack level, for a warning of `decide`, of the line outside the package that imports it."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in ("dnnkern", "importlib"):
        level += "importlib" not in frame.f_code.co_filename  # which warnings do not count
        frame = frame.f_back
    return level


def decide() -> str:
    """The device. Where it is the simulator numba's variable is set: numba, and the processes that this one starts, decide alike."""
    asked, simulate, loaded = asked_for(), os.environ.get(NUMBA_VARIABLE, ""), sys.modules.get("numba.cuda")
    loaded = None if loaded is None else bool(loaded.core.config.ENABLE_CUDASIM)
    if asked and simulate and (asked == "simulator") != (simulate != "0"):
        raise ValueError(f"{VARIABLE}={asked} and {NUMBA_VARIABLE}={simulate} contradict each other; expected one of them, or "
                         f"{NUMBA_VARIABLE}={int(asked == 'simulator')}")
    if asked == "cuda" and not driver_devices():
        raise ValueError(f"{VARIABLE}=cuda, and the CUDA driver sees no device; expected cpu or simulator on this machine")
    if asked == "cpu" and without_processor(asked=True):
        raise ValueError(f"{VARIABLE}=cpu: {without_processor(asked=True)}; expected simulator on this machine")
    if asked:
        found = asked
    elif simulate:
        found = "simulator" if simulate != "0" else "cuda"
    elif loaded:
        found = "simulator"
    elif driver_devices():
        found = "cuda"
    else:
        why = without_processor()
        found = "simulator" if why else "cpu"
        warnings.warn(f"dnnkern: no CUDA device found, kernels run {_PLACES[found]} ({f'{why}; ' if why else ''}{VARIABLE}={found} asks "
                      "for it and silences this)", RuntimeWarning, stacklevel=_importer())
    if loaded is not None and loaded != (found == "simulator"):
        who = f"{VARIABLE}={asked}" if asked else f"{NUMBA_VARIABLE}={simulate}" if simulate else "this machine"
        raise ImportError(f"numba.cuda was imported {'as the simulator' if loaded else 'for the hardware'} before dnnkern, and {who} asks "
                          f"for {found}: set the variable before the first import of numba.cuda, or import dnnkern.device before it")
    if found == "simulator":
        os.environ[NUMBA_VARIABLE] = "1"
    return found


DEVICE = decide()
SIMULATED = DEVICE == "simulator"
HOST_MEMORY = DEVICE != "cuda"
