"""What the words of all operations share on the command line: dtypes, sizes, and problems out of records."""
import argparse

from ..device.epilogue import Activation
from ..dispatch import Note
from .dtypes import dtype_name
from .products import FP8, INPUTS
from .suggest import nearest
from .tensor import Tensor


DTYPE_HELP = "of the operands: " + ", ".join(INPUTS) + ", or a short name (bf16, f32, e4m3, ...)"


class WordParser(argparse.ArgumentParser):
    """Raises ValueError where it cannot parse."""

    def error(self, message):
        raise ValueError(f"{self.prog}: {message}")


def addend_dtype(out):
    """dtype of a bias or c beside results of this dtype."""
    return "float32" if out == "int8" or out in FP8 else out


def problem_from_record(make_it, op, record):
    """The problem with the fields of a record: an `Activation`, tensors, and plain values."""
    try:
        fields = dict(record)
        for name, value in fields.items():
            if isinstance(value, dict) and "shape" in value:
                fields[name] = Tensor(tuple(value["shape"]), tuple(value["strides"]), value["dtype"], value["alignment"])
        if (activation := fields.get("activation")) is not None:
            fields["activation"] = Activation(activation["mode"], **{name: float(v) for name, v in activation["parameters"]})
        return make_it(**fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{op}: not a record of a problem: {type(error).__name__}: {error}") from None


def dtype_word(text):
    """A dtype's name, given as one of its names; argparse's error where it is none."""
    try:
        return dtype_name(text)
    except TypeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def notes_word(text):
    """The notes of these names, with commas between; argparse's error where one is none."""
    known, notes = {note.name.lower(): note for note in Note if note}, Note.NONE
    for name in filter(None, text.split(",")):
        if name.lower() not in known:
            instead = nearest(name, known) or "; there are " + ", ".join((~Note.NONE).names)
            raise argparse.ArgumentTypeError(f"{name!r} is no note{instead}")
        notes |= known[name.lower()]
    return notes


def add_notes(add, *, allow=True):
    """``--allow``, unless that is no question, and ``--exclude``, the keywords of public functions; `add`: a parser's ``add_argument``."""
    if allow:
        add("--allow", type=notes_word, default=Note.NONE, metavar="NOTES",
            help="NONDETERMINISTIC admits algorithms whose results vary in the last bits")
    add("--exclude", type=notes_word, default=Note.NONE, metavar="NOTES",
        help="leave out algorithms with any of these notes, with commas, say TENSOR_CORE,FFT")
