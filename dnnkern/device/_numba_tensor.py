"""Intrinsics whose operands are whole local arrays: what the tensor cores of sm_90a compute in registers. A second home beside `_numba`."""
from llvmlite import ir

from ._numba import SCALARS, _CONSTRAINT, errors, intrinsic, types


def _elements(context, builder, array_type, array, count):
    data = context.make_array(array_type)(context, builder, array).data
    return [builder.gep(data, [ir.Constant(ir.IntType(64), n)]) for n in range(count)]


def array_instruction(text, arrays, scalars, early=True):
    """A volatile intrinsic that is one PTX text over the first elements of local arrays.

    Every element is loaded from a constant index, passes through the one instruction and is stored back, so LLVM keeps the arrays in
    registers; a written element is an output tied to the input of the same number, hence one register. Where it is only written no input is
    tied to it, and what the array had before lives no longer than its last use.

    Parameters
    ----------
    text : str
        ``$0 ...`` number the elements written, the same elements as inputs, the elements only read, then the scalars.
    arrays : tuple of (dtype names, int, bool or "only")
        Element types to choose from ("float32 int32"), how many elements, whether they are written, or only written; the written arrays
        come first, and are all of one kind.
    scalars : tuple of str
        Types of the remaining arguments, which are cast to them.
    early : bool
        The text writes outputs before it has read all inputs: they may share no register but the tied one.
    """
    def codegen(context, builder, signature, args):
        places, constraints, outs = [], [], sum(count for _, count, written in arrays if written)
        tied = 0 if any(written == "only" for *_, written in arrays) else outs
        for t, value, (_, count, written) in zip(signature.args, args, arrays):
            if len(places) == outs:
                constraints += map(str, range(tied))
            places += _elements(context, builder, t, value, count)
            constraints += [f"={'&' * early}" * bool(written) + _CONSTRAINT[str(t.dtype)]] * count
        if len(places) == outs:
            constraints += map(str, range(tied))
        values = [builder.load(place) for place in places[outs - tied:]]
        values += [context.cast(builder, value, t, SCALARS[s])
                   for value, t, s in zip(args[len(arrays):], signature.args[len(arrays):], scalars)]
        constraints += [_CONSTRAINT[s] for s in scalars] + ["~{memory}"]
        outputs = [context.get_value_type(t.dtype) for t, (_, count, written) in zip(signature.args, arrays) if written
                   for _ in range(count)]
        result = ir.LiteralStructType(outputs) if outs > 1 else outputs[0] if outs else ir.VoidType()
        function = ir.FunctionType(result, [v.type for v in values])
        out = builder.call(ir.InlineAsm(function, text, ",".join(constraints), side_effect=True), values)
        for n, place in enumerate(places[:outs]):
            builder.store(builder.extract_value(out, n) if outs > 1 else out, place)
        return context.get_dummy_value()

    def check(given):
        for t, (dtypes, count, _) in zip(given, arrays):
            if not isinstance(t, types.Array) or t.ndim != 1 or str(t.dtype) not in dtypes.split():
                raise errors.TypingError(f"expected a 1-D local array of {count} {dtypes.replace(' ', ' or ')}, got {t}")
        return types.void(*given)

    names = ", ".join(f"a{k}" for k in range(len(arrays) + len(scalars)))
    scope = {"check": check, "codegen": codegen}
    exec(f"def emit(typingctx, {names}):\n    return check(({names},)), codegen", scope)
    return intrinsic(scope["emit"])
