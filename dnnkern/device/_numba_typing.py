"""Types of numbers in marked functions (see `_typed`): 32-bit integers stay 32-bit, a literal takes the type of the operand beside it.

Numba computes integers in 64 bits and, beside a float literal, in float64, whatever the operands are. A marked function is inferred in
`_Typing` and lowered in `_Lowering`, which share all declarations and implementations with numba-cuda's own contexts and differ in the
types of operators. Functions that are not marked, and those that Numba itself has in Python, keep Numba's rules, called from a marked
function or calling one.

Templates beside Numba's would not do: one that refuses operands is passed over, and Numba's own, next in line, takes ``int32 + uint32``.
"""
import contextlib
import functools
import operator as op

from numba.cuda import compiler, descriptor, dispatcher, types, utils
from numba.cuda.core import errors
from numba.cuda.core.compiler_lock import global_compiler_lock
from numba.cuda.cpython import rangeobj
from numba.cuda.datamodel import models
from numba.cuda.extending import register_model
from numba.cuda.target import CUDATargetContext, CUDATypingContext
from numba.cuda.typeconv import Conversion
from numba.cuda.typing import signature

from ._typed import is_typed

I32, U32, I64, U64, F32, F64 = types.int32, types.uint32, types.int64, types.uint64, types.float32, types.float64


class WeakInt(types.IntegerLiteral):
    """An integer literal, or an integer of a closure: int32 by itself, the other operand's type beside one."""

    @property
    def literal_type(self):
        for t in (I32, I64, U64):
            if t.minval <= self.literal_value <= t.maxval:
                return t
        raise errors.TypingError(f"{self.literal_value} does not fit 64 bits")

    def can_convert_to(self, context, other):
        if isinstance(other, WeakInt):
            return None
        if isinstance(other, types.Integer):
            return Conversion.promote if other.minval <= self.literal_value <= other.maxval else Conversion.unsafe
        return Conversion.promote if isinstance(other, types.Float) else super().can_convert_to(context, other)


class WeakFloat(types.Float):
    """A float literal and what is computed of such: float64 by itself, float32 beside one.

    Not float64 from the start: inference only widens, and ``s = 0.0`` is read before ``s += x``.
    """
    literal_type = F64

    def __init__(self):
        types.Type.__init__(self, "float literal")
        self.bitwidth = 64

    def can_convert_to(self, context, other):
        return Conversion.promote if isinstance(other, types.Float) else None


WEAK = WeakFloat()
register_model(WeakInt)(models.IntegerModel)


@register_model(WeakFloat)
class _WeakFloatModel(models.PrimitiveModel):
    def __init__(self, manager, numba_type):
        super().__init__(manager, numba_type, models.ir.DoubleType())


# ---- rules: (operation, types of operands) -> signature, or None of what is left to Numba

def _refuse(function, args, why):
    """Raise the error of an operation; Numba adds the line."""
    shown = [str(t.literal_value) if isinstance(t, types.IntegerLiteral) else str(t) for t in args]
    sign = utils.OPERATORS_TO_BUILTINS.get(function)
    text = f" {sign} ".join(shown) if sign and len(args) == 2 else f"{sign or function.__name__}({', '.join(shown)})"
    raise errors.TypingError(f"{text}: {why}")


def _common(function, args):
    """The type in which an operation is done; None unless all operands are numbers of which not all are booleans."""
    if not all(isinstance(t, (types.Integer, types.Float, types.Boolean)) for t in args):
        return None
    literals = [t for t in args if isinstance(t, types.IntegerLiteral)]
    given = [t for t in args if t not in literals and t != WEAK and not isinstance(t, types.Boolean)]
    floats = [t for t in given if isinstance(t, types.Float)]
    if floats or WEAK in args:
        if len(floats) < len(given):
            _refuse(function, args, "cast the integer, f32(...) or f64(...)")
        return max(floats, default=WEAK)
    if not given:
        return max((types.unliteral(t) for t in literals), key=lambda t: t.bitwidth) if literals else None
    # Integers of fewer than 32 bits are int32 here: unsigned ones are no claim that the result is.
    signed = max((t.bitwidth for t in given if t.signed), default=0)
    unsigned = max((t.bitwidth for t in given if not t.signed and t.bitwidth >= 32), default=0)
    if signed and unsigned >= signed:
        _refuse(function, args, "signed with unsigned; cast one to say which is meant, such as i32(...) or u32(...)")
    common = types.Integer.from_bitwidth(max(signed, unsigned, 32), signed=not unsigned or signed > unsigned)
    for t in literals:
        if not common.minval <= t.literal_value <= common.maxval:
            _refuse(function, args, f"{t.literal_value} does not fit {common}")
    return common


def _in(t, args, returned=None):
    """Signature of an operation done in type `t`, also the result's unless `returned` is."""
    return signature(returned or t, *(types.unliteral(t) for _ in args))


def _folded(function, args):
    """Signature of an operation on literals, which is a literal: ``full + 8 * STAGES`` is then uint32 as `full` is."""
    if not all(isinstance(t, types.IntegerLiteral) for t in args):
        return None
    try:
        return signature(WeakInt(function(*(t.literal_value for t in args))), *args)
    except (ArithmeticError, ValueError) as error:
        _refuse(function, args, error)


def _same(function, args):
    t = _common(function, args)
    return t and (_folded(function, args) or _in(t, args))


def _arithmetic(function, args):
    return _in(I32, args) if all(isinstance(t, types.Boolean) for t in args) else _same(function, args)


def _shift(function, args):
    if not all(isinstance(t, (types.Integer, types.Boolean)) for t in args):
        return None
    folded = _folded(function, args)
    if folded:
        return folded
    value, by = args
    t = _common(function, args if isinstance(value, types.IntegerLiteral) else (value, WeakInt(0)))
    if isinstance(by, types.IntegerLiteral) and not 0 <= by.literal_value < t.bitwidth:
        _refuse(function, args, f"{t} has the bits 0 to {t.bitwidth - 1}")
    return _in(t, args)


def _comparison(function, args):
    t = _common(function, args)
    return t and _in(t, args, types.boolean)


def _division(function, args):
    t = _common(function, args)
    if isinstance(t, types.Integer):
        _refuse(function, args, "cast to a float, or use //")
    return t and _in(t, args)


def _range(function, args):
    t = _common(function, args)
    return _in(t, args, _RANGES[t]) if t in _RANGES else None


_RANGES = {t: types.RangeType(t) for t in (I32, U32, I64, U64)}
rangeobj.make_range_impl(U32, _RANGES[U32], types.RangeIteratorType(U32))  # the one that Numba lacks; fewer than 2**31 steps
_RULES = {f: rule for rule, functions in {
    _arithmetic: (op.add, op.sub, op.mul, op.floordiv, op.mod, op.neg, op.pos, op.invert),
    _same: (op.and_, op.or_, op.xor, abs, min, max),
    _shift: (op.lshift, op.rshift),
    _comparison: (op.lt, op.le, op.gt, op.ge, op.eq, op.ne),
    _division: (op.truediv,),
    _range: (range,)}.items() for f in functions}
_RULES |= {getattr(op, f"i{f.__name__.rstrip('_')}"): _RULES[f]
           for f in (op.add, op.sub, op.mul, op.floordiv, op.mod, op.and_, op.or_, op.xor, op.lshift, op.rshift, op.truediv)}


# ---- contexts

class _Ruled(types.Function):
    """An operator or builtin, whose type is found by a rule above, and by Numba where that leaves it to Numba."""

    def __init__(self, stock):
        super().__init__(stock.templates)
        self.stock, self.rule, self.found = stock, _RULES[stock.typing_key], {}

    def get_call_type(self, context, args, kws):
        if args in self.found and not kws:
            return self.found[args]
        found = None if kws else self.rule(self.typing_key, args)
        if found is None:
            found = self.stock.get_call_type(context, args, kws)
            self._impl_keys[found.args] = self.stock.get_impl_key(found)
        else:
            self.found[args], self._impl_keys[found.args] = found, self.typing_key
        return found


register_model(_Ruled)(models.OpaqueModel)
_ruled = {}


def _each(change, t):
    """A tuple's type with other elements, else `change` of the type."""
    if isinstance(t, types.BaseTuple):
        return types.BaseTuple.from_types([_each(change, e) for e in t], getattr(t, "instance_class", None))
    return change(t)


def _to_typed(t):
    """What a marked function is compiled for: for any integer, not for each one that it is called with. Float literals stay literals."""
    return WeakInt(t.literal_value).literal_type if isinstance(t, types.IntegerLiteral) else t


def _to_other(t):
    """What Numba would have given a function that is not marked."""
    return types.IntegerLiteral(t.literal_value) if isinstance(t, WeakInt) else types.unliteral(t) if t == WEAK else t


def _settled(t, given):
    """What functions of Numba's take for a weak float, `t`; other types as they are."""
    return t if given == WEAK else given


def _constant(t, value):
    """The type of a tuple of the closure with 32-bit integers and weak floats for Python's."""
    if isinstance(t, types.BaseTuple):
        elements = [_constant(e, v) for e, v in zip(t, value)]
        return types.BaseTuple.from_types(elements, getattr(t, "instance_class", None))
    return WeakInt(value).literal_type if type(value) is int else WEAK if type(value) is float else t


class _Typing(CUDATypingContext):
    """numba-cuda's typing context, all declarations shared, with the rules above."""

    def __init__(self, stock):
        self.__dict__ = stock.__dict__

    def resolve_value_type(self, value):
        try:
            if value not in _RULES:
                t = super().resolve_value_type(value)
                return _constant(t, value) if isinstance(value, tuple) else t
        except TypeError:  # it has no hash
            return super().resolve_value_type(value)
        if value not in _ruled:
            _ruled[value] = _Ruled(super().resolve_value_type(value))
        return _ruled[value]

    def _resolve_user_function_type(self, func, args, kws, literals=None):
        change = None
        if isinstance(func, types.Dispatcher):
            change = functools.partial(_each, _to_typed if is_typed(func.dispatcher.py_func) else _to_other)
        elif WEAK in args and not isinstance(func, _Ruled):
            change = functools.partial(_settled, F32 if F32 in args and F64 not in args else F64)
        if change:
            args, kws = tuple(map(change, args)), {name: change(t) for name, t in dict(kws).items()}
        return super()._resolve_user_function_type(func, args, kws, literals)

    def unify_pairs(self, first, second):
        if isinstance(first, types.Number) and isinstance(second, types.Number) and first != second:
            try:
                return _common(max, (first, second)) or super().unify_pairs(first, second)
            except errors.TypingError:
                return None  # Numba's message names the variable and the lines
        return super().unify_pairs(first, second)


class _Lowering(CUDATargetContext):
    """numba-cuda's target context, all implementations shared. Lowering asks it a second time what an operation is."""

    def __init__(self, stock, typing):
        self.__dict__.update(stock.__dict__)
        self.typing_context, self.stock = typing, stock

    def get_function(self, fn, sig, _firstcall=True):
        if isinstance(fn, _Ruled) and isinstance(sig.return_type, WeakInt):  # folded
            t = sig.return_type
            return lambda builder, args, loc=None: self.get_constant(t.literal_type, t.literal_value)
        return super().get_function(fn, sig, _firstcall)

    def _compile_subroutine_no_cache(self, *args, **options):
        with _rules(False):
            return self.stock._compile_subroutine_no_cache(*args, **options)


class _Target:
    """What `compile_cuda` and lowering take the contexts of marked functions from."""

    def __init__(self, stock):
        self.typing_context = _Typing(stock.typing_context)
        self.target_context = _Lowering(stock.target_context, self.typing_context)


# ---- which functions

_stock, _typed_target, _typed_now = descriptor.cuda_target, None, False
_LITERALS = types.Literal.ctor_map
_stock_int, _plain_compile = _LITERALS[int], compiler.compile_cuda


def _switch(typed):
    global _typed_target, _typed_now
    _typed_target = _typed_target or _Target(_stock)
    _typed_now, descriptor.cuda_target = typed, _typed_target if typed else _stock
    _LITERALS[int] = WeakInt if typed else _stock_int
    if typed:
        _LITERALS[float] = lambda value: WEAK
    else:
        _LITERALS.pop(float, None)


@contextlib.contextmanager
def _rules(typed):
    """Within, functions are compiled by these rules, or by Numba's. Hold the compilers' lock, which Numba's own target shares."""
    before = _typed_now
    _switch(typed)
    try:
        yield
    finally:
        _switch(before)


def _compile_cuda(pyfunc, *args, **options):
    with global_compiler_lock, _rules(is_typed(pyfunc)):
        return _plain_compile(pyfunc, *args, **options)


# Once a process: from here on marked functions are told from others wherever numba-cuda compiles.
compiler.compile_cuda = dispatcher.compile_cuda = _compile_cuda
