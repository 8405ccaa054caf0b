"""Arithmetic beyond ``+ - * /``: single hardware instructions, and accurate functions for float32 and float64.

The first kind is float32 only, an instruction or a few, its error stated (NVIDIA's PTX manual's for single instructions); the simulator
gives the correctly rounded value, subnormals flushed to zero. They end in ``_fast`` where an accurate one has the name. The accurate
ones take float32 or float64 and compute in that type: libdevice on the GPU, with the error its manual states, and within half a unit in
the last place in the simulator.

===============  ===========================================================================================================
ex2              2**x, relative error 2**-22
lg2              log2(x), absolute error 2**-22 for x in (0.5, 2), relative 2**-22 elsewhere
rcp              1/x, 1 ulp; zero where the result is subnormal
rsqrt            1/sqrt(x), relative error 2**-22.9
rsqrt_wide       1/sqrt(x), relative error 2**-22.9, of subnormals too; what CUDA C++ calls rsqrtf
sqrt_fast        sqrt(x), relative error 2**-23
tanh_fast        tanh(x), relative error 2**-11
sin_fast         sin(x), cos(x), absolute error 2**-20.5 for \\|x\\| <= 2*pi, growing beyond
exp_fast         2 instructions; relative error 2**-22 + \\|x\\| 2**-24
log_fast         2 instructions; as lg2, one rounding more
sigmoid_fast     1/(1 + exp(-x)), relative error 2**-20 + \\|x\\| 2**-24 for negative x, 2**-21 for positive
erfc_positive    erfc(z) for z >= 0, relative error 8e-7 + z*z 2**-23
expm1_negative   exp(x) - 1 for x <= 0, relative error 2**-20
log1p_unit       log(1 + x) for 0 <= x <= 1, relative error 2**-21
tanh_ratio       tanh(x)/x for \\|x\\| <= TANH_LIMIT, so that times x it is tanh(x) with relative error 2**-22.5. 6 instructions
normal_tail      for a >= 0, erfc(a/sqrt(2))/2 and exp(-a*a/2), relative errors 8e-7 + a*a 2**-23
short_tail       the same, the first with relative error 2**-16 + a*a 2**-23, in three instructions fewer
half_tail        for 0 <= u <= 1 with a = 6u, 6 erfc(a/sqrt(2))/2, relative error 2**-17; where a times the tail is below 2**-14,
                 absolute error 2**-31 of that product. 7 instructions
bfloat16_tail    for 0 <= u <= 1 with a = 13.25u, 13.25 erfc(a/sqrt(2))/2, relative error 2**-12; 0 from a = 13.2 on. 9 instructions
half_odds        1/(1 + e) for 0 <= e <= 1, relative error 2**-16.5; bfloat16_odds 2**-11.5
fma              a*b + c rounded once, float32 and float64
fmax, fmin       the other operand where one is NaN
maximum ...      NaN where one is NaN; integers too
exp, exp2        float32 2 ulp, float64 1 ulp
log, log1p       float32 1 ulp, float64 1 ulp
expm1, sqrt      float32 1 ulp, float64 1 ulp
erf, erfc        float32 2 and 4 ulp, float64 2 and 5 ulp
tanh, tan        float32 2 and 4 ulp, float64 2 ulp
sin, cos         float32 2 ulp, float64 2 ulp
pow              float32 4 ulp, float64 2 ulp
atan2, fmod      float32 3 ulp, float64 2 ulp; exact
===============  ===========================================================================================================

Accurate sin, cos and tan reduce arguments beyond 1e5 in float64 and a small stack array, a path rarely taken but always compiled in.
A kernel compiled with ``fastmath=True`` replaces the accurate float32 ones by fast ones: leave it off and choose by name.
"""
import math

from . import SIMULATED, device_function, f32, f64, instruction

TINY = 2.0 ** -126  # the smallest normal float32

if SIMULATED:
    import fractions
    import struct

    import numpy as np

    from .sim import engine

    def _rounded(function):
        """Twin of an approximate instruction: `function` in float64, operand and result flushed, the limits of the domain as IEEE's."""
        def compute(x):
            x = float(x)
            y = f32(function(math.copysign(0.0, x) if -TINY < x < TINY else x))
            value = float(y)
            return f32(math.copysign(0.0, value)) if -TINY < value < TINY else y

        def twin(x):
            if engine.CURRENT is not None:  # a launch ignores all errors anyway, and saying so again takes longer than the function
                return compute(x)
            with np.errstate(all="ignore"):
                return compute(x)
        return twin

    def _exact(function):
        """Twin of an accurate function: `function` of NumPy in float64, rounded to the type of the operands."""
        def twin(*operands):
            if engine.CURRENT is not None:
                return type(operands[0])(function(*map(float, operands)))
            with np.errstate(all="ignore"):
                return type(operands[0])(function(*map(float, operands)))
        return twin

    def _of_math(function, low, high):
        """Twin of an accurate function that NumPy lacks; `low` and `high` are its limits at the infinities."""
        def twin(x):
            return type(x)(x if x != x else low if x == -math.inf else high if x == math.inf else function(float(x)))
        return twin

    def fma(a, b, c):
        """a*b + c with one rounding."""
        if type(a) is not f32:
            if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
                return type(a)(np.float64(a) * np.float64(b) + np.float64(c))
            return f64(_fma64(float(a), float(b), float(c)))
        # the product is exact in float64; a sum rounded to odd there may be rounded again
        product, c = float(a) * float(b), float(c)
        total = product + c
        if total - total:  # infinite or NaN
            return f32(total)
        part = total - product
        rest = (product - (total - part)) + (c - part)
        if rest and not struct.pack("<d", total)[0] & 1:
            total = math.nextafter(total, math.copysign(math.inf, rest))
        return f32(total)

    def _fma64(a, b, c):
        exact = fractions.Fraction(a) * fractions.Fraction(b) + fractions.Fraction(c)
        if not exact:
            return a * b + c  # the sign of a zero
        try:
            return float(exact)
        except OverflowError:
            return math.inf if exact > 0 else -math.inf

    def _extreme(sign, nan):
        """Twin of a maximum (sign 1) or minimum (-1); `nan`: whether a NaN operand makes the result NaN. +0 counts as above -0."""
        def twin(a, b):
            if isinstance(a, int):
                return max(a, b) if sign > 0 else min(a, b)
            if a != a or b != b:
                return type(a)(math.nan) if nan or (a != a and b != b) else b if a != a else a
            if a == b:
                return a if (math.copysign(1, a) > math.copysign(1, b)) == (sign > 0) else b
            return a if (a > b) == (sign > 0) else b
        return twin

    fmax, fmin, maximum, minimum = _extreme(1, False), _extreme(-1, False), _extreme(1, True), _extreme(-1, True)
    fabs = abs
    exp, exp2, log, log1p, expm1 = _exact(np.exp), _exact(np.exp2), _exact(np.log), _exact(np.log1p), _exact(np.expm1)
    sqrt, tanh, sin, cos, tan = _exact(np.sqrt), _exact(np.tanh), _exact(np.sin), _exact(np.cos), _exact(np.tan)
    erf, erfc, pow = _of_math(math.erf, -1.0, 1.0), _of_math(math.erfc, 2.0, 0.0), _exact(np.power)
    atan2, fmod = _exact(np.arctan2), _exact(np.fmod)

    def floor(x):
        """The largest integer not above `x`, in its type."""
        return type(x)(np.floor(x))

    def ceil(x):
        """The smallest integer not below `x`, in its type."""
        return type(x)(np.ceil(x))

    def rint(x):
        """The nearest integer in the type of `x`, ties to even."""
        return type(x)(np.rint(x))
else:
    from ._intrinsics import by_type, libdevice

    _NAN32, _NAN64 = "selp.f32 $0, 0f7FFFFFFF, m, n; }", "selp.f64 $0, 0d7FFFFFFFFFFFFFFF, m, n; }"

    def _rounded(function):
        return None

    def _extreme(op):
        """Forms of a NaN-propagating `op`: for float32 one instruction from sm_80 on, else three."""
        texts = {"float32": (f"{op}.NaN.f32 $0, $1, $2;",
                             "{ .reg .pred n; .reg .f32 m; " f"{op}.f32 m, $1, $2; setp.nan.f32 n, $1, $2; {_NAN32}"),
                 "float64": "{ .reg .pred n; .reg .f64 m; " f"{op}.f64 m, $1, $2; setp.nan.f64 n, $1, $2; {_NAN64}"}
        texts.update({f"{sign}int{bits}": f"{op}.{sign or 's'}{bits} $0, $1, $2;" for sign in ("", "u") for bits in (32, 64)})
        return by_type(texts)

    fma, pow = libdevice("fmaf", "fma", 3), libdevice("powf", "pow", 2)
    atan2, fmod = libdevice("atan2f", "atan2", 2), libdevice("fmodf", "fmod", 2)
    fmax, fmin = (by_type({"float32": f"{op}.f32 $0, $1, $2;", "float64": f"{op}.f64 $0, $1, $2;"}) for op in ("max", "min"))
    maximum, minimum = _extreme("max"), _extreme("min")
    fabs = by_type({"float32": "abs.f32 $0, $1;", "float64": "abs.f64 $0, $1;"})
    exp, exp2, log, log1p, expm1 = (libdevice(f"{n}f", n) for n in ("exp", "exp2", "log", "log1p", "expm1"))
    sqrt, tanh, sin, cos, tan = (libdevice(f"{n}f", n) for n in ("sqrt", "tanh", "sin", "cos", "tan"))
    erf, erfc, floor, ceil, rint = (libdevice(f"{n}f", n) for n in ("erf", "erfc", "floor", "ceil", "rint"))


def _single(text, function):
    return instruction(text, ("float32",), ("float32",), twin=_rounded(function), pure=True)


def _numpy(name):
    return getattr(np, name) if SIMULATED else None


def _power_of_two(x):
    """2**x; NumPy's takes eight times as long for one number."""
    try:
        return 2.0 ** x
    except OverflowError:
        return math.inf


ex2 = _single("ex2.approx.ftz.f32 $0, $1;", _power_of_two)
lg2 = _single("lg2.approx.ftz.f32 $0, $1;", _numpy("log2"))
rcp = _single("rcp.approx.ftz.f32 $0, $1;", _numpy("reciprocal"))
rsqrt = _single("rsqrt.approx.ftz.f32 $0, $1;", lambda x: 1 / _numpy("sqrt")(x))
rsqrt_wide = instruction("rsqrt.approx.f32 $0, $1;", ("float32",), ("float32",), pure=True,
                         twin=_exact(lambda x: 1 / np.sqrt(x)) if SIMULATED else None)
sqrt_fast = _single("sqrt.approx.ftz.f32 $0, $1;", _numpy("sqrt"))
tanh_fast = _single("tanh.approx.f32 $0, $1;", _numpy("tanh"))
sin_fast = _single("sin.approx.ftz.f32 $0, $1;", _numpy("sin"))
cos_fast = _single("cos.approx.ftz.f32 $0, $1;", _numpy("cos"))
saturate = instruction("cvt.sat.f32.f32 $0, $1;", ("float32",), ("float32",), pure=True,
                       twin=lambda x: f32(0) if x != x else min(max(f32(x), f32(0)), f32(1)))  # to [0, 1]; NaN becomes 0

product_saturated = instruction("mul.sat.f32 $0, $1, $2;", ("float32",), ("float32", "float32"), pure=True,
                                twin=lambda x, y: f32(0) if x * y != x * y else min(max(f32(x * y), f32(0)), f32(1)))


@device_function
def exp_fast(x):
    """exp(x) of a float32 in two instructions; overflows to infinity and underflows to zero."""
    return ex2(x * 1.4426950408889634)


@device_function
def log_fast(x):
    """Natural logarithm of a float32 in two instructions."""
    return lg2(x) * 0.6931471805599453


@device_function
def sigmoid_fast(x):
    """1 / (1 + exp(-x)) of a float32 in four instructions."""
    return rcp(f32(1) + ex2(x * f32(-1.4426950408889634)))


def _erfc_polynomial(factor):
    """`factor` times P(t) in erfc(z) = exp(-z*z) t P(t) with t = 1 / (1 + z/2), minimax for z up to 10.5 (error 4.3e-8)."""
    c = tuple(factor * v for v in (-0.05919332057237625, 0.28518277406692505, -0.4884607791900635, 0.279512494802475, -0.0276233721524477,
                                   0.20310990512371063, 0.24299661815166473, 0.2823900580406189, 0.2820855677127838))

    @device_function
    def polynomial(t):
        p = fma(t, f32(c[0]), f32(c[1]))
        p = fma(t, p, f32(c[2]))
        p = fma(t, p, f32(c[3]))
        p = fma(t, p, f32(c[4]))
        p = fma(t, p, f32(c[5]))
        p = fma(t, p, f32(c[6]))
        p = fma(t, p, f32(c[7]))
        return fma(t, p, f32(c[8]))
    return polynomial


_whole_polynomial, _half_polynomial = _erfc_polynomial(1.0), _erfc_polynomial(0.5)


@device_function
def erfc_positive(z):
    """erfc(z) of a float32 z >= 0."""
    t = rcp(fma(z, f32(0.5), f32(1)))
    return _whole_polynomial(t) * t * ex2(z * z * f32(-1.4426950408889634))


@device_function
def normal_tail(a):
    """(erfc(a / sqrt 2) / 2, exp(-a*a / 2)) of a float32 a >= 0: the normal distribution's upper tail, and its density but for a factor."""
    t = rcp(fma(a, f32(0.5 * math.sqrt(0.5)), f32(1)))
    e = ex2(a * a * (-0.7213475204444817))
    return _half_polynomial(t) * t * e, e


@device_function
def short_tail(a):
    """`normal_tail` for what is rounded to 16 bits: a minimax polynomial of degree 5 (error 1.1e-5)."""
    t = rcp(fma(a, f32(0.32), f32(1)))
    p = fma(t, f32(-0.06677320969992079), f32(0.13958447563373447))
    p = fma(t, p, f32(0.0496129339477991))
    p = fma(t, p, f32(0.12305292027611496))
    p = fma(t, p, f32(0.12682765482351369))
    p = fma(t, p, f32(0.12768974827725582))
    e = ex2(a * a * (-0.7213475204444817))
    return p * t * e, e


# The logarithm of the tail is smooth, and a minimax polynomial of it, in place of the tail's quotient by its leading term, needs no
# reciprocal: one MUFU less, of which there is one for eight other instructions.
HALF_FAR, BFLOAT16_FAR = 6.0, 13.25


@device_function
def half_tail(u):
    """HALF_FAR times the normal distribution's upper tail at HALF_FAR u, 0 <= u <= 1: for products with u that are rounded to float16."""
    p = fma(u, f32(1.5138124460360383), f32(-5.81991192609569))
    p = fma(u, p, f32(10.293372671183672))
    p = fma(u, p, f32(-11.459277882168069))
    p = fma(u, p, f32(-16.530119015724864))
    p = fma(u, p, f32(-6.906221140670161))
    return ex2(fma(u, p, f32(1.5849549287562859)))


@device_function
def bfloat16_tail(u):
    """BFLOAT16_FAR times the normal distribution's upper tail at BFLOAT16_FAR u, 0 <= u <= 1: for what is rounded to bfloat16."""
    p = fma(u, f32(27.787216248008132), f32(-131.84766537907274))
    p = fma(u, p, f32(269.4339060616728))
    p = fma(u, p, f32(-313.4791716201543))
    p = fma(u, p, f32(232.96234202005928))
    p = fma(u, p, f32(-119.20058749259063))
    p = fma(u, p, f32(-81.12909268067405))
    p = fma(u, p, f32(-15.229849009042072))
    return ex2(fma(u, p, f32(2.727772312264593)))


@device_function
def half_odds(e):
    """1 / (1 + e) of 0 <= e <= 1, by a minimax polynomial in place of a reciprocal: for what is rounded to float16."""
    p = fma(e, f32(0.07170680165290833), f32(-0.32268059253692627))
    p = fma(e, p, f32(0.6677695512771606))
    p = fma(e, p, f32(-0.9030575156211853))
    p = fma(e, p, f32(0.9854083061218262))
    p = fma(e, p, f32(-0.9991334080696106))
    return fma(e, p, f32(0.999991238117218))


@device_function
def bfloat16_odds(e):
    """1 / (1 + e) of 0 <= e <= 1: for what is rounded to bfloat16."""
    p = fma(e, f32(0.15224501490592957), f32(-0.5328575372695923))
    p = fma(e, p, f32(0.865893542766571))
    p = fma(e, p, f32(-0.9848349690437317))
    return fma(e, p, f32(0.9997026324272156))


@device_function
def expm1_negative(x):
    """exp(x) - 1 of a float32 x <= 0: a minimax polynomial down to -1/2, below it `exp_fast`."""
    p = fma(x, f32(0.0011237151054356302), f32(0.008190002777030738))
    p = fma(x, p, f32(0.04163024338663235))
    p = fma(x, p, f32(0.16666244921531995))
    p = fma(x, p, f32(0.499999820688662))
    p = fma(x, p, f32(1))
    return x * p if x > f32(-0.5) else exp_fast(x) - f32(1)


@device_function
def log1p_unit(x):
    """log(1 + x) of a float32 x from 0 to 1: 2 atanh(s) with s = x / (2 + x), a minimax polynomial in s*s."""
    s = x * rcp(x + 2)
    w = s * s
    p = fma(w, f32(0.28174657318518553), f32(0.27961418820761025))
    p = fma(w, p, f32(0.40024853724655557))
    p = fma(w, p, f32(0.6666631593504376))
    return s * fma(w, p, f32(2))


TANH_LIMIT = 0.75


@device_function
def tanh_ratio(x):
    """tanh(x) / x of a float32 up to `TANH_LIMIT`: a minimax polynomial in x*x."""
    w = x * x
    p = fma(f32(-0.004716250114142895), w, f32(0.019582897424697876))
    p = fma(p, w, f32(-0.053344424813985825))
    p = fma(p, w, f32(0.1332540661096573))
    p = fma(p, w, f32(-0.33332958817481995))
    return fma(p, w, f32(1))
