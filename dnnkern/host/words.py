"""Words that all operations share on the command line: dtypes, sizes, and problems from records."""
import argparse
import re

from ..device.activation import Activation
from ..device.program import Program
from ..dispatch import Note
from .dtypes import dtype_name
from .products import FP8, INPUTS
from .scalars import LARGEST
from .suggest import nearest
from .tensor import Tensor


DTYPE_HELP = "dtype of the operands: " + ", ".join(INPUTS) + ", or a short name (bf16, f32, e4m3, ...)"


class WordParser(argparse.ArgumentParser):
    """Raises ValueError where it cannot parse."""

    def error(self, message):
        raise ValueError(f"{self.prog}: {message}")


def addend_dtype(out):
    """dtype of a bias or c beside results of this dtype."""
    return "float32" if out == "int8" or out in FP8 else out


def problem_from_record(make_it, op, record):
    """The problem with the fields of a record: an `Activation`, a `Program`, tensors, tuples of these, and plain values."""
    try:
        fields = dict(record)
        for name, value in fields.items():
            if isinstance(value, dict) and "shape" in value:
                fields[name] = tensor_of_record(value)
        for name in ("program", "score_mod", "score_mod_bprop"):
            if isinstance(program := fields.get(name), dict):
                fields[name] = Program.of_record(program)
        if "extras" in fields:
            fields["extras"] = tuple(map(tensor_of_record, fields["extras"]))
        if (activation := fields.get("activation")) is not None:
            fields["activation"] = Activation(activation["mode"], **{name: float(v) for name, v in activation["parameters"]})
        return make_it(**fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{op}: not a record of a problem: {type(error).__name__}: {error}") from None


def tensor_of_record(record):
    """A tensor's."""
    return Tensor(tuple(record["shape"]), tuple(record["strides"]), record["dtype"], record["alignment"])


def dtype_word(text):
    """A dtype's name, given as one of its names; argparse's error where it is none."""
    try:
        return dtype_name(text)
    except TypeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def notes_word(text):
    """The notes of these names, separated by commas; an argparse error for an unknown name."""
    known, notes = {note.name.lower(): note for note in Note if note}, Note.NONE
    for name in filter(None, text.split(",")):
        if name.lower() not in known:
            instead = nearest(name, known) or "; expected one of " + ", ".join((~Note.NONE).names)
            raise argparse.ArgumentTypeError(f"{name!r} is not a note{instead}")
        notes |= known[name.lower()]
    return notes


def add_notes(add, *, allow=True):
    """Add ``--exclude`` and, if `allow`, ``--allow``: keywords of public functions; `add`: a parser's ``add_argument``."""
    if allow:
        add("--allow", type=notes_word, default=Note.NONE, metavar="NOTES",
            help="NONDETERMINISTIC admits algorithms whose results vary in the last bits")
    add("--exclude", type=notes_word, default=Note.NONE, metavar="NOTES",
        help="exclude algorithms with any of these notes, separated by commas: TENSOR_CORE,FFT")


def sizes_word(text):
    """Sizes written 64x3x224x224."""
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 64x3x224x224")
    sizes = tuple(int(n) for n in text.split("x"))
    if max(sizes) > LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} has a size beyond {LARGEST}")
    return sizes


_TERM = {"stride": r"s(\d+(?:x\d+)*)", "padding": r"p(\d+(?::\d+)?(?:x\d+(?::\d+)?)*)", "dilation": r"d(\d+(?:x\d+)*)"}


def term_word(text):
    """(parameter, value) of a word such as s2, p1x2, p0:1x2:0, d2 or nhwc."""
    if text.upper() in ("NCHW", "NHWC"):
        return "layout", text.upper()
    for name, pattern in _TERM.items():
        if found := re.fullmatch(pattern, text):
            parts = [tuple(map(int, part.split(":"))) for part in found[1].split("x")]
            values = tuple(part if len(part) > 1 else part[0] for part in parts)
            return name, values[0] if len(values) == 1 and not isinstance(values[0], tuple) else values
    raise argparse.ArgumentTypeError(f"{text!r} is none of s2 or s2x1 (stride), p1, p1x2 or p0:1x2:0 (padding), d2 (dilation), nchw, nhwc")
