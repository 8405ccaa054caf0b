"""Reading a model: from a file, bytes or a proto, with one clear error where it is none that can run."""
import os

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from ._errors import ModelError

MOST_CHECKED = 2 ** 31 - 1  # bytes of a proto that ONNX's checker takes


def checked(proto, name, folder):
    """(the model with all its data and without functions of its own, {domain: version}); ModelError where it cannot run."""
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError(f"{name}: got a file without a graph; expected an ONNX model")
    if not any(d.domain in ("", "ai.onnx") for d in proto.opset_import) and not proto.opset_import:
        raise ModelError(f"{name}: got no opset_import; expected the opset of domain 'ai.onnx', such as {onnx.defs.onnx_opset_version()}")
    _load_external(proto, name, folder)
    if proto.functions:
        from onnx.inliner import inline_local_functions
        proto = inline_local_functions(proto)
    opsets = {"" if d.domain == "ai.onnx" else d.domain: d.version for d in proto.opset_import}
    _check_opsets(opsets, name)
    _check(proto, name)
    return proto, opsets


def parsed(model):
    """(proto, name for messages, folder) of a proto, bytes or a path."""
    if isinstance(model, onnx.ModelProto):
        return model, model.graph.name or "model", ""
    if isinstance(model, (bytes, bytearray)):
        name, folder, data = "model", "", bytes(model)
    elif isinstance(model, (str, os.PathLike)):
        name, folder = os.fspath(model), os.path.dirname(os.path.abspath(model))
        try:
            with open(model, "rb") as file:
                data = file.read()
        except OSError as error:
            raise ModelError(f"{name}: {error.strerror or error}; expected a file of an ONNX model") from None
    else:
        raise TypeError(f"prepare: model is {type(model).__name__}; expected an onnx.ModelProto, bytes or a path")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError:
        raise ModelError(f"{name}: got {len(data)} bytes that are no ONNX model, or a part of one; expected a protobuf of onnx.ModelProto"
                         ) from None
    return proto, name, folder


def _load_external(proto, name, folder):
    """Read the data that lies in files of its own."""
    try:
        onnx.load_external_data_for_model(proto, folder)
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        missing = sorted({e.value for t in onnx.external_data_helper._get_all_tensors(proto) for e in t.external_data
                          if e.key == "location" and not os.path.exists(os.path.join(folder, e.value))})
        got = f"external data in {', '.join(missing)}, which is missing" if missing else f"external data that cannot be read: {error}"
        raise ModelError(f"{name}: got {got}; expected it in {folder or 'the current folder'}") from None


def _check_opsets(opsets, name):
    """Domains and versions that this version of ONNX has."""
    newest = {"": onnx.defs.onnx_opset_version()}
    for schema in onnx.defs.get_all_schemas():
        if schema.domain:
            newest[schema.domain] = max(newest.get(schema.domain, 1), schema.since_version)
    newest["ai.onnx.ml"] = max(newest.get("ai.onnx.ml", 1), 5)
    for domain, version in opsets.items():
        if domain in newest and not 1 <= version <= max(newest[domain], 1):
            raise ModelError(f"{name}: got opset {version} of domain {domain or 'ai.onnx'!r}; expected 1 to {newest[domain]} "
                             f"(onnx {onnx.__version__})")


def _check(proto, name):
    """ONNX's own checks; the nodes' domains and operators are checked where they become `Node`s, with other words."""
    known = {"", "ai.onnx", *(schema.domain for schema in onnx.defs.get_all_schemas())}
    if proto.ByteSize() > MOST_CHECKED or any(node.domain not in known for node in proto.graph.node):
        return
    for node in proto.graph.node:
        if not onnx.defs.has(node.op_type, node.domain):
            return
    try:
        onnx.checker.check_model(proto)
    except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
        raise ModelError(f"{name}: got a model that ONNX's checker refuses: {error}") from None


class Input:
    """What a graph says of an input.

    Attributes
    ----------
    name : str
    dtype : str or None
        None of what is no tensor.
    dims : tuple of int, str or None; or None
        Extents, names of extents, or what is not said; None where nothing is said.
    """

    def __init__(self, info):
        self.name, self.dtype, self.dims = info.name, None, None
        if info.type.WhichOneof("value") == "tensor_type":
            tensor = info.type.tensor_type
            if tensor.elem_type:
                self.dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)).name
            if tensor.HasField("shape"):
                self.dims = tuple(d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim)

    def check(self, value, known):
        """ModelError of a value that is not what the graph says; `known` has the extents by name, and gets those of this value."""
        if not value.is_tensor:
            if self.dtype is not None:
                raise ModelError(f"input {self.name!r}: got {value.describe()}; expected {self.describe()}")
            return
        fits = self.dtype in (None, value.dtype)
        if fits and self.dims is not None:
            fits = len(self.dims) == value.ndim
            for n, d in zip(value.shape, self.dims if fits else ()):
                fits = fits and (d is None or (known.setdefault(d, n) if isinstance(d, str) else d) == n)
        if not fits:
            extents = {d: known[d] for d in self.dims or () if d in known}
            where = f", with {', '.join(f'{d} = {n}' for d, n in extents.items())}" if extents else ""
            raise ModelError(f"input {self.name!r}: got {value.describe()}; expected {self.describe()}{where}")

    def describe(self):
        """Dtype and shape in words."""
        shape = "any shape" if self.dims is None else f"({', '.join('?' if d is None else str(d) for d in self.dims)})"
        return "a sequence or an optional" if self.dtype is None and self.dims is None else f"{self.dtype} {shape}"
