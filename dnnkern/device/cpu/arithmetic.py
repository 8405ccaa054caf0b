"""Forms of one thread's arithmetic: PTX instructions, conversions, libdevice."""
from .forms import DOUBLE, FLOAT, HALF, I1, I8, I16, I32, I64, form
from .report import Refused

_NAN16 = 0x7FFF  # the only NaN that conversions give


# ---- float32 and float64

@form("abs.<kind:f32|f64> $0, $1;")
def magnitude(body, x, kind):
    return body.llvm("fabs", x)


@form("neg.<kind:f32|f64> $0, $1;")
def negative(body, x, kind):
    return body.fneg(x)


# The hardware's approximations, here as exact as the C library.
_APPROXIMATE = {"ex2": lambda body, x: body.llvm("exp2", x), "lg2": lambda body, x: body.llvm("log2", x),
                "sin": lambda body, x: body.invoke("sinf", FLOAT, x), "cos": lambda body, x: body.invoke("cosf", FLOAT, x),
                "tanh": lambda body, x: body.invoke("tanhf", FLOAT, x), "rcp": lambda body, x: body.fdiv(FLOAT(1.0), x),
                "rsqrt": lambda body, x: body.fdiv(FLOAT(1.0), body.llvm("sqrt", x)), "sqrt": lambda body, x: body.llvm("sqrt", x)}


def flushed(body, x):
    """A float32, zero of its sign where it is subnormal."""
    small = body.fcmp_ordered("<", body.llvm("fabs", x), FLOAT(2.0 ** -126))
    return body.select(small, body.invoke("llvm.copysign.f32", FLOAT, FLOAT(0.0), x), x)


@form("<name:ex2|lg2|sin|cos|tanh|rcp|rsqrt|sqrt>.approx<flush:|.ftz>.f32 $0, $1;")
def approximate(body, x, name, flush):
    if flush and name not in ("ex2", "cos"):  # they give 1 of whatever is that small
        x = flushed(body, x)
    y = _APPROXIMATE[name](body, x)
    return flushed(body, y) if flush and name in ("ex2", "rcp") else y


@form("sqrt.rn.<kind:f32|f64> $0, $1;")
def root(body, x, kind):
    return body.llvm("sqrt", x)


@form("fma.rn.<kind:f32|f64> $0, $1, $2, $3;")
def multiply_add(body, a, b, c, kind):
    return body.llvm("fma", a, b, c)


@form("<op:min|max>.<kind:f32|f64> $0, $1, $2;")
def extreme(body, a, b, op, kind):
    return body.llvm(op + "num", a, b)


@form("<op:min|max>.NaN.<kind:f32|f64> $0, $1, $2;",
      "{ .reg .pred n; .reg .<kind:f32|f64> m; <op:min|max>.<same:f32|f64> m, $1, $2; setp.nan...")
def propagating_extreme(body, a, b, op, kind, same=None):
    return body.llvm(op + "imum", a, b)


@form("cvt.sat.f32.f32 $0, $1;")
def saturate(body, x):
    return body.llvm("minnum", body.llvm("maxnum", x, FLOAT(0.0)), FLOAT(1.0))


@form("mul.sat.f32 $0, $1, $2;")
def product_saturated(body, x, y):
    return saturate(body, body.fmul(x, y))


# ---- integers

@form("<op:min|max>.<sign:s|u><bits:32|64> $0, $1, $2;")
def integer_extreme(body, a, b, op, sign, bits):
    return body.llvm(sign + op, a, b)


@form("mul.wide.u32 $0, $1, $2;")
def wide_product(body, a, b):
    return body.mul(body.zext(a, I64), body.zext(b, I64))


@form("div.u32 $0, $1, $2;")
def quotient(body, a, b):
    return body.udiv(a, b)


@form("{ .reg .u32 t; add.u32 t, $1, $1; mul.hi.u32 t, t, $2; shr.u32 $0, t, $3; }")
def quotient_by_invariant(body, a, multiplier, shift):
    high = body.lshr(body.mul(body.zext(body.add(a, a), I64), body.zext(multiplier, I64)), I64(32))
    return body.lshr(body.trunc(high, I32), shift)


@form("shf.r.wrap.b32 $0, $1, $2, $3;")
def funnel_shift(body, low, high, count):
    return body.llvm("fshr", high, low, count)


@form("dp4a.s32.s32 $0, $1, $2, $3;")
def dot4(body, a, b, c):
    for k in range(4):
        x, y = (body.ashr(body.shl(v, I32(24 - 8 * k)), I32(24)) for v in (a, b))
        c = body.add(c, body.mul(x, y))
    return c


@form("prmt.b32 $0, $1, $2, $3;")
def permute_bytes(body, a, b, selector):
    both, result = body.join(a, b), I32(0)
    for k in range(4):
        number = body.and_(body.lshr(selector, I32(4 * k)), I32(15))
        byte = body.and_(body.trunc(body.lshr(both, body.zext(body.shl(body.and_(number, I32(7)), I32(3)), I64)), I32), I32(255))
        sign = body.select(body.is_true(body.and_(byte, I32(128))), I32(255), I32(0))
        byte = body.select(body.is_true(body.and_(number, I32(8))), sign, byte)
        result = body.or_(result, body.shl(byte, I32(8 * k)))
    return result


@form("mov.b64 $0, {$1, $2};")
def words_double(body, low, high):
    return body.bitcast(body.join(low, high), body.result)


@form("mov.b64 {$0, $1}, $2;")
def double_words(body, x):
    return body.words_of(body.bitcast(x, I64))


@form("")
def pinned(body, x=None):
    return x


# ---- conversions

def narrow_half(body, x):
    """Bits of a float32 rounded to float16."""
    bits = body.bitcast(body.fptrunc(x, HALF), I16)
    return body.select(body.fcmp_unordered("uno", x, x), I16(_NAN16), bits)


def narrow_bfloat16(body, x):
    """Bits of a float32 rounded to bfloat16, in 32 bits."""
    bits = body.bitcast(x, I32)
    odd = body.and_(body.lshr(bits, I32(16)), I32(1))
    rounded = body.lshr(body.add(body.add(bits, I32(0x7FFF)), odd), I32(16))
    return body.select(body.fcmp_unordered("uno", x, x), I32(_NAN16), rounded)


def widen_half(body, bits):
    """Float32 of a float16's bits."""
    return body.fpext(body.bitcast(bits, HALF), FLOAT)


def halves(body, word):
    """The two 16-bit parts of a word, the lower first."""
    return body.trunc(word, I16), body.trunc(body.lshr(word, I32(16)), I16)


def packed(body, low, high):
    """Two 16-bit parts as a word."""
    low, high = (body.zext(v, I32) if v.type == I16 else v for v in (low, high))
    return body.or_(low, body.shl(high, I32(16)))


@form("cvt.f32.f16 $0, $1;")
def half_to_float(body, bits):
    return widen_half(body, bits)


@form("cvt.rn.f16.f32 $0, $1;")
def float_to_half(body, x):
    return narrow_half(body, x)


@form("cvt.rn.f16x2.f32 $0, $2, $1;", "{ .reg .b16 l, h; cvt.rn.f16.f32 l, $1; cvt.rn.f16.f32 h, $2; mov.b32 $0, {l, h}; }")
def floats_to_half2(body, low, high):
    return packed(body, narrow_half(body, low), narrow_half(body, high))


@form("{ .reg .b16 l, h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }")
def half2_to_floats(body, word):
    return [widen_half(body, part) for part in halves(body, word)]


@form("cvt.rn.bf16.f32 $0, $1;", "{ .reg .b32 b, l; .reg .pred n; mov.b32 b, $1; bfe.u32 l, b, 16, 1; add.u32 b, b, l; ...")
def float_to_bfloat16(body, x):
    bits = narrow_bfloat16(body, x)
    return bits if body.result == I32 else body.trunc(bits, I16)


@form("cvt.rn.bf16x2.f32 $0, $2, $1;")
def floats_to_bfloat162(body, low, high):
    return packed(body, narrow_bfloat16(body, low), narrow_bfloat16(body, high))


@form("{ .reg .b16 z; mov.b16 z, 0; mov.b32 $0, {z, $1}; }")
def bfloat16_to_float(body, bits):
    return body.bitcast(body.shl(body.zext(bits, I32), I32(16)), FLOAT)


class Byte:
    """A float of 8 bits. Rounding by integers, and by an addition whose unit in the last place is the smallest subnormal."""

    def __init__(self, exponent, mantissa, largest, special):
        self.bits, self.special = mantissa, special
        self.largest, self.shift, bias = largest, 23 - mantissa, (1 << exponent - 1) - 1
        self.smallest_normal, self.difference = (127 - bias + 1) << 23, (127 - bias) << mantissa
        self.unit = (127 - bias + 1 + self.shift) << 23  # of 2**(1 - bias - mantissa) in a float32

    def narrow(self, body, x):
        """Byte of a float32 in the lower 8 of 32 bits, saturated; NaN is 0x7f."""
        bits = body.bitcast(x, I32)
        magnitude = body.llvm("umin", body.and_(bits, I32(0x7FFFFFFF)), I32(self.largest))
        unit = I32(self.unit)
        small = body.sub(body.bitcast(body.fadd(body.bitcast(magnitude, FLOAT), body.bitcast(unit, FLOAT)), I32), unit)
        odd = body.and_(body.lshr(magnitude, I32(self.shift)), I32(1))
        rounded = body.lshr(body.add(body.add(magnitude, odd), I32((1 << self.shift - 1) - 1)), I32(self.shift))
        normal = body.sub(rounded, I32(self.difference))
        value = body.select(body.icmp_unsigned("<", magnitude, I32(self.smallest_normal)), small, normal)
        signed = body.or_(value, body.and_(body.lshr(bits, I32(24)), I32(0x80)))
        return body.select(body.fcmp_unordered("uno", x, x), I32(0x7F), signed)

    def widen(self, body, byte):
        """Float32 of a byte in the lower 8 of 16 bits: a float16 but for the exponent's bias."""
        sign = body.shl(body.and_(byte, I16(0x80)), I16(8))
        wide = widen_half(body, body.or_(sign, body.shl(body.and_(byte, I16(0x7F)), I16(10 - self.bits))))
        if self.special:
            return wide
        nan = body.icmp_unsigned("==", body.and_(byte, I16(0x7F)), I16(0x7F))
        return body.select(nan, FLOAT(float("nan")), body.fmul(wide, FLOAT(256.0)))


# Largest finite values 448 and 57344. e5m2 is the upper byte of a float16; e4m3 has one NaN of each sign and no infinity.
BYTES = {"e4m3": Byte(4, 3, 0x43E00000, False), "e5m2": Byte(5, 2, 0x47600000, True)}


@form("cvt.rn.satfinite.<kind:e4m3|e5m2>x2.f32 $0, $2, $1;")
def floats_to_bytes(body, low, high, kind):
    low, high = (BYTES[kind].narrow(body, x) for x in (low, high))
    return body.trunc(body.or_(low, body.shl(high, I32(8))), I16)


@form("{ .reg .b32 p; .reg .b16 l, h; cvt.rn.f16x2.<kind:e4m3>x2 p, $2; mov.b32 {l, h}, p; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }",
      "{ .reg .b16 l, h; shl.b16 l, $2, 8; and.b16 h, $2, 0xff00; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }")
def bytes_to_floats(body, pair, kind="e5m2"):
    return [BYTES[kind].widen(body, byte) for byte in (body.and_(pair, I16(0xFF)), body.lshr(pair, I16(8)))]


@form("cvt.rn.f16x2.<kind:e4m3>x2 $0, $1;")
def bytes_to_half2(body, pair, kind):
    return floats_to_half2(body, *bytes_to_floats(body, pair, kind))


@form("cvt.rni.sat.<sign:s|u>8.f32 $0, $1;")
def float_to_byte(body, x, sign):
    value = body.llvm(f"fpto{sign}i.sat", body.llvm("rint", x), result=I8, suffix="i8.f32")
    return (body.sext if sign == "s" else body.zext)(value, I32)


@form("cvt.rni.<sign:s|u>32.f32 $0, $1;")
def float_to_int(body, x, sign):
    return body.llvm(f"fpto{sign}i.sat", body.llvm("rint", x), result=I32, suffix="i32.f32")


@form("{ .reg .pred n; .reg .b32 v; setp.nan.f64 n, $1, $1; cvt.rni.s32.f64 v, $1; selp.b32 $0, 0, v, n; }")
def double_to_int(body, x):
    return body.llvm("fptosi.sat", body.llvm("rint", x), result=I32, suffix="i32.f64")


@form("{ .reg .b32 p; .reg .f32 h, x; and.b32 p, $1, 0xff800000; ...")
def round_tf32(body, word):
    step = body.bitcast(body.and_(word, I32(0xFF800000)), FLOAT)  # 2**(exponent), of which 2**-11 is half a unit
    return body.bitcast(body.llvm("fma", step, FLOAT(2.0 ** -11), body.bitcast(word, FLOAT)), I32)


# ---- libdevice: the C library's function of the same name, LLVM's where it has an instruction

_LLVM = {"sqrt": 1, "floor": 1, "ceil": 1, "rint": 1, "trunc": 1, "round": 1, "fabs": 1, "fma": 3, "exp": 1, "exp2": 1, "log": 1, "log2": 1,
         "log10": 1, "pow": 2}
_LIBRARY = ("log1p", "expm1", "tanh", "sin", "cos", "tan", "erf", "erfc", "cbrt", "sinh", "cosh", "asin", "acos", "atan", "asinh", "acosh",
            "atanh", "atan2", "fmod")


@form("__nv_<name>")
def of_library(body, *operands, name):
    kind = operands[0].type
    plain = name[:-1] if kind == FLOAT and name.endswith("f") and name not in ("erf",) else name
    if kind not in (FLOAT, DOUBLE):
        return _integer_function(body, name, operands)
    if plain == "fabs" or plain in _LLVM:
        return body.llvm(plain, *operands)
    if plain in ("fmin", "fmax"):
        return body.llvm(plain[1:] + "num", *operands)
    if plain in ("isnand", "isnan"):
        return body.zext(body.fcmp_unordered("uno", operands[0], operands[0]), I32)
    if plain in ("isinfd", "isinf"):
        infinite = body.fcmp_ordered("==", body.llvm("fabs", operands[0]), kind(float("inf")))
        return body.zext(infinite, I32)
    if plain not in _LIBRARY:
        raise _unknown(name)
    return body.invoke(plain + "f" * (kind == FLOAT), kind, *operands)


def _integer_function(body, name, operands):
    simple = {"min": "smin", "max": "smax", "llmin": "smin", "llmax": "smax", "umin": "umin", "umax": "umax", "ullmin": "umin",
              "ullmax": "umax"}
    if name in ("popc", "popcll"):
        return _as_word(body, body.llvm("ctpop", operands[0]))
    if name in ("clz", "clzll"):
        return _as_word(body, body.invoke(f"llvm.ctlz.i{operands[0].type.width}", operands[0].type, operands[0], I1(0)))
    if name in ("ffs", "ffsll"):  # the lowest bit that is set, from 1 on; 0 of 0
        zero = operands[0].type(0)
        zeros = body.invoke(f"llvm.cttz.i{operands[0].type.width}", operands[0].type, operands[0], I1(0))
        return _as_word(body, body.select(body.icmp_unsigned("==", operands[0], zero), zero, body.add(zeros, operands[0].type(1))))
    if name in ("brev", "brevll"):
        return body.llvm("bitreverse", operands[0])
    if name in ("abs", "llabs"):
        return body.select(body.icmp_signed("<", operands[0], operands[0].type(0)), body.neg(operands[0]), operands[0])
    if name == "mulhi" or name == "umulhi":
        wide = body.sext if name == "mulhi" else body.zext
        return body.trunc(body.lshr(body.mul(*(wide(o, I64) for o in operands)), I64(32)), I32)
    if name not in simple:
        raise _unknown(name)
    return body.llvm(simple[name], *operands)


def _as_word(body, value):
    return value if value.type == I32 else body.trunc(value, I32)


def _unknown(name):
    return Refused(f"libdevice's function {name!r}")


@form("__nvvm_reflect")
def target_architecture(body, what):
    return I32(900)


@form("llvm.<name:ctlz|cttz>.<kind>")
def zeros(body, value, _, name, kind):
    return body.invoke(f"llvm.{name}.{kind}", value.type, value, I1(0))  # a constant: of 0 the result is defined


@form(r"llvm.<name:(?!nvvm\.).*>")
def of_llvm(body, *operands, name):
    return body.invoke("llvm." + name, body.result, *operands)
