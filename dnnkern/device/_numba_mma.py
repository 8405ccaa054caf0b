"""Intrinsics of warp-wide matrix instructions, whose operands are runs of local arrays. Beside `_numba`, for the same API of Numba's."""
from llvmlite import ir
from numba.cuda import types
from numba.cuda.core import errors
from numba.cuda.extending import intrinsic

from ._numba import SCALARS, _CONSTRAINT, _LLVM, _element


def _pointers(context, builder, signature, args, at, count):
    """Addresses of `count` elements of the local array that is argument `at`, from the index that is the next argument on."""
    start = _element(context, builder, signature.args[at], args[at], signature.args[at + 1], args[at + 1])
    return [builder.gep(start, [ir.Constant(ir.IntType(64), n)]) for n in range(count)]


def _check(what, name, array, scalar):
    """A register operand is a run of a 1-D array of exactly this type: nothing converts in between."""
    if not isinstance(array, types.Array) or array.ndim != 1 or array.dtype != SCALARS[scalar]:
        raise errors.TypingError(f"{what}: {name} is a 1-D local array of {scalar}, not {array}")


def _call(builder, text, constraints, results, operands):
    """Emit volatile inline PTX that all lanes execute together: convergent, so that no pass moves it under another condition."""
    function = ir.FunctionType(results[0] if len(results) == 1 else ir.LiteralStructType(results), [o.type for o in operands])
    out = builder.call(ir.InlineAsm(function, text, ",".join(constraints), side_effect=True), operands)
    out.attributes.add("convergent")
    return [out] if len(results) == 1 else [builder.extract_value(out, n) for n in range(len(results))]


def matrix_load(text, count):
    """Intrinsic ``load(fragment, i, address)``: `text` gives the words fragment[i:i+count] ($0 ...) for the shared address ($`count`)."""
    def load(typingctx, fragment, i, address):
        _check("ldmatrix", "fragment", fragment, "uint32")

        def codegen(context, builder, signature, args):
            at = context.cast(builder, args[2], signature.args[2], types.uint32)
            words = _call(builder, text, ["=r"] * count + ["r", "~{memory}"], [ir.IntType(32)] * count, [at])
            for word, pointer in zip(words, _pointers(context, builder, signature, args, 0, count)):
                builder.store(word, pointer)
            return context.get_dummy_value()
        return types.void(fragment, i, address), codegen
    return intrinsic(load)


def matrix_multiply(op, scalars, counts):
    """Intrinsic ``mma(acc, i, a, j, b, k)``: acc[i:i+c] += a[j:j+m] x b[k:k+n] by the instruction `op`.

    Parameters
    ----------
    op : str
        The instruction; its operands, in order result, A, B, and the result again, are added here.
    scalars : tuple of str
        Element types of the arrays acc, a and b.
    counts : tuple of int
        Their elements a lane: c, m, n.
    """
    # The accumulator is one operand, read and written: $0 ... are the results, the tied inputs come last.
    c, m, n = counts
    braces = ["{" + ", ".join(f"${k}" for k in range(first, first + size)) + "}" for first, size in ((0, c), (c, m), (c + m, n))]
    text = f"{op} {braces[0]}, {braces[1]}, {braces[2]}, {braces[0]};"
    constraints = ([f"={_CONSTRAINT[scalars[0]]}"] * c + [_CONSTRAINT[scalars[1]]] * m + [_CONSTRAINT[scalars[2]]] * n
                   + [str(k) for k in range(c)])

    def mma(typingctx, acc, i, a, j, b, k):
        for name, array, scalar in zip(("acc", "a", "b"), (acc, a, b), scalars):
            _check(op, name, array, scalar)

        def codegen(context, builder, signature, args):
            into, left, right = (_pointers(context, builder, signature, args, at, size) for at, size in zip((0, 2, 4), counts))
            operands = [builder.load(p) for p in left + right + into]
            for value, pointer in zip(_call(builder, text, constraints, [_LLVM[scalars[0]]] * c, operands), into):
                builder.store(value, pointer)
            return context.get_dummy_value()
        return types.void(acc, i, a, j, b, k), codegen
    return intrinsic(mma)
