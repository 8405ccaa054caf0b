"""Serialized graphs: a header, and JSON of the graph and of its plan's algorithms and configurations. Nothing in it is executed.

Header: magic (8 bytes), format and length of the body (4 and 8 bytes, little-endian), the library's version and the device's architecture
(16 bytes each, filled up with zeros), and the SHA-256 of everything before it and of the body. Loading lowers the graph anew, asks each
algorithm whether it can solve its problem, and compiles; anything that does not fit is an `UnsupportedGraphFormat`.
"""
import hashlib
import json
import struct

from .. import __version__
from ..host.device import current_device
from ..host.device import device as device_of
from ._engines import Engines
from ._errors import UnsupportedGraphFormat
from ._ir import GraphSpec
from ._record import plan_of

MAGIC, FORMAT = b"DNNKGRPH", 2
_HEADER = struct.Struct("<8sIQ16s16s")
_DIGEST = 32


def packed(engines, plan, options) -> bytes:
    """A graph and a plan of its engines as bytes; `options` are pygraph's is_override_shape_enabled and sm_count."""
    body = json.dumps({"graph": json.loads(engines.spec.to_json()), **plan.record,
                       "is_override_shape_enabled": options[0], "sm_count": options[1]}).encode()
    header = _HEADER.pack(MAGIC, FORMAT, len(body), __version__.encode(), plan.device.arch.encode())
    return header + hashlib.sha256(header + body).digest() + body


def as_bytes(data) -> bytes:
    """A serialized graph given as bytes, a list of ints, or text of one character a byte."""
    try:
        return data.encode("latin-1") if isinstance(data, str) else bytes(data)
    except (TypeError, ValueError, UnicodeEncodeError):
        raise UnsupportedGraphFormat(f"deserialize: got {type(data).__name__}; expected what serialize() returned: bytes, or a list of "
                                     "their values") from None


def unpacked(data, kernels=None):
    """(GraphSpec, Plan, Engines, options) of a serialized graph, whose kernels a `KernelCache` shares."""
    data = as_bytes(data)
    start = _HEADER.size + _DIGEST
    if len(data) < start:
        raise UnsupportedGraphFormat(f"deserialize: got {len(data)} bytes; expected a header of {start} at least")
    magic, form, length, version, arch = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise UnsupportedGraphFormat(f"deserialize: the data begins with {magic!r}; expected {MAGIC!r}")
    if hashlib.sha256(data[:_HEADER.size] + data[start:]).digest() != data[_HEADER.size:start] or length != len(data) - start:
        raise UnsupportedGraphFormat(f"deserialize: the data is damaged: {len(data) - start} bytes after the header, which do not have "
                                     "its checksum")
    version, arch = version.rstrip(b"\0").decode(), arch.rstrip(b"\0").decode()
    if form != FORMAT or version != __version__:
        raise UnsupportedGraphFormat(f"deserialize: the data has format {form} of version {version}; expected format {FORMAT} of version "
                                     f"{__version__}")
    device = device_of(current_device())
    if arch != device.arch:
        raise UnsupportedGraphFormat(f"deserialize: the plan is for {arch}; the device is {device.arch}")
    try:
        body = json.loads(data[start:])
        engines = Engines(GraphSpec.from_json(body["graph"]), kernels, body["cut"], body["sm_count"])
        plan, options = plan_of(engines, body), (bool(body["is_override_shape_enabled"]), body["sm_count"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:  # of whoever made the checksum too
        raise UnsupportedGraphFormat(f"deserialize: the data is no graph: {type(error).__name__}: {error}") from None
    return engines.spec, plan, engines, options
