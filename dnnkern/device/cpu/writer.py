"""A kernel's IR as Numba lowers it for a GPU, written as LLVM IR for this processor.

Numba keeps a module as a tree of llvmlite's objects. The tree is walked and written anew, nothing is parsed and nothing in it is changed:

- all modules of a kernel become one; names that are private to a module get its number;
- pointers are opaque and have no address space: a pointer to shared memory is an ordinary one into the block's arena, and its 32-bit
  shared address is the distance from the arena's shared memory;
- a shared array becomes an offset there; the dynamic one begins where the static ones end;
- products and sums may be contracted to fused multiply-adds, as NVVM contracts them for a GPU;
- inline PTX and functions that no module defines (NVVM's intrinsics, libdevice's) become calls of functions that `forms` makes.
"""
import functools

from llvmlite import ir

from .report import Refused

SHARED_SPACE, SHARED_ALIGNMENT, DYNAMIC_ALIGNMENT = 3, 16, 1024
_CONTRACTED = {"fadd", "fsub", "fmul"}
_DROPPED = "llvm.used", "_ZN08NumbaEnv"  # globals that only keep others alive, or that Numba's CPU target would use


class External:
    """What the written module calls and does not define: inline PTX, or a function by its name."""

    def __init__(self, name, text, function_type):
        self.name, self.text, self.type = name, text, function_type


class Module:
    """The kernel's modules as one text.

    Attributes
    ----------
    text : str
        LLVM IR, without the functions of `externals`.
    externals : list of External
    entry : str
        Name of the kernel's function; `parameters` are its types as text.
    shared : int
        Where the dynamic array of shared memory begins, after the `static` bytes of the others.
    constants : list of (str, int)
        Names of global variables, and their bytes.
    checked : bool
        Every access but those of single local variables asks ``@cpu.check`` first.
    """

    def __init__(self, modules, entry, checked=False):
        self.entry, self.parameters, self.checked, self.constants = entry, None, checked, []
        self._externals, self._kinds, self._defined = {}, {}, {f.name for m in modules for f in m.functions if f.blocks}
        lines, done = [], set()
        self._places, self.static, self.shared = _shared_memory(modules)
        for number, module in enumerate(modules):
            for value in module.globals.values():
                if isinstance(value, ir.Function):
                    if value.blocks and value.name not in done:
                        done.add(value.name)
                        lines.append(_Function(self, value, number).text())
                elif not value.name.startswith(_DROPPED) and value.addrspace != SHARED_SPACE:
                    lines.append(_constant(value, number))
                    self.constants.append((_global(value, number), size(value.value_type)))
        self.text = "\n".join(lines)
        self.externals = list(self._externals.values())

    def written(self, kind):
        """A type as text, made once for each of the trees' objects: large structs come again and again."""
        if id(kind) not in self._kinds:
            self._kinds[id(kind)] = written(kind)
        return self._kinds[id(kind)]

    def external(self, text, function_type, prefix):
        """Name of the function that stands for a text."""
        key = text, signature(function_type)
        if key not in self._externals:
            self._externals[key] = External(f"{prefix}.{len(self._externals)}", text, function_type)
        return self._externals[key].name

    def is_defined(self, name):
        return name in self._defined

    def place(self, array):
        """Offset of a shared array."""
        return self._places[array.name]


def _shared_memory(modules):
    """({name of a shared array: its offset}, bytes of the static ones, where dynamic ones begin)."""
    arrays = {v.name: v for m in modules for v in m.globals.values() if isinstance(v, ir.GlobalVariable) and v.addrspace == SHARED_SPACE}
    places, end = {}, 0
    for name, array in arrays.items():
        if array.linkage != "external":
            alignment = max(SHARED_ALIGNMENT, array.align or 0)
            places[name] = end = -(-end // alignment) * alignment
            end += size(array.value_type)
    dynamic = -(-end // DYNAMIC_ALIGNMENT) * DYNAMIC_ALIGNMENT
    places.update((name, dynamic) for name in arrays if name not in places)
    return places, end, dynamic


def size(kind):
    """Bytes of a type."""
    if isinstance(kind, (ir.ArrayType, ir.VectorType)):
        return kind.count * size(kind.element)
    if isinstance(kind, (ir.LiteralStructType, ir.IdentifiedStructType)):
        return sum(map(size, kind.elements))
    if isinstance(kind, ir.PointerType):
        return 8
    return {ir.FloatType: 4, ir.DoubleType: 8, ir.HalfType: 2}.get(type(kind)) or max(8, kind.width) // 8


@functools.lru_cache(None)
def _scalar(kind):
    return str(kind)


def written(kind):
    """A type with opaque pointers."""
    if isinstance(kind, ir.PointerType):
        return "ptr"
    if isinstance(kind, ir.ArrayType):
        return f"[{kind.count} x {written(kind.element)}]"
    if isinstance(kind, ir.VectorType):
        return f"<{kind.count} x {written(kind.element)}>"
    if isinstance(kind, (ir.LiteralStructType, ir.IdentifiedStructType)):
        inside = ", ".join(map(written, kind.elements))
        return f"<{{{inside}}}>" if kind.packed else f"{{{inside}}}"
    return _scalar(kind)


def signature(function_type):
    """(result, parameters) of a function type as texts."""
    return written(function_type.return_type), tuple(map(written, function_type.args))


def _value(value):
    """What stands for an operand in an instruction, without its type."""
    if isinstance(value, ir.values.FormattedConstant):
        if "*" in value.constant:
            raise Refused(f"a constant expression of typed pointers: {value.constant}")
        return value.constant
    if isinstance(value, ir.Constant) and isinstance(value.constant, (list, tuple)):
        inside = ", ".join(f"{written(v.type)} {_value(v)}" for v in value.constant)
        opening, closing = {ir.ArrayType: "[]", ir.VectorType: "<>"}.get(type(value.type), "{}")
        return opening + inside + closing
    return value.get_reference()


def _constant(variable, number):
    """Definition of a global variable: constants of one module, of which several may have the same."""
    value = "zeroinitializer" if variable.initializer is None else _value(variable.initializer)
    kind = "constant" if variable.global_constant else "global"
    aligned = f", align {variable.align}" if variable.align else ""
    return f"@{_global(variable, number)} = internal {kind} {written(variable.value_type)} {value}{aligned}"


def _global(variable, number):
    return f'"{variable.name}.{number}"'


class _Function:
    """One function being written."""

    def __init__(self, module, function, number):
        self.module, self.function, self.number, self.lines = module, function, number, []

    def text(self):
        function = self.function
        kinds = [written(a.type) for a in function.args]
        if function.name == self.module.entry:
            self.module.parameters = kinds
        result = "void" if isinstance(function.return_value.type, ir.VoidType) else written(function.return_value.type)
        arguments = ", ".join(f"{kind} {_value(a)}" for kind, a in zip(kinds, function.args))
        attributes = " ".join(sorted(set(function.attributes) & {"alwaysinline", "noinline"}))
        self.lines = [f'define internal {result} @"{function.name}"({arguments}) {attributes} #0 {{']
        for block in function.blocks:
            self.lines.append(f'"{block.name}":')
            for instruction in block.instructions:
                self._write(instruction)
        return "\n".join([*self.lines, "}"])

    def _operand(self, value):
        """An operand without its type."""
        if isinstance(value, ir.GlobalVariable):
            if value.addrspace == SHARED_SPACE:
                raise Refused(f"the shared array {value.name} in an instruction other than a cast to a generic pointer")
            return "@" + _global(value, self.number)
        return _value(value)

    def _typed(self, value):
        return f"{self.module.written(value.type)} {self._operand(value)}"

    def _write(self, i):
        writer = _WRITERS.get(type(i))
        if writer is None:
            raise Refused(f"the instruction {i.opname} of LLVM ({type(i).__name__})")
        text = writer(self, i)
        if self.module.checked and type(i) in _ACCESSES:
            self._check(i, *_ACCESSES[type(i)](i))
        if text:
            self.lines.append("  " + (text if isinstance(i.type, ir.VoidType) else f"{i.get_reference()} = {text}"))

    def _check(self, i, pointer, kind, writes):
        if not _is_variable(pointer):
            self.lines.append(f"  call void @cpu.check({self._typed(pointer)}, i64 {size(kind)}, i1 {'true' if writes else 'false'})")

    def _plain(self, i):
        """Arithmetic: two operands of one type, or one."""
        flags = [*i.flags, "contract"] if i.opname in _CONTRACTED and "contract" not in i.flags else i.flags
        operands = ", ".join(map(self._operand, i.operands))
        return f"{' '.join([i.opname, *flags])} {written(i.operands[0].type)} {operands}"

    def _listed(self, i):
        """Operands with their types, in order."""
        return f"{i.opname} {', '.join(map(self._typed, i.operands))}"

    def _cast(self, i):
        operand, = i.operands
        source, target = operand.type, i.type
        if i.opname == "addrspacecast" and isinstance(operand, ir.GlobalVariable) and operand.addrspace == SHARED_SPACE:
            return f"call ptr @cpu.shared(i64 {self.module.place(operand)})"
        if i.opname == "ptrtoint" and source.addrspace == SHARED_SPACE:
            return f"call {written(target)} @cpu.shared_address.{written(target)}(ptr {self._operand(operand)})"
        if i.opname == "inttoptr" and target.addrspace == SHARED_SPACE:
            raise Refused("a shared address made a pointer")
        name = "bitcast" if i.opname == "addrspacecast" else i.opname
        return f"{name} {self._typed(operand)} to {written(target)}"

    def _call(self, i):
        callee = i.callee
        kind = callee.function_type
        if isinstance(callee, ir.InlineAsm):
            name = self.module.external(callee.asm, kind, "ptx")
        elif not isinstance(callee, ir.Function):
            raise Refused("a call of a function pointer")
        elif self.module.is_defined(callee.name):
            name = callee.name
        else:
            name = self.module.external(callee.name, kind, "outside")
        return f'call {written(kind.return_type)} @"{name}"({", ".join(map(self._typed, i.args))})'

    def _load(self, i):
        return f"load {written(i.type)}, {self._typed(i.operands[0])}{_alignment(i)}"

    def _store(self, i):
        value, pointer = i.operands
        if isinstance(value.type, ir.ArrayType) and isinstance(value, ir.Constant) and value.constant is None:
            # LLVM makes a store of each element of it: a local array of 8000 floats took 9 s to compile
            return f"call void @llvm.memset.p0.i64({self._typed(pointer)}, i8 0, i64 {size(value.type)}, i1 false)"
        return f"store {', '.join(map(self._typed, i.operands))}{_alignment(i)}"

    def _atomic(self, i):
        return f"atomicrmw {i.operation} {', '.join(map(self._typed, i.operands))} {i.ordering}"

    def _exchange(self, i):
        return f"cmpxchg {', '.join(map(self._typed, i.operands))} {i.ordering} {i.failordering}"

    def _alloca(self, i):
        count = f", {self._typed(i.operands[0])}" if i.operands else ""
        return f"alloca {written(i.allocated_type)}{count}{_alignment(i)}"

    def _address(self, i):
        inside = " inbounds" if i.inbounds else ""
        return f"getelementptr{inside} {written(i.source_etype)}, {', '.join(map(self._typed, i.operands))}"

    def _compare(self, i):
        return f"{' '.join([i.OPNAME, *i.flags, i.op])} {self._typed(i.operands[0])}, {self._operand(i.operands[1])}"

    def _phi(self, i):
        pairs = ", ".join(f'[{self._operand(value)}, {block.get_reference()}]' for value, block in i.incomings)
        return f"phi {written(i.type)} {pairs}"

    def _part(self, i):
        return f"{self._listed(i)}, {', '.join(map(str, i.indices))}"

    def _switch(self, i):
        cases = " ".join(f"{self._typed(value)}, label {block.get_reference()}" for value, block in i.cases)
        return f"switch {self._typed(i.value)}, label {i.default.get_reference()} [{cases}]"

    def _return(self, i):
        return f"ret {self._typed(i.operands[0])}" if i.operands else "ret void"

    def _branch(self, i):
        target, = i.operands
        return f"br label {target.get_reference()}"

    def _conditional(self, i):
        condition, yes, no = i.operands
        return f"br {self._typed(condition)}, label {yes.get_reference()}, label {no.get_reference()}"

    def _bare(self, i):
        return i.opname

    def _fence(self, i):
        return f"fence {i.ordering}"

    def _nothing(self, i):
        return None


def _is_variable(pointer):
    """Whether it leads to a local variable, or to a part of one that is known when the kernel is compiled."""
    while isinstance(pointer, (ir.instructions.CastInstr, ir.instructions.GEPInstr)):
        pointer, *indices = pointer.operands
        if not all(isinstance(index, ir.Constant) for index in indices):
            return False
    return isinstance(pointer, ir.instructions.AllocaInstr)


def _alignment(i):
    return f", align {i.align}" if i.align is not None else ""


_KINDS = ir.instructions
# Of instructions that access memory: the pointer, the type of what is there, and whether it is written.
_ACCESSES = {
    _KINDS.LoadInstr: lambda i: (i.operands[0], i.type, False), _KINDS.StoreInstr: lambda i: (i.operands[1], i.operands[0].type, True),
    _KINDS.AtomicRMW: lambda i: (i.operands[0], i.operands[1].type, True),
    _KINDS.CmpXchg: lambda i: (i.operands[0], i.operands[1].type, True)}
_WRITERS = {
    ir.Instruction: _Function._plain, _KINDS.SelectInstr: _Function._listed, _KINDS.CastInstr: _Function._cast,
    _KINDS.CallInstr: _Function._call, _KINDS.LoadInstr: _Function._load, _KINDS.StoreInstr: _Function._store,
    _KINDS.AtomicRMW: _Function._atomic, _KINDS.CmpXchg: _Function._exchange, _KINDS.AllocaInstr: _Function._alloca,
    _KINDS.GEPInstr: _Function._address, _KINDS.ICMPInstr: _Function._compare, _KINDS.FCMPInstr: _Function._compare,
    _KINDS.PhiInstr: _Function._phi, _KINDS.ExtractElement: _Function._listed, _KINDS.InsertElement: _Function._listed,
    _KINDS.ExtractValue: _Function._part, _KINDS.InsertValue: _Function._part, _KINDS.SwitchInstr: _Function._switch,
    _KINDS.Ret: _Function._return, _KINDS.Branch: _Function._branch, _KINDS.ConditionalBranch: _Function._conditional,
    _KINDS.Unreachable: _Function._bare, _KINDS.Fence: _Function._fence, _KINDS.Comment: _Function._nothing}
