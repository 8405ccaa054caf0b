"""Where arrays live in the tests: NumPy in the simulator, torch on a GPU. Every array is a view inside a buffer whose other bytes are
watched."""
import contextlib

import numpy as np
import pytest
from cases import lay, numpy_dtype, poison

from dnnkern.device import HOST_MEMORY
from dnnkern.host.dlpack import Exporter

GUARD = 256  # bytes before and behind; a multiple of every alignment that counts


class Guarded:
    """An array inside a larger buffer: `array` for the call, `snapshot` of the whole buffer, `check` that nothing outside it has changed.

    `tight` leaves the guards away, so that the simulator itself raises on the first access outside.
    """

    def __init__(self, place, values, tight=False):
        self.place, guard = place, 0 if tight else GUARD
        skip = place.misaligned * place.itemsize
        nbytes = guard + skip + max(place.span, 1) * place.itemsize + guard
        host = aligned_bytes(nbytes)
        host[...] = poison(place.dtype)
        self.start = guard + skip + place.first * place.itemsize
        inside = _strided(host, self.start, place)
        if values is not None:
            if all(place.strides) or not place.size:
                inside[...] = np.asarray(values).astype(numpy_dtype(place.dtype))
            else:  # several elements share an address
                kept = tuple(slice(None) if s else slice(0, 1) for s in place.strides)
                inside[kept] = np.asarray(values)[kept].astype(numpy_dtype(place.dtype))
        owned = np.zeros(nbytes, bool)
        _strided(owned, self.start, place, bytewise=True)[...] = True
        self.owned = owned
        self.buffer, self.array = self._upload(host)
        self.before = host.copy()

    def _upload(self, host):
        return host, _strided(host, self.start, self.place)

    def bytes(self):
        """The buffer's bytes now, on the host."""
        return self.buffer

    def read(self):
        """The elements, as float64."""
        return _strided(self.bytes(), self.start, self.place).astype(np.float64)

    def raw(self):
        """The elements' bytes, in order."""
        return self.bytes()[self.owned].copy()

    def assert_untouched(self, what):
        """Nothing at all was written."""
        changed = np.flatnonzero(self.bytes() != self.before)
        assert not changed.size, f"{what} was written: {changed.size} bytes, the first at byte {changed[0] - self.start} of the array"

    def assert_guards(self, what):
        """Nothing outside the elements was written."""
        changed = np.flatnonzero((self.bytes() != self.before) & ~self.owned)
        assert not changed.size, (f"{what}: {changed.size} bytes outside the array were written, the first at byte "
                                  f"{changed[0] - self.start} from its first element ({self.place})")


class OnDevice(Guarded):
    """The same in torch's memory on the GPU; negative strides, which torch has not, through __cuda_array_interface__ or DLPack."""

    def _upload(self, host):
        import torch
        p = self.place
        buffer = torch.from_numpy(host).cuda()
        if any(s < 0 for s in p.strides):
            return buffer, foreign(buffer, buffer.data_ptr() + self.start, p)
        elements = buffer[self.start % p.itemsize:]
        elements = elements[:elements.numel() // p.itemsize * p.itemsize].view(getattr(torch, p.dtype))
        return buffer, elements.as_strided(p.shape, p.strides, self.start // p.itemsize)

    def bytes(self):
        return self.buffer.cpu().numpy()


def foreign(owner, address, place):
    """A device array of any strides, as other libraries' arrays look: by DLPack what NumPy has no name for."""
    if hasattr(np, place.dtype):
        return Interface(owner, address, place)
    return Exporter(address, place.shape, place.dtype, owner.device.index, owner, place.strides)


class Interface:
    """A producer of __cuda_array_interface__."""

    def __init__(self, owner, address, place):
        self.owner = owner
        self.__cuda_array_interface__ = {"shape": place.shape, "strides": tuple(s * place.itemsize for s in place.strides), "version": 3,
                                         "typestr": numpy_dtype(place.dtype).str, "data": (address, False)}


def guarded(place, values=None, tight=False):
    """A `Guarded` where this process runs kernels."""
    return (Guarded if HOST_MEMORY else OnDevice)(place, values, tight)


def aligned_bytes(nbytes):
    """Bytes that begin at a multiple of 16 and are an allocation of exactly this size."""
    host = np.empty(nbytes, np.uint8)
    assert host.__array_interface__["data"][0] % 16 == 0, "malloc is expected to align to 16 bytes"
    return host


def _strided(buffer, start, place, bytewise=False):
    size = place.itemsize
    strides = tuple(s * size for s in place.strides)
    if bytewise:
        return np.ndarray(place.shape + (size,), buffer.dtype, buffer, start, strides + (1,))
    return np.ndarray(place.shape, numpy_dtype(place.dtype), buffer, start, strides)


@contextlib.contextmanager
def elsewhere():
    """Another order of execution: another stream on a GPU, another schedule in the simulator. Yields what to pass as `stream`."""
    if HOST_MEMORY:
        from dnnkern.device.sim import config
        old = config.policy
        config.policy = "lifo"
        try:
            yield None
        finally:
            config.policy = old
    else:
        import torch
        stream = torch.cuda.Stream()
        torch.cuda.synchronize()
        yield stream
        stream.synchronize()


def array(values, dtype="float32", **layout):
    """An array of this process's kind, guarded."""
    values = np.asarray(values, np.float64)
    return guarded(lay(values.shape, dtype, **layout), values).array


def synchronize():
    """Wait for the device."""
    if not HOST_MEMORY:
        import torch
        torch.cuda.synchronize()


def host(y):
    """The values, as float64."""
    synchronize()
    return np.asarray(y.tolist(), np.float64)


# ---- bad input

@contextlib.contextmanager
def refuses(error, words, name):
    """Within, `error` is raised, and its message is one line that begins with the function's name and has all the words."""
    with pytest.raises(error) as caught:
        yield
    message = str(caught.value)
    assert message.startswith(name + ": ") and "\n" not in message, message
    for word in words:
        assert word in message, f"{word!r} is not in {message!r}"


def refused(error, words, function, *args, **kwargs):
    """The call is refused as `refuses` says; of a partial the name is its function's."""
    with refuses(error, words, getattr(function, "func", function).__name__):
        function(*args, **kwargs)
