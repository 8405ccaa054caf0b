"""Integers that know their type, in kernels of `dnnkern.device.jit`.

Python's ints are exact. In a kernel of `cuda.jit`, where Numba widens, that is near enough. In one of `jit` uint32 and uint64 wrap: casts,
parameters, elements of arrays and results of instructions of these types are ints of the classes below. Others stay plain, as quick as
ever: an int32 that overflows is exact here and undefined on a GPU. ``config.integers = "checked"`` has classes for all, in which that, and
an operation on a signed and an unsigned integer, is an error.

A plain int beside one of them is a literal or a loop's counter and takes its type. One that does not fit the type is of 64 bits, or the
simulator's own: the result is exact and plain.
"""
import contextlib
import functools
import operator

from .._typed import is_typed
from .config import config
from .errors import Misuse
from .place import place

tags = {}
"""{name of a dtype: class of its integers} in the launch that runs; empty where all are plain."""
_ARITHMETIC = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "and": "&", "or": "|", "xor": "^"}
_COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_USES = "int", "index", "float", "bool", "hash", *_COMPARISONS


class Overflowed(int):
    """What an int32 that overflowed holds on a machine that wraps. Only `wrapping` takes it, and arithmetic, whose results are such too."""

    def __new__(cls, value, text):
        self = int.__new__(cls, (value + 2 ** 31 & 0xFFFFFFFF) - 2 ** 31)
        self.text = text
        return self

    def refuse(self, *_):
        """Any other use."""
        raise Misuse(f"{self.text}: undefined on a GPU; wrapping(...) around the expression, or a wider or unsigned type")


def _spread(method):
    exact = getattr(int, method)

    def run(a, *b):
        return Overflowed(exact(a, *b), a.text) if all(isinstance(x, int) for x in b) else NotImplemented
    return run


for _name in (*_ARITHMETIC, "lshift", "rshift"):
    setattr(Overflowed, f"__{_name}__", _spread(f"__{_name}__"))
    setattr(Overflowed, f"__r{_name}__", _spread(f"__r{_name}__"))
for _name in ("neg", "invert", "abs"):
    setattr(Overflowed, f"__{_name}__", _spread(f"__{_name}__"))
for _name in _USES:
    setattr(Overflowed, f"__{_name}__", Overflowed.refuse)


def _make(name, family, narrower, checked):
    """Class of the integers of a type; of the classes of its `family` those of the `narrower` types take its type beside one."""
    signed, bits = name.startswith("int"), int(name[-2:])
    low, mask = -(1 << bits - 1) if signed else 0, (1 << bits) - 1
    high, new = low + mask, int.__new__
    T = type(name, (int,), {"__slots__": ()})

    def fitted(value):
        return new(T, (value - low & mask) + low)

    def overflowed(value, a, b, sign):
        text = f"{name} {a} {sign} {b} = {value} overflows at {place()}"
        return Overflowed(value, text) if bits == 32 else Overflowed.refuse(Overflowed(0, text))

    def beside(a, b, sign):
        """Of an operand that is no plain int: whether it takes this type; the other's method is asked where it is a wider one."""
        t = type(b)
        if t in narrower or t is bool:
            return True
        if t in family.values() and T not in _NARROWER_OF.get(t, ()):
            raise Misuse(f"{name} {sign} {t.__name__} at {place()}: signed with unsigned; cast one")
        return False

    def arithmetic(method, sign, reflected=False):
        exact = getattr(int, method)

        def wrap(a, b):
            t = type(b)
            if t is T or (0 <= b <= mask if t is int else beside(a, b, sign)):
                return new(T, exact(a, b) & mask)
            return exact(a, b) if t is int else NotImplemented

        def check(a, b):
            t = type(b)
            if t is T or (low <= b <= high if t is int else beside(a, b, sign)):
                value = exact(a, b)
                return new(T, value) if low <= value <= high else overflowed(value, *((b, a) if reflected else (a, b)), sign)
            return exact(a, b) if t is int else NotImplemented
        return check if signed else wrap

    def comparison(method, sign):
        exact = getattr(int, method)

        def run(a, b):
            if type(b) is not T and type(b) is not int:
                beside(a, b, sign)
            return exact(a, b)
        return run

    for word, sign in _ARITHMETIC.items():
        setattr(T, f"__{word}__", arithmetic(f"__{word}__", sign))
        setattr(T, f"__r{word}__", arithmetic(f"__r{word}__", sign, reflected=True))
    T.__lshift__, T.__rshift__ = lambda a, n: fitted(int(a) << int(n)), lambda a, n: fitted(int(a) >> int(n))
    T.__invert__, T.__pos__ = lambda a: fitted(~int(a)), lambda a: a
    T.__neg__ = lambda a: 0 - a
    T.__abs__ = lambda a: -a if a < 0 else a
    if checked:
        for word, sign in _COMPARISONS.items():
            setattr(T, f"__{word}__", comparison(f"__{word}__", sign))
        T.__hash__ = int.__hash__
    return T


_NARROWER_OF = {}


def _family(checked):
    """{name of a dtype: class}."""
    family = {}
    for name, narrower in (("uint32", ()), ("uint64", ("uint32",)), *((("int32", ()), ("int64", ("int32", "uint32"))) if checked else ())):
        below = frozenset(family[n] for n in narrower)
        family[name] = _make(name, family, below, checked)
        _NARROWER_OF[family[name]] = below
    return {**family, **dict.fromkeys(("int8", "uint8", "int16", "uint16"), family["int32"])} if checked else family


_FAMILIES = {"plain": _family(False), "checked": _family(True)}


@contextlib.contextmanager
def of(function):
    """Within, integers are those of a launch of this kernel."""
    tags.update(_FAMILIES[config.integers] if is_typed(function) else {})
    try:
        yield
    finally:
        tags.clear()


def wrapping(x):
    """The value of an int32 expression that may overflow: wrapped."""
    if type(x) is Overflowed:
        return int.__new__(tags["int32"], int.__pos__(x))
    if type(x) is not int or -2 ** 31 <= x < 2 ** 31:
        return x
    return (x + 2 ** 31 & 0xFFFFFFFF) - 2 ** 31


def twin_of(twin, results, operands):
    """An instruction in the simulator: its twin computes with plain ints, and its results have their types."""
    if twin is None or not any("int" in name for name in (*results, *operands)):
        return twin

    @functools.wraps(twin)
    def run(*args):
        if not tags:
            return twin(*args)
        out = twin(*[int(a) if isinstance(a, int) else a for a in args])
        if len(results) == 1:
            return _typed(results[0], out)
        return tuple(map(_typed, results, out)) if results else out
    return run


def _typed(name, value):
    return int.__new__(tags[name], operator.index(value)) if name in tags else value


def view(kind, dtype):
    """The class of a pointer or an array of this dtype in the launch that runs, given what it would be of plain elements."""
    make = tags.get(dtype.name)
    return kind if make is None else _view(kind, make, "int32" in tags)


@functools.lru_cache(maxsize=None)
def _view(kind, make, checked):
    new = int.__new__

    class Typed(kind):
        __slots__ = ()

        def __getitem__(self, i):
            value = kind.__getitem__(self, i)
            return new(make, value) if type(value) is int else value

        def load_at(self, k, n, align):
            return [new(make, value) for value in kind.load_at(self, k, n, align)]

        if checked:
            def __setitem__(self, i, value):
                kind.__setitem__(self, i, int(value) if type(value) is Overflowed else value)
    return Typed
