"""LLVM IR to machine code of this processor, and into memory; no C compiler, no toolkit."""
import functools
import hashlib

from llvmlite import binding as llvm

from .switch import MACHINE

llvm.initialize_native_target()
llvm.initialize_native_asmprinter()
llvm.initialize_native_asmparser()


@functools.cache
def _machine(processor):
    """(triple, what makes its code): this machine's, or any of another processor's name."""
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
    version = ".".join(map(str, llvm.llvm_version_info))
    words = version, llvm.get_process_triple(), llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:16]


def assemble(text, processor=MACHINE):
    """Object code of a module: checked, optimised and assembled."""
    module, (triple, machine) = llvm.parse_assembly(text), _machine(processor)
    module.triple, module.data_layout = triple, str(machine.target_data)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.slp_vectorization = options.loop_vectorization = options.loop_unrolling = True
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    return machine.emit_object(module)


class Loaded:
    """Object code in memory as long as this object lives."""

    def __init__(self, code):
        loader = llvm.Target.from_default_triple().create_target_machine(jit=True)
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), loader)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def function(self, name):
        """Address of a function."""
        return self._engine.get_function_address(name)

    def variable(self, name):
        """Address of a global variable."""
        return self._engine.get_global_value_address(name)
