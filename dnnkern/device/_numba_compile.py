"""Kernel parameter types, tensor maps by value, and compilation to LTO-IR and PTX without a driver."""
import contextlib
import re
import sys
import threading

from ._numba import SCALARS, cuda  # before what follows: it makes NumPy and Numba fit each other

from llvmlite import ir
from llvmlite.ir.values import ArgumentAttributes
from numba.cuda import cgutils
from numba.cuda import codegen as _codegen
from numba.cuda import compiler as _compiler
from numba.cuda import dispatcher as _dispatcher
from numba.cuda import types
from numba.cuda.cudadrv import nvvm as _nvvm
from numba.cuda.datamodel.models import PrimitiveModel
from numba.cuda.extending import intrinsic, register_model

from . import _numba_fields, _numba_typing  # noqa: F401  the types of marked functions take part in what is compiled
from ._collections import no_collections
from ._fingerprint import share_functions
from ._numba_speed import install, load
from ._parameters import fields, is_structure


class TensorMapType(types.Type):
    """A CUtensorMap as a kernel parameter: 128 bytes, by value, in constant memory."""

    def __init__(self):
        super().__init__(name="TensorMap")


TENSOR_MAP = TensorMapType()
_BLOB = ir.ArrayType(ir.IntType(8), 128)


@register_model(TensorMapType)
class _TensorMapModel(PrimitiveModel):
    def __init__(self, manager, numba_type):
        super().__init__(manager, numba_type, _BLOB.as_pointer())


class _ByValue(ArgumentAttributes):
    """``byval`` in the words of NVVM's dialect for the architecture: from sm_100 on pointers are opaque and it names the type."""

    def __init__(self, text):
        super().__init__()
        self.text = text

    def _to_list(self, typ):
        return [self.text, "align 64"]


@intrinsic
def tensor_map_address(typingctx, tensor_map):
    """Generic address of a tensor map that is a kernel parameter. Call it in the kernel itself: a device function would get a copy."""
    def codegen(context, builder, signature, args):
        function, module = builder.function, builder.module
        maps = [(n, a) for n, a in enumerate(function.args) if isinstance(a.type, ir.PointerType) and a.type.pointee == _BLOB]
        if maps and not isinstance(maps[0][1].attributes, _ByValue):
            # NOTE: all maps of a kernel in one grid_constant node: NVVM reads the first node only, and copies the others to local memory.
            # Its indices count from 1; here a result pointer, gone later, comes first.
            text = "byval([128 x i8])" if _dispatcher.get_current_device().compute_capability >= (10, 0) else "byval"
            for _, a in maps:
                a.attributes = _ByValue(text)
            indices = module.add_metadata([ir.Constant(ir.IntType(32), n) for n, _ in maps])
            node = module.add_metadata((function, ir.MetaDataString(module, "grid_constant"), indices))
            cgutils.get_or_insert_named_metadata(module, "nvvm.annotations").add(node)
        return builder.ptrtoint(args[0], ir.IntType(64))
    return types.uint64(tensor_map), codegen


def kernel_type(name):
    """Numba type of a kernel parameter: "float32", "float32*" (flat pointer), "int64x6" (tuple of six), a NamedTuple class (see
    `_parameters`), "tensormap" (by value), "float32 2 C" (array of two dimensions and that layout)."""
    if is_structure(name):
        return types.BaseTuple.from_types([kernel_type(t) for _, t in fields(name)], name)
    if name == "tensormap":
        return TENSOR_MAP
    try:
        if " " in name:
            scalar, dims, layout = name.split()
            return types.Array(SCALARS[scalar], int(dims), layout)
        if name.endswith("*"):
            return types.CPointer(SCALARS[name[:-1]])
        if "x" in name:
            scalar, count = name.split("x")
            return types.UniTuple(SCALARS[scalar], int(count))
        return SCALARS[name]
    except KeyError:
        raise ValueError(f"type {name!r} of a kernel's argument; expected one of {', '.join(SCALARS)}, or a pointer: float32*") from None


install()
_numba_fields.install()
load()


class _OfflineDevice:
    id = 0

    def __init__(self, capability):
        self.compute_capability = capability


_patch_lock = threading.RLock()
MOST_FRAMES = 10_000
"""Of Python's stack while Numba compiles: it infers a device function's types within its caller's, 25 frames for each, and a node of an
anchor's program is two functions, so that 20 nodes are past the 1,000 of an interpreter."""


@contextlib.contextmanager
def _as_device(capability):
    """Compile for `capability` whatever GPU is there, or none: Numba asks the current device when it compiles a device function."""
    with _patch_lock, no_collections():
        saved, frames = (_dispatcher.get_current_device, _compiler.get_current_device), sys.getrecursionlimit()
        _dispatcher.get_current_device = _compiler.get_current_device = lambda: _OfflineDevice(capability)
        sys.setrecursionlimit(max(frames, MOST_FRAMES))
        try:
            yield
        finally:
            sys.setrecursionlimit(frames)
            _dispatcher.get_current_device, _compiler.get_current_device = saved


def compile_ltoir(kernel, signature, arch):
    """LTO-IR, of which the linker makes machine code, and entry name of a `cuda.jit` kernel.

    Its parameters are `signature` (names, see `kernel_type`); `arch` is such as "sm_90a".
    """
    with _kept_libraries() as libraries:
        code = _compile(kernel, signature, arch, "ltoir")
    library, = libraries
    return code, library._entry_name


def compile_ptx(kernel, signature, arch):
    """The same as PTX, to be read: text and entry name."""
    text = _compile(kernel, signature, arch, "ptx")
    return text, re.search(r"\.entry\s+([^\s(]+)", text)[1]


def compile_llvm(kernel, signature, arch):
    """The same as Numba lowers it, to be read: what NVVM would be given. Needs no toolkit."""
    capability, _ = _capability(arch)
    with _as_device(capability):
        share_functions(kernel)
        return _compiler.compile_cuda(kernel.py_func, None, tuple(map(kernel_type, signature)), cc=capability).library.get_llvm_str()


def lower(kernel, signature, arch):
    """The same as the trees of llvmlite's objects that Numba makes, and the entry name: (modules, the kernel's first; entry).

    They are shared with other kernels that call the same functions: read them, change nothing. Needs no toolkit.
    """
    capability, _ = _capability(arch)
    with _as_device(capability), _without_libnvvm():
        share_functions(kernel)
        library, _ = _compiler._compile_pyfunc_with_fixup(kernel.py_func, tuple(map(kernel_type, signature)), device=False, abi="numba",
                                                          cc=capability, lto=True)
    return list(dict.fromkeys(library.modules)), library._entry_name


class _Constants:
    """What Numba asks libNVVM for while it lowers: a constant of its own, and the version of the IR."""
    data_layout = _nvvm._datalayout

    def get_ir_version(self):
        return 2, 0, 3, 2


@contextlib.contextmanager
def _without_libnvvm():
    """Within, Numba lowers kernels also where libNVVM is not installed. Hold the lock of `_as_device`."""
    found = _nvvm.NVVM
    if _nvvm._nvvm is None:
        _nvvm.NVVM = _Constants
    try:
        yield
    finally:
        _nvvm.NVVM = found


def _capability(arch):
    """((9, 0), "a") of "sm_90a"."""
    digits = arch[3:].rstrip("af")
    return (int(digits[:-1]), int(digits[-1])), arch[3 + len(digits):]


def _compile(kernel, signature, arch, output):
    capability, suffix = _capability(arch)
    options = {k: v for k, v in kernel.targetoptions.items() if k in ("launch_bounds", "fastmath", "max_registers", "opt", "lineinfo")}
    with _as_device(capability):
        share_functions(kernel)
        code, _ = cuda.compile(kernel.py_func, tuple(kernel_type(s) for s in signature), device=False, abi="numba", output=output,
                               cc=capability + (suffix,) if suffix else capability, **options)
    return code


@contextlib.contextmanager
def _kept_libraries():
    """The libraries whose LTO-IR is asked for: `cuda.compile` returns the code alone. Of this thread: others wait."""
    with _patch_lock:
        kept, plain = [], _codegen.CUDACodeLibrary.get_ltoir

        def get_ltoir(self, cc=None):
            kept.append(self)
            return plain(self, cc)
        _codegen.CUDACodeLibrary.get_ltoir = get_ltoir
        try:
            yield kept
        finally:
            _codegen.CUDACodeLibrary.get_ltoir = plain
