"""A GPU that does nothing, for processes that `install` it first: a driver that knows an H200 and takes every launch for done.

Its functions are C's, of the driver's types, so that calls of them are real calls: what they were given is looked at, and `calls` lists
them. `tests/test_driver.py` compares the types with the driver's header.
"""
import ctypes

import numpy as np

from dnnkern.host import raw

NUMBERS = {"COMPUTE_CAPABILITY_MAJOR": 9, "COMPUTE_CAPABILITY_MINOR": 0, "MULTIPROCESSOR_COUNT": 132, "L2_CACHE_SIZE": 60 << 20,
           "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448, "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
           "MAX_REGISTERS_PER_MULTIPROCESSOR": 65536, "CLOCK_RATE": 1980000, "MEMORY_CLOCK_RATE": 2619000, "GLOBAL_MEMORY_BUS_WIDTH": 6144}
NAME, MEMORY = "NVIDIA H200", 140 << 30
_ATTRIBUTES = {getattr(raw, "CU_DEVICE_ATTRIBUTE_" + name): value for name, value in NUMBERS.items()}
_WORDS = {1: ("CUDA_ERROR_INVALID_VALUE", "invalid argument"), 719: ("CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure")}
_TEXTS = {status: tuple(map(ctypes.create_string_buffer, map(str.encode, words))) for status, words in _WORDS.items()}


class Library:
    """libcuda. `calls` are the functions called, in turn; `fails` says which are to return another status than 0; `loaded`, `launched`
    and `maps` are what they were given.

    Handles are 64 bits wide: one that is cut to 32 is not known.
    """
    HANDLE = 0x7F12_3456_7000

    def __init__(self, devices=1):
        self.devices, self.calls, self.fails, self.wrong, self.current = devices, [], {}, [], {}
        self.loaded, self.launched, self.maps = [], [], []

    def __getattr__(self, symbol):
        name = next((name for name in raw.FUNCTIONS if raw.symbol(name) == symbol), None)
        if name is None:
            raise AttributeError(f"undefined symbol: {symbol}")
        function = ctypes.CFUNCTYPE(ctypes.c_int, *raw.types_of(name))(lambda *given: self._call(name, given))
        setattr(self, symbol, function)
        return function

    def _call(self, name, given):
        self.calls.append(name)
        try:
            if name in self.fails:
                return self.fails[name]
            kind = raw.FUNCTIONS[name][0]
            answer = getattr(self, "_" + name, None)
            if kind is None or name == "cuCtxGetDevice":  # it may have no answer
                return answer(*given) or 0 if answer is not None else 0
            kind.from_address(given[0]).value = answer(*given[1:]) if answer is not None else self.HANDLE
            return 0
        except Exception as error:  # ctypes would print it and go on
            self.wrong.append(f"{name}{given}: {type(error).__name__}: {error}")
            return 1

    def _cuGetErrorName(self, status, at, which=0):
        if status not in _TEXTS:
            return 1
        ctypes.c_void_p.from_address(at).value = ctypes.addressof(_TEXTS[status][which])

    def _cuGetErrorString(self, status, at):
        return self._cuGetErrorName(status, at, 1)

    def _cuDeviceGetCount(self):
        return self.devices

    def _cuDeviceGet(self, index):
        assert 0 <= index < self.devices
        return 7 + index  # a device is not its index

    def _cuDeviceGetName(self, at, size, device):
        assert size > len(NAME) and device >= 7
        ctypes.memmove(at, NAME.encode() + b"\0", len(NAME) + 1)

    def _cuDeviceGetAttribute(self, attribute, device):
        assert device >= 7
        return _ATTRIBUTES[attribute]

    def _cuDeviceTotalMem(self, device):
        return MEMORY

    def _cuDevicePrimaryCtxRetain(self, device):
        return self.HANDLE + device

    def _cuCtxGetCurrent(self):
        import threading
        return self.current.get(threading.get_ident(), 0)

    def _cuCtxSetCurrent(self, context):
        import threading
        assert context is None or context & ~0xFFF == self.HANDLE
        self.current[threading.get_ident()] = context or 0

    def _cuCtxGetDevice(self, at):
        current = self._cuCtxGetCurrent()
        if not current:
            return 201  # no context
        ctypes.c_int.from_address(at).value = current - self.HANDLE

    def _cuPointerGetAttribute(self, attribute, address):
        assert attribute == raw.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL and address > 1 << 32
        return 0

    def _cuStreamIsCapturing(self, stream, at):
        ctypes.c_int.from_address(at).value = raw.CU_STREAM_CAPTURE_STATUS_NONE

    def _cuLibraryLoadData(self, code, *options):
        assert options == (None, None, 0, None, None, 0)
        self.loaded.append(ctypes.string_at(code, 4))
        return self.HANDLE

    def _cuLibraryGetKernel(self, library, name):
        assert library == self.HANDLE
        self.loaded.append(ctypes.string_at(name).decode())
        return self.HANDLE + 1

    def _cuKernelSetAttribute(self, attribute, value, kernel, device):
        assert kernel == self.HANDLE + 1 and device >= 7
        self.loaded.append((attribute, value))

    def _cuKernelGetFunction(self, kernel):
        assert kernel == self.HANDLE + 1
        return self.HANDLE + 2

    def _cuLaunchKernelEx(self, config, function, parameters, extra):
        assert function == self.HANDLE + 2 and extra is None and ctypes.c_void_p.from_address(parameters).value
        self.launched.append(tuple((ctypes.c_uint * 7).from_address(config)))

    def _cuTensorMapEncodeTiled(self, at, kind, rank, address, extents, strides, box, steps, *how):
        assert at % 64 == 0 and address
        self.maps.append((kind, [ctypes.c_uint64.from_address(extents + 8 * k).value for k in range(rank)],
                          [ctypes.c_uint64.from_address(strides + 8 * k).value for k in range(rank - 1)],
                          [ctypes.c_uint32.from_address(box + 4 * k).value for k in range(rank)],
                          [ctypes.c_uint32.from_address(steps + 4 * k).value for k in range(rank)], how))
        ctypes.memset(at, 0x5A, 128)

    def _cuTensorMapEncodeIm2col(self, at, kind, rank, address, extents, strides, lower, upper, channels, pixels, steps, *how):
        corners = [[ctypes.c_int.from_address(corner + 4 * k).value for k in range(rank - 2)] for corner in (lower, upper)]
        self._cuTensorMapEncodeTiled(at, kind, rank, address, extents, strides, steps, steps, *how)
        self.maps[-1] = (*self.maps[-1][:3], *corners, channels, pixels, *self.maps[-1][4:])


def install(library=None):
    """Put it in a GPU's place; returns the library."""
    library = library or Library()
    for name in raw.FUNCTIONS:
        vars(raw).pop(name, None)
    raw._library = lambda: library
    return library


class Array:
    """An array that says it is on the GPU."""

    def __init__(self, *shape):
        self.memory = np.zeros(shape, np.float32)
        self.__cuda_array_interface__ = {**self.memory.__array_interface__, "version": 3, "stream": None}
