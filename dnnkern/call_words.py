"""A call in words: ``conv_fwd x=64x64x56x56:bf16 w=64x64x3x3 padding=1 activation=relu``.

The words after a public function's name are its arguments; `problem_of` reads them through the function itself, `words_of` writes them.
This is what the command line takes for problems, and what checks print to repeat a call.

======================  ==================================================================================================
``64x32:bf16``          an array: shape and dtype; ``():f32`` has no dimensions
``64x32``               the same, of the first array's dtype; one size alone would be a number
``64x32:bf16:1x64``     with strides, in elements
``64x32:bf16@4``        that begins at a multiple of no more than 4 bytes
``1,2`` or ``(1,2)``    a tuple; ``[8:f32,4:f32]`` a list, here of arrays
``Activation(relu,upper_clip=6)``, ``RnnSpec(lstm,64,128)``    what these classes make
``{...}``               a program of the fused operations, in JSON
``out=c``               the argument `c` itself, for calls in place
======================  ==================================================================================================

Numbers, ``True``, ``False`` and ``None`` are Python's; anything else is a text.
"""
import ast
import dataclasses
import importlib
import inspect
import json
import re

import numpy as np

from .host.arrays import kind_of
from .host.dtypes import dtype_name
from .host.tensor import Tensor, packed_strides
from .sketch import function_of, problem

ASSIGNED = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
"""A word of a call."""
_SIZES = r"\d+(?:x\d+)*"
_ARRAY = re.compile(rf"(\(\)|{_SIZES}):([A-Za-z_]\w*)(?::(-?\d+(?:x-?\d+)*))?(?:@(\d+))?")
_ATOM = re.compile(r"\(\):[^\s,()\[\]{}=]*|[^\s,()\[\]{}=]+")
_FIELD = re.compile(r"([a-z_]\w*)=")
_NAMED = re.compile(r"([A-Z]\w*)\(")
_PROGRAMS = {"fused_pointwise": "device.program.Program", "fused_reduction": "fused.StagedProgram"}


def _classes():
    from .device.activation import Activation
    from .rnn import RnnSpec
    return {"Activation": Activation, "RnnSpec": RnnSpec}


def problem_of(function, words):
    """The problem of a call.

    Parameters
    ----------
    function : str
        A public function.
    words : sequence of str
        Its arguments, ``name=value``.

    Raises
    ------
    ValueError, TypeError
        A word that is none, with what was expected; or what the function itself raises.

    Examples
    --------
    >>> print(problem_of("conv_fwd", ["x=64x64x56x56:bf16", "w=64x64x3x3", "padding=1", "activation=relu"]))
    conv_fwd 64x64x56x56 k64 3x3 s1 p1 bfloat16 NCHW + relu
    >>> found = problem_of("matmul", ["a=8x4:f32:1x8", "b=4x6:f32", "c=8x6:f32", "out=c"])
    >>> found.a_strides, found.in_place
    ((1, 8), True)
    """
    arguments, reader = {}, _Reader(function)
    for word in words:
        found = ASSIGNED.fullmatch(word)
        if not found:
            raise ValueError(f"{function}: {word!r} is no argument; expected name=value, as in x=64x32:float32")
        name, text = found.groups()
        if name in arguments:
            raise ValueError(f"{function}: {name} is given twice")
        arguments[name] = reader.read(name, text)
    return problem(function, **arguments)


class _Reader:
    """Reads values, one after the other."""

    def __init__(self, function):
        self.function, self.dtype = function, None  # the dtype of the first array

    def read(self, name, text):
        """The value that is all of the text."""
        self.name, self.text, self.at = name, text, 0
        if self.text.startswith("{"):
            return self._program()
        values, several = self._values("")
        return tuple(values) if several else values[0]

    def _values(self, end):
        """(values up to the text `end`, whether a comma parts them)"""
        values, several = [], False
        while not self._takes(end):
            values.append(self._one())
            if self._takes(","):
                several = True
            elif self._takes(end):
                break
            else:
                self._fail(f"{self.text[self.at:]!r} follows a value" if self.at < len(self.text) else f"{end!r} is missing")
        if not values and not end:
            self._fail("there is no value")
        return values, several

    def _takes(self, text):
        """Whether this is what comes next, which the reader passes; "" is the end."""
        if not text:
            return self.at == len(self.text)
        if not self.text.startswith(text, self.at):
            return False
        self.at += len(text)
        return True

    def _one(self):
        if self.text[self.at:self.at + 3] != "():" and self._takes("("):
            return tuple(self._values(")")[0])
        if self._takes("["):
            return self._values("]")[0]
        if made := _NAMED.match(self.text, self.at):
            self.at = made.end()
            return self._made(made[1])
        atom = _ATOM.match(self.text, self.at)
        if not atom:
            self._fail("a value is missing" if self.at == len(self.text) else f"{self.text[self.at:]!r} is no value")
        self.at = atom.end()
        return self._atom(atom[0])

    def _made(self, name):
        """What a class makes of the values up to the next parenthesis."""
        known = _classes()
        if name not in known:
            self._fail(f"there is no {name}; expected one of {', '.join(known)}")
        values, fields = [], {}
        while not self._takes(")"):
            field = _FIELD.match(self.text, self.at)
            if field:
                self.at = field.end()
                fields[field[1]] = self._one()
            else:
                values.append(self._one())
            if not self._takes(",") and self.text[self.at:self.at + 1] != ")":
                self._fail("')' is missing")
        try:
            return known[name](*values, **fields)
        except (TypeError, ValueError) as error:
            self._fail(str(error))

    def _atom(self, text):
        if array := _ARRAY.fullmatch(text):
            return self._array(*array.groups())
        if re.fullmatch(_SIZES, text) and "x" in text:
            if self.dtype is None:
                self._fail(f"the first array has no dtype; expected one, as in {self.name}={text}:float32")
            return self._array(text, self.dtype, None, None)
        try:
            return ast.literal_eval(text) if text != "nan" else float(text)
        except (ValueError, SyntaxError):
            return float(text) if text in ("inf", "-inf") else text

    def _array(self, sizes, dtype, strides, alignment):
        shape = () if sizes == "()" else tuple(map(int, sizes.split("x")))
        try:
            dtype = dtype_name(dtype)
            self.dtype = self.dtype or dtype
            strides = packed_strides(shape) if strides is None else tuple(map(int, strides.split("x")))
            alignment = 16 if alignment is None else int(alignment)
            if alignment not in (1, 2, 4, 8, 16):
                raise ValueError(f"alignment {alignment}; expected 1, 2, 4, 8 or 16")
            return Tensor(shape, strides, dtype, alignment)
        except (TypeError, ValueError) as error:
            self._fail(str(error))

    def _program(self):
        if self.function not in _PROGRAMS:
            self._fail("this function takes no program")
        module, _, name = _PROGRAMS[self.function].rpartition(".")
        try:
            return getattr(importlib.import_module(f"dnnkern.{module}"), name).of_record(json.loads(self.text))
        except (ValueError, TypeError, KeyError) as error:
            self._fail(f"no program: {type(error).__name__}: {error}")

    def _fail(self, why):
        text = self.text if len(self.text) < 80 else f"{self.text[:77]}..."
        raise ValueError(f"{self.function}: {self.name}={text}: {why}")


# ---- from a call to words

def words_of(function, arguments) -> list:
    """The words of a call, those of arguments that are not as by default: arrays by what they are, not by what they hold.

    Parameters
    ----------
    function : str
        A public function.
    arguments : dict
        Its arguments, by name.

    Raises
    ------
    TypeError
        A value has no words.

    Examples
    --------
    >>> import numpy as np
    >>> x = np.zeros((2, 3), np.float32)
    >>> words_of("softmax_fwd", {"x": x.T, "axis": 0, "log": False, "out": None})
    ['x=3x2:float32:1x3', 'axis=0']
    """
    parameters, words, written = inspect.signature(function_of(function)).parameters, [], {}
    for name, value in arguments.items():
        if name in ("workspace", "stream", *_choice()) or _is_default(value, parameters.get(name)):
            continue
        word = written.get(_address(value)) if name == "out" else None
        if word is None:
            word = _text(value)
            if isinstance(value, tuple):
                word = word[1:-1]
            written[_address(value)] = name
        words.append(f"{name}={word}")
    return words


def _choice():
    from .dispatch import CHOICE
    return CHOICE


def _is_default(value, parameter):
    default = getattr(parameter, "default", inspect.Parameter.empty)
    return isinstance(value, (bool, int, float, str, tuple, type(None))) and type(value) is type(default) and value == default


def _address(value):
    """Of an array; of other values something that no array has."""
    try:
        return kind_of(value).describe(value)[1]
    except (TypeError, ValueError):
        return object()


def _text(value):
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return str(value)
    if isinstance(value, (tuple, list)):
        inner = ",".join(map(_text, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' * (len(value) == 1)})"
    if type(value) in _classes().values():
        return _made_text(value)
    if hasattr(value, "record") and dataclasses.is_dataclass(value):
        return json.dumps(value.record(), separators=(",", ":"))
    try:
        tensor = value if isinstance(value, Tensor) else kind_of(value).tensor(value)
    except TypeError:
        return dtype_name(value)
    strides = "" if tensor.strides == packed_strides(tensor.shape) else ":" + "x".join(map(str, tensor.strides))
    return f"{'x'.join(map(str, tensor.shape)) or '()'}:{tensor.dtype}{strides}" + f"@{tensor.alignment}" * (tensor.alignment != 16)


def _made_text(value):
    """Of an instance of one of `_classes`."""
    if hasattr(value, "parameters"):
        fields = dict(value.parameters)
        return f"{type(value).__name__}({','.join([value.mode, *(f'{n}={_text(v)}' for n, v in fields.items())])})"
    fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value) if f.init}
    return f"{type(value).__name__}({','.join(f'{name}={_text(v)}' for name, v in fields.items() if v is not None)})"
