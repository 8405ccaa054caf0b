"""Intrinsics made of inline PTX. With `_numba_compile`, the only place that touches Numba's extension API.

A second backend (numba-cuda-mlir) would stand beside these two files and offer the same names.
"""
import warnings

import numpy as np

from ._collections import no_collections

if not hasattr(np, "row_stack"):  # NumPy 2.5 removed the name, numba-cuda 0.30 looks it up at its first compile
    np.row_stack = np.vstack

from llvmlite import ir  # noqa: E402

with no_collections(stays=True), warnings.catch_warnings():
    # NumPy 2.5 deprecates a timedelta64 without a unit, which numba-cuda 0.30 makes as it is imported
    warnings.filterwarnings("ignore", "The 'generic' unit for NumPy timedelta is deprecated", DeprecationWarning)
    from numba import cuda  # noqa: E402
from numba.cuda import types  # noqa: E402
from numba.cuda.extending import intrinsic  # noqa: E402
from numba.cuda.core import errors  # noqa: E402
from numba.cuda.descriptor import cuda_target  # noqa: E402

if getattr(cuda, "implementation", None) != "NVIDIA":
    raise ImportError("dnnkern needs the package numba-cuda; found Numba's own numba.cuda, which is no longer maintained "
                      "(pip install 'numba-cuda[cu13]==0.30.*')")
if cuda.core.config.ENABLE_CUDASIM:
    raise ImportError("numba.cuda was imported as the simulator after dnnkern.device, which compiles in this process: set "
                      "NUMBA_ENABLE_CUDASIM before the first import of either")

SCALARS = {name: getattr(types, name) for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16",
                                                   "float32", "float64")}
_LLVM = {"uint16": ir.IntType(16), "int32": ir.IntType(32), "uint32": ir.IntType(32), "int64": ir.IntType(64), "uint64": ir.IntType(64),
         "float32": ir.FloatType(), "float64": ir.DoubleType()}
_CONSTRAINT = {"uint16": "h", "int32": "r", "uint32": "r", "int64": "l", "uint64": "l", "float32": "f", "float64": "d"}


def type_of(value):
    """Type of a module, a function, an intrinsic or a cast as kernels name it."""
    context = cuda_target.typing_context
    try:
        return context.resolve_value_type(value)
    except ValueError:  # an intrinsic that was made since the context looked
        context.refresh()
        return context.resolve_value_type(value)


def instruction(text, results, operands, *, memory, pure, convergent=False):
    """An intrinsic that emits `text` with `operands` cast to the named types; see `dnnkern.device.instruction`."""
    results = tuple(results)
    returned = (types.void if not results else SCALARS[results[0]] if len(results) == 1
                else types.UniTuple(SCALARS[results[0]], len(results)) if len(set(results)) == 1
                else types.Tuple([SCALARS[r] for r in results]))
    llvm_result = (ir.VoidType() if not results else _LLVM[results[0]] if len(results) == 1
                   else ir.LiteralStructType([_LLVM[r] for r in results]))
    early = "&" * (len(results) > 1)  # a text of several instructions may write one result before it has read every operand
    constraints = ",".join([f"={early}{_CONSTRAINT[r]}" for r in results] + [_CONSTRAINT[o] for o in operands] + ["~{memory}"] * memory)

    def codegen(context, builder, signature, args):
        values = []
        for value, numba_type, operand in zip(args, signature.args, operands):
            if isinstance(value.type, ir.PointerType):
                values.append(builder.ptrtoint(value, ir.IntType(64)))
            else:
                values.append(context.cast(builder, value, numba_type, SCALARS[operand]))
        function = ir.FunctionType(llvm_result, [_LLVM[o] for o in operands])
        out = builder.call(ir.InlineAsm(function, text, constraints, side_effect=not pure), values)
        if convergent:
            out.attributes.add("convergent")
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


def _target_arch(builder):
    module, byte = builder.module, ir.IntType(8)
    key = bytearray(b"__CUDA_ARCH\0")
    name = module.globals.get("dnnkern.cuda_arch")
    if name is None:
        name = ir.GlobalVariable(module, ir.ArrayType(byte, len(key)), "dnnkern.cuda_arch")
        name.linkage, name.global_constant, name.initializer = "private", True, ir.Constant(name.type.pointee, key)
    reflect = module.globals.get("__nvvm_reflect") or ir.Function(module, ir.FunctionType(ir.IntType(32), [byte.as_pointer()]),
                                                                  "__nvvm_reflect")
    return builder.call(reflect, [builder.bitcast(name, byte.as_pointer())])


@intrinsic
def target_arch(typingctx):
    """Architecture the kernel is compiled for: 900 for sm_90. A constant to the compiler: a branch on it costs nothing."""
    return types.int32(), lambda context, builder, signature, args: _target_arch(builder)


def _index64(context, builder, index, index_type):
    return context.cast(builder, index, index_type, types.intp)


def _element(context, builder, base_type, base, index_type, index):
    """Address of element `index` of an array, or of a flat pointer: those are declared global memory."""
    if isinstance(base_type, types.CPointer):
        space = base.type.pointee.as_pointer(addrspace=1)
        base = builder.addrspacecast(base, space)
    else:
        base = context.make_array(base_type)(context, builder, base).data
    return builder.gep(base, [_index64(context, builder, index, index_type)])


def _vector_element(base_type, count, what):
    """Element type of a vector access, or the error that says what it can access."""
    ok = isinstance(base_type, types.CPointer) or isinstance(base_type, types.Array) and base_type.ndim == 1
    element = base_type.dtype if ok else None
    if element not in SCALARS.values() or element.bitwidth * count not in (16, 32, 64, 128):
        raise errors.TypingError(f"{what} of {count} elements takes a flat pointer or a 1-D array and 2 to 16 bytes, not {base_type}")
    return element


def _asm_access(element, count, op, cache):
    """Opcode, register constraint and LLVM register type of an asm access of `count` elements."""
    if element.bitwidth < 16:
        raise errors.TypingError(f"{op}.{cache}: no instruction for {element}; reinterpret the pointer as 32-bit words")
    register = ir.IntType(element.bitwidth)
    vector = f".v{count}" if count > 1 else ""
    return f"{op}.global{cache}{vector}.b{element.bitwidth}", {16: "h", 32: "r", 64: "l"}[element.bitwidth], register


def _braces(first, count):
    names = ", ".join(f"${first + k}" for k in range(count))
    return f"{{{names}}}" if count > 1 else names


def vector_load(count, cache="", predicated=False, into=False):
    """Intrinsic ``load(p, i)`` of `count` elements as one access: the values as a tuple (one as a scalar).

    ``predicated`` adds a last argument; where it is zero nothing is read and the values are zero. ``into`` puts ``buffer, k`` in front: the
    values become ``buffer[k:k+count]``. Plain loads are visible to the optimiser; a cache operator (".nc") makes a volatile instruction,
    which keeps its place in the program.
    """
    def values_of(context, builder, element, base_type, base, index_type, index, ok_type, ok):
        if not cache and not predicated:
            pointer = _element(context, builder, base_type, base, index_type, index)
            llvm = pointer.type.pointee
            if count == 1:
                return [builder.load(pointer)]
            vector = builder.bitcast(pointer, ir.VectorType(llvm, count).as_pointer(addrspace=pointer.type.addrspace))
            value = builder.load(vector, align=element.bitwidth * count // 8)
            return [builder.extract_element(value, ir.Constant(ir.IntType(32), k)) for k in range(count)]
        op, constraint, register = _asm_access(element, count, "ld", cache)
        if not isinstance(base_type, types.CPointer):
            raise errors.TypingError(f"{op} reads global memory: it takes a flat pointer, not {base_type}")
        pointer = _element(context, builder, base_type, base, index_type, index)
        text, operands = f"{op} {_braces(0, count)}, [${count}];", [builder.ptrtoint(pointer, ir.IntType(64))]
        constraints = [f"={'&' * predicated}{constraint}"] * count + ["l"]
        if predicated:
            zero = " ".join(f"mov.b{element.bitwidth} ${k}, 0;" for k in range(count))
            text = f"{{ .reg .pred p; setp.ne.b32 p, ${count + 1}, 0; {zero} @p {text} }}"
            operands.append(context.cast(builder, ok, ok_type, types.uint32))
            constraints.append("r")
        if not cache:
            constraints.append("~{memory}")
        result = register if count == 1 else ir.LiteralStructType([register] * count)
        function = ir.FunctionType(result, [o.type for o in operands])
        out = builder.call(ir.InlineAsm(function, text, ",".join(constraints), side_effect=True), operands)
        out = [out] if count == 1 else [builder.extract_value(out, k) for k in range(count)]
        return [builder.bitcast(v, pointer.type.pointee) for v in out]

    def emit(buffer, k, p, i, ok):
        element = _vector_element(p, count, "vector load")
        given = (buffer, k) * into + (p, i) + (ok,) * predicated
        returned = types.void if into else element if count == 1 else types.UniTuple(element, count)
        if into and buffer.dtype != element:
            raise errors.TypingError(f"the buffer holds {buffer.dtype}, the pointer {element}")

        def codegen(context, builder, signature, args):
            at = 2 * into
            numba_types = signature.args
            ok_type, ok_value = (numba_types[at + 2], args[at + 2]) if predicated else (None, None)
            values = values_of(context, builder, element, numba_types[at], args[at], numba_types[at + 1], args[at + 1], ok_type, ok_value)
            if into:
                start = _element(context, builder, numba_types[0], args[0], numba_types[1], args[1])
                for n, value in enumerate(values):
                    builder.store(value, builder.gep(start, [ir.Constant(ir.IntType(64), n)]))
                return context.get_dummy_value()
            return values[0] if count == 1 else context.make_tuple(builder, returned, values)
        return returned(*given), codegen

    if into and predicated:
        def load(typingctx, buffer, k, p, i, ok):
            return emit(buffer, k, p, i, ok)
    elif into:
        def load(typingctx, buffer, k, p, i):
            return emit(buffer, k, p, i, None)
    elif predicated:
        def load(typingctx, p, i, ok):
            return emit(None, None, p, i, ok)
    else:
        def load(typingctx, p, i):
            return emit(None, None, p, i, None)
    return intrinsic(load)


def vector_store(count, cache="", source=False):
    """Intrinsic ``store(p, i, values)`` of `count` elements as one access; with ``source`` it is ``store(p, i, buffer, k)``."""
    def emit(p, i, values, k):
        element = _vector_element(p, count, "vector store")
        if source:
            given = (p, i, values, k)
            if values.dtype != element:
                raise errors.TypingError(f"the buffer holds {values.dtype}, the pointer {element}")
        else:
            given = (p, i, values)
            if (len(values) if isinstance(values, types.BaseTuple) else 1) != count:
                raise errors.TypingError(f"vector store of {count} elements got {values}")

        def codegen(context, builder, signature, args):
            pointer = _element(context, builder, signature.args[0], args[0], signature.args[1], args[1])
            if source:
                start = _element(context, builder, values, args[2], signature.args[3], args[3])
                scalars = [builder.load(builder.gep(start, [ir.Constant(ir.IntType(64), n)])) for n in range(count)]
            elif count == 1 and not isinstance(values, types.BaseTuple):
                scalars = [context.cast(builder, args[2], values, element)]
            else:
                scalars = [context.cast(builder, builder.extract_value(args[2], n), values[n], element) for n in range(count)]
            if not cache and count == 1:
                builder.store(scalars[0], pointer)
            elif not cache:
                vector_type = ir.VectorType(pointer.type.pointee, count)
                vector = ir.Constant(vector_type, ir.Undefined)
                for n, scalar in enumerate(scalars):
                    vector = builder.insert_element(vector, scalar, ir.Constant(ir.IntType(32), n))
                builder.store(vector, builder.bitcast(pointer, vector_type.as_pointer(addrspace=pointer.type.addrspace)),
                              align=element.bitwidth * count // 8)
            else:
                if not isinstance(p, types.CPointer):
                    raise errors.TypingError(f"st.global{cache} takes a flat pointer, not {p}")
                op, constraint, register = _asm_access(element, count, "st", cache)
                operands = [builder.ptrtoint(pointer, ir.IntType(64))] + [builder.bitcast(s, register) for s in scalars]
                function = ir.FunctionType(ir.VoidType(), [o.type for o in operands])
                constraints = ",".join(["l"] + [constraint] * count + ["~{memory}"])
                builder.call(ir.InlineAsm(function, f"{op} [$0], {_braces(1, count)};", constraints, side_effect=True), operands)
            return context.get_dummy_value()
        return types.void(*given), codegen

    if source:
        def store(typingctx, p, i, buffer, k):
            return emit(p, i, buffer, k)
    else:
        def store(typingctx, p, i, values):
            return emit(p, i, values, None)
    return intrinsic(store)


def retype(name):
    """Intrinsic: a flat pointer, or a 64-bit address, as a flat pointer to `name`."""
    target = types.CPointer(SCALARS[name])

    def emit(typingctx, p):
        if not isinstance(p, (types.CPointer, types.Integer)):
            raise errors.TypingError(f"cannot make a pointer of {p}")

        def codegen(context, builder, signature, args):
            llvm = context.get_value_type(target)
            if isinstance(p, types.CPointer):
                return builder.bitcast(args[0], llvm)
            return builder.inttoptr(context.cast(builder, args[0], p, types.uint64), llvm)
        return target(p), codegen
    return intrinsic(emit)


@intrinsic
def advance(typingctx, p, n):
    """The flat pointer `n` elements on."""
    if not isinstance(p, types.CPointer):
        raise errors.TypingError(f"advance takes a flat pointer, not {p}")

    def codegen(context, builder, signature, args):
        return builder.gep(args[0], [_index64(context, builder, args[1], signature.args[1])])
    return p(p, n), codegen


@intrinsic
def address(typingctx, p, i):
    """Generic 64-bit address of element `i` of a flat pointer or a 1-D array."""
    def codegen(context, builder, signature, args):
        if isinstance(signature.args[0], types.CPointer):
            base = args[0]
        else:
            base = context.make_array(signature.args[0])(context, builder, args[0]).data
        return builder.ptrtoint(builder.gep(base, [_index64(context, builder, args[1], signature.args[1])]), ir.IntType(64))
    return types.uint64(p, i), codegen


@intrinsic
def shared_address(typingctx, array, i):
    """32-bit shared-window address of element `i` of a 1-D shared array."""
    if not isinstance(array, types.Array) or array.ndim != 1:
        raise errors.TypingError(f"shared_address takes a 1-D shared array, not {array}")

    def codegen(context, builder, signature, args):
        pointer = _element(context, builder, signature.args[0], args[0], signature.args[1], args[1])
        shared = builder.addrspacecast(pointer, pointer.type.pointee.as_pointer(addrspace=3))
        return builder.ptrtoint(shared, ir.IntType(32))
    return types.uint32(array, i), codegen


def shuffle(mode, clamp):
    """Intrinsic ``shuffle(members, value, operand)`` of any 32- or 64-bit scalar, ``shfl.sync.<mode>`` with the clamp operand `clamp`."""
    word = ir.IntType(32)
    text = ir.InlineAsm(ir.FunctionType(word, [word] * 3), f"shfl.sync.{mode}.b32 $0, $1, $2, {clamp}, $3;", "=r,r,r,r", side_effect=True)

    def emit(typingctx, members, value, operand):
        returned = types.int32 if value == types.boolean else value
        if getattr(returned, "bitwidth", 0) not in (32, 64):
            raise errors.TypingError(f"a shuffle moves 32- and 64-bit scalars, not {value}")

        def codegen(context, builder, signature, args):
            members_type, value_type, operand_type = signature.args
            mask = context.cast(builder, args[0], members_type, types.uint32)
            other = context.cast(builder, args[2], operand_type, types.uint32)
            bits = builder.bitcast(context.cast(builder, args[1], value_type, returned), ir.IntType(returned.bitwidth))
            if returned.bitwidth == 32:
                out = builder.call(text, [bits, other, mask])
            else:
                low = builder.call(text, [builder.trunc(bits, word), other, mask])
                high = builder.call(text, [builder.trunc(builder.lshr(bits, ir.Constant(bits.type, 32)), word), other, mask])
                out = builder.or_(builder.shl(builder.zext(high, bits.type), ir.Constant(bits.type, 32)), builder.zext(low, bits.type))
            return builder.bitcast(out, context.get_value_type(returned))
        return returned(members, value, operand), codegen
    return intrinsic(emit)


def by_type(texts):
    """Intrinsic of one or two operands of one scalar type, which chooses the PTX text: ``{"float32": "max.f32 $0, $1, $2;", ...}``.

    A pair in place of a text is (text from sm_80 on, text before).
    """
    arity = 2 if "$2" in str(next(iter(texts.values()))) else 1

    def emit(given):
        if arity == 2 and given[0] != given[1]:
            raise errors.TypingError(f"operands of different types: {given[0]} and {given[1]}; cast one")
        if str(given[0]) not in texts:
            raise errors.TypingError(f"no form for {given[0]}; there is one for {', '.join(texts)}")
        name = str(given[0])
        choice = texts[name] if isinstance(texts[name], tuple) else (texts[name],)

        def codegen(context, builder, signature, args):
            function = ir.FunctionType(_LLVM[name], [_LLVM[name]] * arity)
            constraints = ",".join([f"={_CONSTRAINT[name]}"] + [_CONSTRAINT[name]] * arity)
            made = [ir.InlineAsm(function, text, constraints) for text in choice]
            if len(made) == 1:
                return builder.call(made[0], args)
            modern = builder.icmp_signed(">=", _target_arch(builder), ir.Constant(ir.IntType(32), 800))
            with builder.if_else(modern) as (then, otherwise):
                with then:
                    first, first_block = builder.call(made[0], args), builder.block
                with otherwise:
                    second, second_block = builder.call(made[1], args), builder.block
            result = builder.phi(_LLVM[name])
            result.add_incoming(first, first_block)
            result.add_incoming(second, second_block)
            return result
        return SCALARS[name](*given), codegen

    if arity == 2:
        def call(typingctx, a, b):
            return emit((a, b))
    else:
        def call(typingctx, a):
            return emit((a,))
    return intrinsic(call)


def libdevice(single, double, arity=1):
    """Intrinsic: libdevice's function `single` of float32 operands, `double` of float64 ones."""
    names = {types.float32: f"__nv_{single}", types.float64: f"__nv_{double}"}

    def emit(*given):
        if given[0] not in names or len(set(given)) != 1:
            raise errors.TypingError(f"{double} takes float32 or float64 operands of one type, not {', '.join(map(str, given))}")

        def codegen(context, builder, signature, args):
            llvm, name = _LLVM[str(given[0])], names[given[0]]
            function = builder.module.globals.get(name) or ir.Function(builder.module, ir.FunctionType(llvm, [llvm] * arity), name)
            return builder.call(function, args)
        return given[0](*given), codegen

    if arity == 3:
        def call(typingctx, a, b, c):
            return emit(a, b, c)
    elif arity == 2:
        def call(typingctx, a, b):
            return emit(a, b)
    else:
        def call(typingctx, a):
            return emit(a)
    return intrinsic(call)


@intrinsic
def add(typingctx, a, b):
    """Sum of two scalars of one type, in that type."""
    if a != b or a not in SCALARS.values():
        raise errors.TypingError(f"add takes two scalars of one type, not {a} and {b}")
    return a(a, b), lambda context, builder, signature, args: (builder.fadd if isinstance(a, types.Float) else builder.add)(*args)


def _wraps(value):
    """Let an arithmetic expression wrap: Numba declares that its signed operations do not."""
    if getattr(value, "opname", None) in ("add", "sub", "mul", "shl", "and", "or", "xor"):
        value.flags = [flag for flag in value.flags if flag != "nsw"]
        for operand in value.operands:
            _wraps(operand)


@intrinsic
def wrapping(typingctx, value):
    """An int32 expression, the argument as it is written there, that may overflow: it wraps."""
    if types.unliteral(value) != types.int32:
        raise errors.TypingError(f"wrapping takes an int32, not {value}")

    def codegen(context, builder, signature, args):
        _wraps(args[0])
        return args[0]
    return types.int32(types.int32), codegen


def bitcast(source, target):
    """Intrinsic: the bits of a value cast to `source`, as a value of `target`."""
    def emit(typingctx, value):
        def codegen(context, builder, signature, args):
            return builder.bitcast(context.cast(builder, args[0], signature.args[0], SCALARS[source]), _LLVM[target])
        return SCALARS[target](value), codegen
    return intrinsic(emit)


def pin(count):
    """Intrinsic ``pin(buffer)``: the first `count` elements of a local array pass through an empty volatile instruction."""
    def emit(typingctx, buffer):
        constraint = _CONSTRAINT[str(buffer.dtype)]

        def codegen(context, builder, signature, args):
            data = context.make_array(buffer)(context, builder, args[0]).data
            for n in range(count):
                at = builder.gep(data, [ir.Constant(ir.IntType(64), n)])
                function = ir.FunctionType(at.type.pointee, [at.type.pointee])
                builder.store(builder.call(ir.InlineAsm(function, "", f"={constraint},0", side_effect=True), [builder.load(at)]), at)
            return context.get_dummy_value()
        return types.void(buffer), codegen
    return intrinsic(emit)
