"""Streams of every framework, as handles."""
from .memory import introduce
from .scalars import shown


def stream_handle(function, stream) -> int:
    """Handle of a stream, from an int or any framework's stream object."""
    if isinstance(stream, int):
        return stream
    handle = None
    if hasattr(stream, "__cuda_stream__"):
        handle = int(stream.__cuda_stream__()[1])
    for name in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, name, None) if handle is None else None
        if value is not None:
            handle = int(getattr(value, "value", value) or 0)
    if handle is None:
        raise TypeError(f"{function}: stream is {shown(stream)}; expected an int or a stream of Numba, CuPy, PyTorch or cuda.core")
    # PyTorch's own live as long as the process. Weak references to these objects outlive them (2.11), and end in a segmentation fault.
    if not hasattr(stream, "cuda_stream"):
        introduce(stream, handle)
    return handle
