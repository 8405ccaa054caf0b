"""Kernels as machine code of the processor at hand: numba-cuda's front end, LLVM, and a fiber for each CUDA thread that waits.

::

    numba-cuda     types and lowers the kernel as for sm_90a                 _numba_compile.lower
    writer         writes its IR without address spaces and NVVM's names     Module
    forms          a function for each PTX text and intrinsic                arithmetic, memory, collective, matrix
    runtime        where a thread is; fibers, barriers, warp collectives
    machine        LLVM: optimise, assemble, load

Typing is the hardware's. Races, fences and unwritten memory are the simulator's: here threads change only where they wait, an asynchronous
copy is done when it is issued. A kernel that cannot go on ends with a `Fault`.
"""
from dataclasses import dataclass

from . import runtime
from .report import BadAccess, Deadlock, Fault, Refused, StackOverflow
from .switch import MACHINE, SWITCHES

__all__ = ["ARCH", "BadAccess", "Code", "Deadlock", "Fault", "Refused", "StackOverflow", "compile_kernel", "ir_text"]

ARCH = "sm_90a"  # whose kernels are lowered


@dataclass(frozen=True)
class Code:
    """A compiled kernel: object code, bytes of static shared memory, and what its threads wait for, as `waits` numbers it.

    Of one that is `checked` the host lists the memory it may access.
    """
    code: bytes
    shared: int
    waits: int
    checked: bool = False


def ir_text(kernel, signature, checked=False, processor=MACHINE):
    """(LLVM IR of a kernel with all that it needs, bytes of static shared memory, what its threads wait for).

    Raises `Refused` with the kernel's name and file where it has something that there is no form for.
    """
    from .._numba_compile import lower
    from . import barriers, faults, forms, waits, writer
    if processor not in SWITCHES:
        raise Refused(f"no switch between threads is written for the processor {processor}")
    modules, entry = lower(kernel, signature, ARCH)
    try:
        module = writer.Module(modules, entry, checked)
        functions, wanted, waiting = forms.write(module.externals, checked)
    except Refused as error:
        code = kernel.py_func.__code__
        where = f"{kernel.py_func.__name__} ({code.co_filename}:{code.co_firstlineno})"
        raise Refused(f"{where} has no form for the processor: {error}") from None
    own = runtime.text(waiting, processor) + waits.text() + barriers.text()
    own += faults.text(processor, checked, module.constants, (module.static, module.shared))
    parts = [own, module.text, functions, _entry(module)]
    parts += [forms.declaration(name, kind) for name, kind in wanted.items() if f'@{name}(' not in own]
    return "\n".join(parts), module.shared, waiting


def _entry(module):
    """The kernel for the runtime: its arguments lie eight bytes apart."""
    lines, values = [], []
    for k, kind in enumerate(module.parameters):
        lines += [f"  %p{k} = getelementptr i64, ptr %arguments, i64 {k}", f"  %v{k} = load {kind}, ptr %p{k}"]
        values.append(f"{kind} %v{k}")
    return "\n".join(["define internal void @cpu.entry(ptr %arguments) #0 {", *lines, f'  call void @"{module.entry}"({", ".join(values)})',
                      "  ret void", "}"])


def compile_kernel(kernel, signature, checked=False, processor=MACHINE) -> Code:
    """A `cuda.jit` kernel for parameter types as `dnnkern.host.compile.compile_kernel` takes them, for this processor or another one;
    `checked`: every access is."""
    from .machine import assemble
    text, shared, waits = ir_text(kernel, signature, checked, processor)
    return Code(assemble(text, processor), shared, waits, checked)
