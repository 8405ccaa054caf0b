"""The one file that touches Numba's extension API: intrinsics made of inline PTX, and compilation without a driver.

A second backend (numba-cuda-mlir) would stand beside this file and offer the same names.
"""
import contextlib
import threading

import numpy as np

if not hasattr(np, "row_stack"):  # NumPy 2.5 removed the name, numba-cuda 0.30 looks it up at its first compile
    np.row_stack = np.vstack

from llvmlite import ir  # noqa: E402
from numba import cuda  # noqa: E402
from numba.cuda import compiler as _compiler  # noqa: E402
from numba.cuda import dispatcher as _dispatcher  # noqa: E402
from numba.cuda import types  # noqa: E402
from numba.cuda.extending import intrinsic  # noqa: E402

if getattr(cuda, "implementation", None) != "NVIDIA":
    raise ImportError("dnnkern needs the package numba-cuda; found Numba's own numba.cuda, which is no longer maintained "
                      "(pip install 'numba-cuda[cu13]==0.30.*')")

SCALARS = {name: getattr(types, name) for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
                                                   "float32", "float64")}
_LLVM = {"uint16": ir.IntType(16), "int32": ir.IntType(32), "uint32": ir.IntType(32), "int64": ir.IntType(64), "uint64": ir.IntType(64),
         "float32": ir.FloatType(), "float64": ir.DoubleType()}
_CONSTRAINT = {"uint16": "h", "int32": "r", "uint32": "r", "int64": "l", "uint64": "l", "float32": "f", "float64": "d"}


def kernel_type(name):
    """Numba type of a kernel parameter: ``"float32"``, or ``"float32*"`` for a flat pointer."""
    return types.CPointer(SCALARS[name[:-1]]) if name.endswith("*") else SCALARS[name]


def instruction(text, results, operands, *, memory, pure):
    """An intrinsic that emits `text` with `operands` cast to the named types; see `dnnkern.device.instruction`."""
    results = tuple(results)
    returned = (types.void if not results else SCALARS[results[0]] if len(results) == 1
                else types.UniTuple(SCALARS[results[0]], len(results)) if len(set(results)) == 1
                else types.Tuple([SCALARS[r] for r in results]))
    llvm_result = (ir.VoidType() if not results else _LLVM[results[0]] if len(results) == 1
                   else ir.LiteralStructType([_LLVM[r] for r in results]))
    constraints = ",".join([f"={_CONSTRAINT[r]}" for r in results] + [_CONSTRAINT[o] for o in operands] + ["~{memory}"] * memory)

    def codegen(context, builder, signature, args):
        values = []
        for value, numba_type, operand in zip(args, signature.args, operands):
            if isinstance(value.type, ir.PointerType):
                values.append(builder.ptrtoint(value, ir.IntType(64)))
            else:
                values.append(context.cast(builder, value, numba_type, SCALARS[operand]))
        function = ir.FunctionType(llvm_result, [_LLVM[o] for o in operands])
        out = builder.call(ir.InlineAsm(function, text, constraints, side_effect=not pure), values)
        if not results:
            return context.get_dummy_value()
        if len(results) == 1:
            return out
        return context.make_tuple(builder, returned, [builder.extract_value(out, k) for k in range(len(results))])

    names = ", ".join(f"a{k}" for k in range(len(operands)))
    scope = {"returned": returned, "codegen": codegen}
    exec(f"def emit(typingctx, {names}):\n    return returned({names}), codegen" if names
         else "def emit(typingctx):\n    return returned(), codegen", scope)
    return intrinsic(scope["emit"])


class _OfflineDevice:
    id = 0

    def __init__(self, capability):
        self.compute_capability = capability


_patch_lock = threading.RLock()


@contextlib.contextmanager
def _as_device(capability):
    """Compile for `capability` whatever GPU is there, or none: Numba asks the current device when it compiles a device function."""
    with _patch_lock:
        saved = _dispatcher.get_current_device, _compiler.get_current_device
        _dispatcher.get_current_device = _compiler.get_current_device = lambda: _OfflineDevice(capability)
        try:
            yield
        finally:
            _dispatcher.get_current_device, _compiler.get_current_device = saved


def compile_ptx(kernel, signature, arch):
    """PTX text and entry name of a `cuda.jit` kernel for parameters `signature` (names, see `kernel_type`) and an arch such as "sm_90a"."""
    digits = arch[3:].rstrip("af")
    capability = int(digits[:-1]), int(digits[-1])
    suffix = arch[3 + len(digits):]
    options = {k: v for k, v in kernel.targetoptions.items() if k in ("launch_bounds", "fastmath", "max_registers", "opt", "lineinfo")}
    with _as_device(capability):
        text, _ = cuda.compile(kernel.py_func, tuple(kernel_type(s) for s in signature), device=False, abi="numba", output="ptx",
                               cc=capability + (suffix,) if suffix else capability, **options)
    entry = text[text.index(".entry ") + len(".entry "):].split("(", 1)[0].strip()
    return text, entry
