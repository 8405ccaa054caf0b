"""LLVM IR to machine code of this processor, and into memory; no C compiler, no toolkit. LLVM is imported when something compiles."""
import functools
import hashlib
from pathlib import Path

from ...host import manifest
from ...host.versions import installed
from . import elf
from .switch import MACHINE


@functools.cache
def _llvm():
    from llvmlite import binding
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    binding.initialize_native_asmparser()
    return binding


@functools.cache
def _machine(processor):
    """(triple, what makes its code): this machine's, or any of another processor's name."""
    llvm = _llvm()
    if processor == MACHINE:
        triple, words = llvm.get_process_triple(), {"cpu": llvm.get_host_cpu_name(), "features": llvm.get_host_cpu_features().flatten()}
    else:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        triple, words = f"{processor}-unknown-linux-gnu", {}
    return triple, llvm.Target.from_triple(triple).create_target_machine(opt=3, jit=True, **words)


@functools.cache
def identity():
    """What machine code depends on beside its IR: LLVM's version, the processor and the instructions it has."""
    known_by = _said_of_it()
    found = manifest.recall("processors", known_by)
    if found is None:
        llvm = _llvm()
        version = ".".join(map(str, llvm.llvm_version_info))
        words = version, llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
        found = hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]
        manifest.remember("processors", known_by, found)
    return found


def _said_of_it():
    """What Linux says of the first core, but for its frequency of the moment, and the version of the package that has LLVM."""
    try:
        with Path("/proc/cpuinfo").open() as file:
            lines = [line for line in iter(file.readline, "\n") if line and not line.startswith(("cpu MHz", "bogomips", "BogoMIPS"))]
    except OSError:
        lines = []
    return hashlib.sha256("".join([*lines, str(installed("llvmlite"))]).encode()).hexdigest()


def assemble(text, processor=MACHINE):
    """Object code of a module: checked, optimised and assembled."""
    llvm = _llvm()
    module, (triple, machine) = llvm.parse_assembly(text), _machine(processor)
    module.triple, module.data_layout = triple, str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.slp_vectorization = options.loop_vectorization = options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)


class Loaded:
    """Object code in memory as long as this object lives: put there by `elf`, or by LLVM where that does not know all that is in it."""

    def __init__(self, code):
        try:
            image = elf.Image(code)
            self.function = self.variable = image.address
        except elf.Unknown:
            llvm = _llvm()
            loader = llvm.Target.from_default_triple().create_target_machine(jit=True)
            self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), loader)
            self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            self._engine.finalize_object()
            self.function, self.variable = self._engine.get_function_address, self._engine.get_global_value_address
