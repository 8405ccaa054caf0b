"""What a kernel's inline PTX, NVVM's intrinsics and libdevice's functions are on this processor: one table, a function for each.

`form` enters a function under the texts it is for, in which ``<name>`` stands for any word, ``<name:a|b>`` for one of these and ``...`` for
anything. It gets a `Body`, the operands and those words by name, and returns the result, or several as a list::

    @form("min.<sign:s|u><bits:32|64> $0, $1, $2;")
    def minimum(body, a, b, sign, bits):
        return body.select(body.icmp_signed("<", a, b), a, b)

What is an error or undefined on a GPU may be anything here. A copy that is asynchronous there is done when it is issued.
"""
import contextlib
import functools
import importlib
import re

from llvmlite import ir

from .report import Refused
from .waits import KIND, NEVER
from .writer import size, written

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
HALF, FLOAT, DOUBLE, POINTER, VOID = ir.HalfType(), ir.FloatType(), ir.DoubleType(), ir.PointerType(), ir.VoidType()
_FORMS = []
_HOMES = (".arithmetic", ".memory", ".collective", ".matrix", ".mbarrier", ".cluster", ".tma", ".wgmma")  # the modules that enter forms


class Form:
    """One entry: `waits` is what threads wait for there, as `waits` numbers it."""

    def __init__(self, pattern, make, waits):
        self.pattern, self.make, self.waits = pattern, make, waits


def form(*texts, waits=NEVER):
    """Decorator that enters a function in the table."""
    def enter(make):
        _FORMS.extend(Form(re.compile(_expression(text), re.DOTALL), make, waits) for text in texts)
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
    """(definitions, declarations of what they call and do not define, the most that any of them waits for) of what a written kernel calls.

    Raises `Refused` with the first that has no form.
    """
    module, waits = ir.Module(), NEVER
    for external in externals:
        entry, words = find(external.text)
        waits = max(waits, entry.waits)
        kinds = [POINTER if isinstance(t, ir.PointerType) else t for t in external.type.args]
        result = external.type.return_type
        function = ir.Function(module, ir.FunctionType(result, kinds), external.name)
        function.linkage = "internal"
        function.attributes.add("alwaysinline")
        body = Body(function.append_basic_block("entry"))
        body.result, body.text, body.checked = result, external.text, checked
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
    """Builder of one form's function, of the PTX `text`. `result` is the type it returns, a struct where there are several results.

    Where the kernel is `checked`, so is every access by a pointer that it has `given`: an argument, what `pointer`, `shared` and `remote`
    make of addresses, and what `at` makes of these.
    """
    result, text, checked = VOID, "", False

    def __init__(self, block):
        super().__init__(block)
        self.given = set()

    def end(self, values):
        """Return one value, several as a struct, or none."""
        if isinstance(self.result, ir.VoidType):
            return self.ret_void()
        if isinstance(values, (list, tuple)) and isinstance(self.result, ir.LiteralStructType):
            values = functools.reduce(lambda s, kv: self.insert_value(s, kv[1], kv[0]), enumerate(values), self.result(ir.Undefined))
        elif isinstance(values, (list, tuple)):
            values, = values
        return self.ret(values)

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

    def helper(self, name, result, kinds, write):
        """A function of the forms' own, for `invoke`: ``write(body, *its arguments)`` makes it, once for all forms of a kernel."""
        if name not in self.module.globals:
            function = ir.Function(self.module, ir.FunctionType(result, kinds), name)
            function.linkage = "internal"
            function.attributes.add("noinline")
            body = Body(function.append_basic_block("entry"))
            body.result, body.checked = result, self.checked
            values = write(body, *function.args)
            if not body.block.is_terminated:
                body.end(values)
        return name

    @contextlib.contextmanager
    def loop(self, count):
        """What is written in it runs `count` times, for the `Number` that it gives: 0, 1, ..."""
        count = self.number(count)
        before, head, inside, after = self.block, *(self.append_basic_block(name) for name in ("head", "inside", "after"))
        self.branch(head)
        self.position_at_end(head)
        k = self.phi(count.value.type)
        k.add_incoming(k.type(0), before)
        self.cbranch((self.number(k) < count).value, inside, after)
        self.position_at_end(inside)
        yield self.number(k)
        k.add_incoming((self.number(k) + 1).value, self.block)
        self.branch(head)
        self.position_at_end(after)

    @contextlib.contextmanager
    def waiting(self, kind, operand):
        """What is written in it runs again and again, others in between, until it calls the function that it gives with a true bit.

        The kind of `waits` and its operand, 64 bits, say what for.
        """
        ask, wait, after = (self.append_basic_block(name) for name in ("ask", "wait", "after"))
        self.branch(ask)
        self.position_at_end(ask)
        yield lambda done: self.cbranch(done.value, after, wait)
        self.position_at_end(wait)
        self.wait(kind, operand)
        self.branch(ask)
        self.position_at_end(after)

    def wait(self, kind, operand):
        """Let others run."""
        self.invoke("cpu.wait", VOID, I32(KIND[kind]), operand)

    def number(self, value):
        """An integer with Python's operators."""
        return value if isinstance(value, Number) else Number(self, value)

    def word(self, name):
        """`field` as a `Number`."""
        return self.number(self.field(name))

    def remote(self, address):
        """Pointer to an address in the cluster's window."""
        return self._given(self.invoke("cpu.remote_pointer", POINTER, address))

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

    def copy(self, to, source, nbytes):
        """Copy so many bytes, 64 bits."""
        self.check(to, nbytes, True)
        self.check(source, nbytes, False)
        self.invoke("llvm.memcpy.p0.p0.i64", VOID, to, source, nbytes, I1(0))

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


class Number:
    """An unsigned integer of the IR with Python's operators, also with ints: of the type of the first operand, which wraps."""

    def __init__(self, body, value):
        self.body, self.value = body, value

    def _other(self, other):
        if isinstance(other, Number):
            return other.value
        return self.value.type(other & (1 << self.value.type.width) - 1) if isinstance(other, int) else other

    def wide(self):
        """In 64 bits."""
        return Number(self.body, self.body.zext(self.value, I64)) if self.value.type.width < 64 else self

    def signed_wide(self):
        """In 64 bits, by its sign."""
        return Number(self.body, self.body.sext(self.value, I64)) if self.value.type.width < 64 else self

    def narrow(self):
        """The lower 32 bits."""
        return Number(self.body, self.body.trunc(self.value, I32)) if self.value.type.width > 32 else self

    def choose(self, yes, no):
        """Of a bit: one of two numbers."""
        yes = self.body.number(yes)
        return Number(self.body, self.body.select(self.value, yes.value, yes._other(no)))

    def below(self, other):
        """Comparison by sign."""
        return Number(self.body, self.body.icmp_signed("<", self.value, self._other(other)))


def _operator(method, *before):
    def operate(self, other):
        return Number(self.body, getattr(self.body, method)(*before, self.value, self._other(other)))
    return operate


for _name, _method in {"add": "add", "sub": "sub", "mul": "mul", "floordiv": "udiv", "mod": "urem", "and": "and_", "or": "or_",
                       "xor": "xor", "lshift": "shl", "rshift": "lshr"}.items():
    setattr(Number, f"__{_name}__", _operator(_method))
for _name, _sign in {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}.items():
    setattr(Number, f"__{_name}__", _operator("icmp_unsigned", _sign))


def _mangled(kind):
    return {FLOAT: "f32", DOUBLE: "f64", HALF: "f16"}.get(kind) or f"i{kind.width}"
