"""What a kernel's inline PTX, NVVM's intrinsics and libdevice's functions are on this processor: one table, a function for each.

`form` enters a function under the texts it is for, in which ``<name>`` stands for any word, ``<name:a|b>`` for one of these and ``...`` for
anything. It gets a `Body`, the operands and those words by name, and returns the result, or several as a list::

    @form("min.<sign:s|u><bits:32|64> $0, $1, $2;")
    def minimum(body, a, b, sign, bits):
        return body.select(body.icmp_signed("<", a, b), a, b)

What is an error or undefined on a GPU may be anything here. A copy that is asynchronous there is done when it is issued.
"""
import functools
import importlib
import re

from llvmlite import ir

from .writer import Refused, size, written

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
HALF, FLOAT, DOUBLE, POINTER, VOID = ir.HalfType(), ir.FloatType(), ir.DoubleType(), ir.PointerType(), ir.VoidType()
_FORMS = []
_HOMES = ".arithmetic", ".memory", ".collective", ".matrix"  # the modules that enter forms


class Form:
    """One entry: `waits` says that the threads of a block wait for each other there."""

    def __init__(self, pattern, make, waits):
        self.pattern, self.make, self.waits = pattern, make, waits


def form(*texts, waits=False):
    """Decorator that enters a function in the table."""
    def enter(make):
        _FORMS.extend(Form(re.compile(_expression(text)), make, waits) for text in texts)
        return make
    return enter


def _expression(text):
    parts = re.split(r"(<\w+(?::[^>]*)?>|\.\.\.)", text)
    for k, part in enumerate(parts):
        if part == "...":
            parts[k] = ".*"
        elif k % 2:
            name, _, choices = part[1:-1].partition(":")
            parts[k] = f"(?P<{name}>{choices or '[A-Za-z0-9_]+'})"
        else:
            parts[k] = re.escape(part)
    return "".join(parts)


@functools.lru_cache(None)
def find(text):
    """(the form of a text, its words); `Refused` where there is none."""
    for home in _HOMES:
        importlib.import_module(home, __package__)
    for entry in _FORMS:
        found = entry.pattern.fullmatch(text)
        if found:
            return entry, {k: v for k, v in found.groupdict().items() if v is not None}
    raise Refused(f"the {'instruction' if ' ' in text or text.endswith(';') else 'function'} {text!r}")


def write(externals, checked=False):
    """(definitions, declarations of what they call and do not define, whether any of them waits) of what a written kernel calls.

    Raises `Refused` with the first that has no form.
    """
    module, waits = ir.Module(), False
    for external in externals:
        entry, words = find(external.text)
        waits |= entry.waits
        kinds = [POINTER if isinstance(t, ir.PointerType) else t for t in external.type.args]
        result = external.type.return_type
        function = ir.Function(module, ir.FunctionType(result, kinds), external.name)
        function.linkage = "internal"
        function.attributes.add("alwaysinline")
        body = Body(function.append_basic_block("entry"))
        body.result, body.words, body.checked = result, words, checked
        body.given.update(a for a in function.args if a.type == POINTER)
        values = entry.make(body, *function.args, **words)
        if not body.block.is_terminated:
            body.end(values)
    defined = [f for f in module.functions if f.blocks]
    return "\n".join(map(str, defined)), {f.name: f.ftype for f in module.functions if not f.blocks}, waits


def declaration(name, function_type):
    """Text of a declaration."""
    return f'declare {written(function_type.return_type)} @"{name}"({", ".join(map(written, function_type.args))})'


class Body(ir.IRBuilder):
    """Builder of one form's function. `result` is the type it returns, a struct where there are several results.

    Where the kernel is `checked`, so is every access by a pointer that it has `given`: an argument, what `pointer` and `shared` make of
    addresses, and what `at` makes of these.
    """
    result, checked = VOID, False

    def __init__(self, block):
        super().__init__(block)
        self.given = set()

    def end(self, values):
        """Return one value, several as a struct, or none."""
        if isinstance(values, (list, tuple)) and isinstance(self.result, ir.LiteralStructType):
            values = functools.reduce(lambda s, kv: self.insert_value(s, kv[1], kv[0]), enumerate(values), self.result(ir.Undefined))
        elif isinstance(values, (list, tuple)):
            values, = values
        return self.ret_void() if isinstance(self.result, ir.VoidType) else self.ret(values)

    @property
    def results(self):
        """Types of the single results."""
        if isinstance(self.result, ir.LiteralStructType):
            return list(self.result.elements)
        return [] if isinstance(self.result, ir.VoidType) else [self.result]

    def function_of(self, name, result, *kinds):
        """A function that is defined elsewhere: by the runtime, by LLVM or the C library."""
        return self.module.globals.get(name) or ir.Function(self.module, ir.FunctionType(result, kinds), name)

    def invoke(self, name, result, *args):
        """Call such a function."""
        return self.call(self.function_of(name, result, *(a.type for a in args)), args)

    def llvm(self, name, *args, result=None, suffix=None):
        """Call LLVM's function of that name for the type of the first operand, which it returns."""
        kind = args[0].type
        return self.invoke(f"llvm.{name}.{suffix or _mangled(kind)}", result or kind, *args)

    def field(self, name):
        """A field of the runtime's records, 32 bits, of the running thread."""
        return self.invoke(f"cpu.get.{name}", I32)

    def shared(self, address):
        """Pointer to a 32-bit shared address."""
        return self._given(self.invoke("cpu.shared_pointer", POINTER, address))

    def pointer(self, address):
        """Pointer to a 64-bit address."""
        return self._given(self.inttoptr(address, POINTER))

    def at(self, pointer, offset, kind=I8):
        """Pointer `offset` elements of a type on."""
        found = self.gep(pointer, [offset if isinstance(offset, ir.Value) else I64(offset)], source_etype=kind)
        return self._given(found) if pointer in self.given else found

    def _given(self, pointer):
        self.given.add(pointer)
        return pointer

    def check(self, pointer, nbytes, writes):
        """Ask whether an access of so many bytes is one that the kernel may make."""
        if self.checked and pointer in self.given:
            self.invoke("cpu.check", VOID, pointer, nbytes, I1(writes))

    def load(self, ptr, *args, typ=None, **keywords):
        """llvmlite's, checked."""
        self.check(ptr, I64(size(typ)), False)
        return super().load(ptr, *args, typ=typ, **keywords)

    def load_atomic(self, ptr, *args, typ=None, **keywords):
        """llvmlite's, checked."""
        self.check(ptr, I64(size(typ)), False)
        return super().load_atomic(ptr, *args, typ=typ, **keywords)

    def store(self, value, ptr, **keywords):
        """llvmlite's, checked."""
        self.check(ptr, I64(size(value.type)), True)
        return super().store(value, ptr, **keywords)

    def atomic_rmw(self, op, ptr, val, ordering):
        """llvmlite's, checked."""
        self.check(ptr, I64(size(val.type)), True)
        return super().atomic_rmw(op, ptr, val, ordering)

    def collect(self, kind, mask, value, operand=None):
        """A collective of the runtime: a shuffle's mode, "ballot", "add", "max" or "min"."""
        return self.invoke(f"cpu.collect.{kind}", I32, mask, value, operand if operand is not None else I32(0))

    def load_as(self, pointer, kind, align=None):
        """The value of a type that a pointer leads to."""
        return self.load(pointer, typ=kind, align=align)

    def is_true(self, value):
        """Whether an integer is not 0, one bit."""
        return self.icmp_unsigned("!=", value, value.type(0))

    def join(self, low, high):
        """Two 32-bit words as one of 64."""
        return self.or_(self.zext(low, I64), self.shl(self.zext(high, I64), I64(32)))

    def words_of(self, value):
        """A 64-bit integer as its two words, the lower first."""
        return [self.trunc(value, I32), self.trunc(self.lshr(value, I64(32)), I32)]


def _mangled(kind):
    return {FLOAT: "f32", DOUBLE: "f64", HALF: "f16"}.get(kind) or f"i{kind.width}"
