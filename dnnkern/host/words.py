"""Problems in words: short forms of calls, as ``8192x4096 bf16 --axis -1``, for the command line and for lists of shapes.

A form is a function of an operation and words that returns a problem, by `dnnkern.problem` of the operation's public function. Its
signature is the grammar: positional parameters are words, with a default they may be missing, ``*terms`` are any number; keyword-only
parameters are options, ``log=False`` is ``--log``; ``**options`` are all other parameters of the public function that are no arrays. What a
word is follows from the annotation (a function of the text, a tuple of choices, or a dict: keywords of ``add_argument``), else from the parameter's name, else from its default.
"""
import argparse
import functools
import inspect
import re

from ..dispatch import Note
from .dtypes import dtype_name
from .products import FP8
from .scalars import LARGEST
from .suggest import nearest


class WordParser(argparse.ArgumentParser):
    """Raises ValueError where it cannot parse."""

    def error(self, message):
        raise ValueError(f"{self.prog}: {message}")


class Words:
    """The forms of a family. Decorate each: ``@words("softmax_fwd", "softmax_bwd", small=texts)``.

    `small` are the problems that ``python -m dnnkern check`` tries: texts of all these operations, or {operation: texts}. The family's
    module binds `FAMILY`, `SMALL` and `parse_problem`.
    """

    def __init__(self):
        self.family, self.small = {}, {}

    def __call__(self, *ops, small):
        def add(form):
            for op in ops:
                self.small[op] = small[op] if isinstance(small, dict) else small
                self.family[op] = (functools.partial(add_arguments, op, form), functools.partial(_make, op, form),
                                   functools.partial(self._from_record, op))
            return form
        return add

    def parse(self, words, op=None):
        """The problem of `op`, by default the family's first, that a list of words describes; ValueError or TypeError in one line where
        they make no sense.

        >>> from dnnkern.softmax._parse import parse_problem
        >>> print(parse_problem("8192x4096 bf16 --log".split(), "softmax_fwd"))
        softmax_fwd 8192x4096 bfloat16 axis 1 log
        """
        op = op or next(iter(self.family))
        add, make, _ = self.family[op]
        parser = WordParser(op, add_help=False)
        add(parser)
        return make(parser.parse_args(list(words)))

    def _from_record(self, op, record):
        from .records import problem_of_record
        return problem_of_record(type(self.parse(self.small[op][0].split(), op)), op, record)


def _parameters(op, form):
    """The form's parameters but the operation, and the public function's that stand for its ``**options``."""
    _, *own = inspect.signature(form).parameters.values()
    if own[-1].kind is not own[-1].VAR_KEYWORD:
        return own
    import dnnkern

    from ..registry import operation_of
    from ..sketch import _NOT_OF_A_PROBLEM
    known = {"out", *(p.name for p in own), *operation_of(op).labels, *_NOT_OF_A_PROBLEM}
    return own[:-1] + [p.replace(kind=p.KEYWORD_ONLY) for p in inspect.signature(getattr(dnnkern, op)).parameters.values()
                       if p.name not in known and p.default is not p.empty]


def add_arguments(op, form, parser):
    """The words of a form."""
    told = _told(op)
    for p in _parameters(op, form):
        how, kind = {"help": told.get(p.name)}, p.annotation
        if kind is p.empty:
            kind = _KIND_OF_DEFAULT.get(type(p.default)) or _KINDS.get(p.name) or (str if isinstance(p.default, str) else value_word)
        if isinstance(p.default, bool):
            how["action"] = "store_false" if p.default else "store_true"
        else:
            how |= kind if isinstance(kind, dict) else {"type": kind} if callable(kind) else {"choices": kind}
        if p.kind is p.KEYWORD_ONLY:
            parser.add_argument(("--no-" if p.default is True else "--") + p.name.replace("_", "-"), dest=p.name, default=p.default, **how)
        elif p.default is not p.empty:
            parser.add_argument(p.name, nargs="?", default=p.default, **how)
        else:
            parser.add_argument(p.name, **{"nargs": "*"} if p.kind is p.VAR_POSITIONAL else {}, **how)
    parser.epilog = inspect.getdoc(form)


def _told(op):
    """{parameter: its first sentence} of the public function's docstring."""
    import dnnkern
    doc = inspect.getdoc(getattr(dnnkern, op)) or ""
    found = {}
    for names, text in re.findall(r"^(\w+(?:, \w+)*) : .*\n    (.*?)(?:\.|;|\n\S|\n\n)", doc, re.MULTILINE):
        found.update(dict.fromkeys(names.split(", "), text.replace("%", "%%")))
    return found


def _make(op, form, arguments):
    """The problem of a parser's namespace."""
    places, options = [op], {}
    for p in _parameters(op, form):
        value = getattr(arguments, p.name)
        if p.kind is p.KEYWORD_ONLY:
            options[p.name] = value
        else:
            places += value if p.kind is p.VAR_POSITIONAL else [value]
    return form(*places, **options)


# ---- words

def dtype_word(text):
    """A dtype's name, given as one of its names; argparse's error where it is none."""
    try:
        return dtype_name(text)
    except TypeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def sizes_word(text):
    """Sizes written 64x3x224x224."""
    if not re.fullmatch(r"\d+(x\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a shape such as 64x3x224x224")
    sizes = tuple(int(n) for n in text.split("x"))
    if max(sizes) > LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} has a size beyond {LARGEST}")
    return sizes


def shape_word(text):
    """Sizes written 64x256, or "scalar"."""
    return () if text == "scalar" else sizes_word(text)


def shapes_word(text):
    """Shapes written 64x3x7x7,64,12*256x256: the last one twelve times."""
    found = []
    for word in text.split(","):
        times, star, shape = word.rpartition("*")
        if star and not re.fullmatch(r"[1-9]\d*", times):
            raise argparse.ArgumentTypeError(f"{word!r} is not a shape such as 64x256 or 12*64x256")
        found += [sizes_word(shape)] * int(times or 1)
    return tuple(found)


def integers_word(text):
    """Integers written 0,2,-1."""
    if not re.fullmatch(r"-?\d+(,-?\d+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of integers such as 0,2,3")
    return tuple(map(int, text.split(",")))


def value_word(text):
    """An integer, a number, or a name."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def upper_word(text):
    """A layout."""
    return text.upper()


_WINDOW = {"stride": r"s(\d+(?:x\d+)*)", "padding": r"p(\d+(?::\d+)?(?:x\d+(?::\d+)?)*)", "dilation": r"d(\d+(?:x\d+)*)"}


def terms(windows=False, numbers=None, **flags):
    """A word of ``*terms``, (parameter, value): a layout, one of the flags, {text: (parameter, value)}, one of the numbers, {parameter:
    pattern}, and with windows s2 (stride), p1 or p0:1x2:0 (padding) and d2 (dilation)."""
    known = {**flags, "nchw": ("layout", "NCHW"), "nhwc": ("layout", "NHWC")}

    def term(text):
        if text.lower() in known:
            return known[text.lower()]
        for name, pattern in (numbers or {}).items():
            if found := re.fullmatch(pattern, text):
                return name, int(found[1])
        for name, pattern in _WINDOW.items() if windows else ():
            if found := re.fullmatch(pattern, text):
                parts = [tuple(map(int, part.split(":"))) for part in found[1].split("x")]
                values = tuple(part if len(part) > 1 else part[0] for part in parts)
                return name, values[0] if len(values) == 1 and not isinstance(values[0], tuple) else values
        more = ("s2 or s2x1 (stride)", "p1, p1x2 or p0:1x2:0 (padding)", "d2 (dilation)") if windows else ()
        raise argparse.ArgumentTypeError(f"{text!r} is none of {', '.join((*more, *known, *(numbers or ())))}")
    return term


_KINDS = {"dtype": dtype_word, "out_dtype": dtype_word, "axis": int, "layout": upper_word,
          **dict.fromkeys(("shape", "size", "window"), sizes_word)}
_KIND_OF_DEFAULT = {int: int, float: float, tuple: integers_word}


# ---- what forms have in common

def like(t):
    """A tensor's shape and dtype, as `dnnkern.problem` takes them; None for None."""
    return t and (t.shape, t.dtype)


def image(shape, layout="NCHW"):
    """The shape of an array of images, written N, C, then the extents for every layout."""
    n, c, *extents = (*shape, 1, 1)[:max(len(shape), 2)]
    return (n, c, *extents) if layout == "NCHW" else (n, *extents, c)


def addend_dtype(out):
    """dtype of a bias or c beside results of this dtype."""
    return "float32" if out == "int8" or out in FP8 else out


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
