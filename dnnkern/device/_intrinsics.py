"""The intrinsics that kernels name: light ones, which `_numba` and the modules beside it make when a kernel is compiled that has them."""
import functools

from ._light import Light


class Intrinsic(Light):
    """What has this name there, or, given arguments, what that makes of them."""

    def __init__(self, name, *arguments, **options):
        self.fingerprint = name, arguments, tuple(sorted(options.items()))

    def _make(self):
        from . import _numba, _numba_compile, _numba_mma, _numba_tensor
        name, arguments, options = self.fingerprint
        found = next(vars(home)[name] for home in (_numba, _numba_compile, _numba_mma, _numba_tensor) if name in vars(home))
        return found(*arguments, **dict(options)) if arguments else found

    def __repr__(self):
        name, arguments, options = self.fingerprint
        given = [*map(repr, arguments), *(f"{key}={value!r}" for key, value in options)]
        return f"<intrinsic {name}{'(' * bool(given)}{', '.join(given)}{')' * bool(given)}>"


add, address, advance, shared_address, target_arch, tensor_map_address, wrapping = map(Intrinsic, (
    "add", "address", "advance", "shared_address", "target_arch", "tensor_map_address", "wrapping"))
(array_instruction, bitcast, by_type, instruction, libdevice, matrix_load, matrix_multiply, pin, retype, shuffle, vector_load,
 vector_store) = (functools.partial(Intrinsic, name) for name in (
     "array_instruction", "bitcast", "by_type", "instruction", "libdevice", "matrix_load", "matrix_multiply", "pin", "retype", "shuffle",
     "vector_load", "vector_store"))
