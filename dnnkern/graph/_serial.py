"""Serialized graphs: a header, JSON of the graph and of its plan's algorithms and configurations, and of plans that were compiled ahead
the kernels' machine code. Nothing in it is Python's.

Header: magic (8 bytes), format, lengths of the JSON and of the kernels (4, 8 and 8 bytes, little-endian), the library's version and the
device's architecture (16 bytes each, filled up with zeros), and the SHA-256 of everything before it and after it. The JSON has the names of
the kernels, which are those in the disk cache, in their order, with their lengths. Loading lowers the graph anew, asks each algorithm
whether it can solve its problem, and compiles what is not there; anything that does not fit is an `UnsupportedGraphFormat`.
"""
import hashlib
import json
import struct

from .. import __version__
from ..host.compile import Binary, parsed
from ._engines import Engines, device_here
from ._errors import UnsupportedGraphFormat
from ._ir import GraphSpec
from ._kernels import KernelCache, machine_code
from ._record import plan_of

MAGIC, FORMAT = b"DNNKGRPH", 3
_HEADER = struct.Struct("<8sIQQ16s16s")
_DIGEST = 32


def packed(engines, plan, options, ahead=False) -> bytes:
    """A graph and a plan of its engines as bytes; `options` are pygraph's is_override_shape_enabled and sm_count. `ahead`: with the
    kernels, where they are a GPU's."""
    if plan.code is None and ahead and not (plan.device.is_processor or plan.device.is_simulated):
        plan.code = machine_code(plan)
    code = plan.code or {}
    body = json.dumps({"graph": json.loads(engines.spec.to_json()), **plan.record, "is_override_shape_enabled": options[0],
                       "sm_count": options[1], "kernels": [[name, len(content)] for name, content in code.items()]}).encode()
    kernels = b"".join(code.values())
    header = _HEADER.pack(MAGIC, FORMAT, len(body), len(kernels), __version__.encode(), plan.device.arch.encode())
    return header + hashlib.sha256(header + body + kernels).digest() + body + kernels


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
    magic, form, length, rest, version, arch = _HEADER.unpack_from(data)
    if magic != MAGIC:
        raise UnsupportedGraphFormat(f"deserialize: the data begins with {magic!r}; expected {MAGIC!r}")
    if hashlib.sha256(data[:_HEADER.size] + data[start:]).digest() != data[_HEADER.size:start] or length + rest != len(data) - start:
        raise UnsupportedGraphFormat(f"deserialize: the data is damaged: {len(data) - start} bytes after the header, which do not have "
                                     "its checksum")
    version, arch = version.rstrip(b"\0").decode(), arch.rstrip(b"\0").decode()
    if form != FORMAT or version != __version__:
        raise UnsupportedGraphFormat(f"deserialize: the data has format {form} of version {version}; expected format {FORMAT} of version "
                                     f"{__version__}")
    device = device_here()
    if device is None or arch != device.arch:
        found = f"the device is {device.arch}" if device else "there is no GPU"
        raise UnsupportedGraphFormat(f"deserialize: the plan is for {arch}; {found}")
    try:
        body = json.loads(data[start:start + length])
        code = dict(_kernels(body["kernels"], data[start + length:], arch))
        if code:
            kernels = KernelCache() if kernels is None else kernels
            kernels.add(code)
        engines = Engines(GraphSpec.from_json(body["graph"]), kernels, body["cut"], body["sm_count"])
        plan, options = plan_of(engines, body), (bool(body["is_override_shape_enabled"]), body["sm_count"])
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:  # of whoever made the checksum too
        raise UnsupportedGraphFormat(f"deserialize: the data is no graph: {type(error).__name__}: {error}") from None
    plan.code = code or None
    return engines.spec, plan, engines, options


def _kernels(listed, data, arch):
    """(name, content) of each kernel that is listed, which the data has side by side; ValueError where one is none of the architecture."""
    at = 0
    for name, length in listed:
        content = data[at:at + length]
        if not isinstance(name, str) or parsed(content, Binary).arch != arch:
            raise ValueError(f"{name!r} is no kernel for {arch}")
        yield name, content
        at += length
    if at != len(data):
        raise ValueError(f"{len(data)} bytes of kernels, of which {at} are listed")
