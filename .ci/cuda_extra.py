"""Print the extra that brings toolkit wheels this machine's driver can run: cu13, cu12, or nothing where there is no CUDA device."""
import ctypes


def extra():
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return ""
    count, version = ctypes.c_int(0), ctypes.c_int(0)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)) or driver.cuDriverGetVersion(ctypes.byref(version)):
        return ""
    if not count.value:
        return ""
    return "cu13" if version.value >= 13000 else "cu12"


print(extra())
