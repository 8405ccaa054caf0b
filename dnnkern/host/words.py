"""Problems in words: short forms of calls, as ``8192x4096 bf16 --axis -1``, for the command line and for lists of shapes.

A form is a function of an operation and words that returns a problem, by `dnnkern.problem` of the operation's public function. Its
signature is the grammar: positional parameters are words, with a default they may be missing, ``*terms`` are any number; keyword-only
parameters are options, ``log=False`` is ``--log``; ``**options`` are all other parameters of the public function that are no arrays. What a
word is follows from the annotation (a function of the text, a tuple of choices, or a dict: keywords of ``add_argument``), else from the
parameter's default, else from its name: `_KINDS`, and what the family adds.
"""
import argparse
import contextlib
import functools
import inspect
import re

import dnnkern

from ..dispatch import Note
from ..registry import operation_of
from ..sketch import _NOT_OF_A_PROBLEM, problem
from .dtypes import dtype_name
from .products import FP8
from .records import problem_of_record
from .scalars import LARGEST
from .suggest import nearest
from .tensor import Tensor

_TOLD = {
    "shape": "64x256x56x56; of images N, C and the extents, in this order for every layout", "dtype": "of the arrays: float32, bf16, ...",
    "in_place": "write the result over the input", "convolution": "flip the filter", "overwrite": "beta is 0",
    "scaled": "with grad_scale and found_inf", "counted": "with the step number on the device", "narrow": "states in the parameters' dtype",
    "states": "optional ones: v,momenta", "keep": "the value before the last function is a result too",
    "only_rows": "the last value itself is no result", "rows": "reductions of the last value: add,amax; of a cache: queries per sequence",
    "weights": "dtype of gamma, beta and given statistics", "lengths": "sequences have lengths of their own", "page": "keys per page",
    "ragged": "sequences begin at offsets, rows as in thd", "bottom_right": "align the last query to the last key",
    "block_mask": "a bit per block of 128 queries and 128 keys", "lse": "also return the log-sum-exp", "indices": "their dtype",
    "quantized": "fp8 scales of probabilities and result, and their largest magnitudes", "cache": "dtype of the caches",
    "stats": "also return the largest score and the sum of exponentials", "pairs": "rotated pairs per row", "value_size": "head size of v",
    "heads_inside": "the shape is batch x rows x heads x head size", "angles": "dtype of cosines and sines", "kv_heads": "heads of k and v",
    "targets": "soft, or the dtype of indices", "source": "gather so many rows", "target": "scatter to so many rows",
    "mode": "relu, exp, add, ...", "parameters": "upper_clip=6, alpha=0.5, ...", "slope": "shape of prelu's slope", "keys": "their number",
    "scales": "of 8-bit floats; of products by tensor, row (and column), block, or two of none, tensor, row, column, block: row,tensor",
    "dtype_w": "of the filter, where it is another 8-bit float", "dtype_b": "of b, where it is another 8-bit float",
    "weight": "class weights", "positions": "shape of the indices: 16x1024", "labels": "of the longest target",
    "steps": "functions, one after the other: relu, add@4096 (another array), mul@0.5 (a number), in a reduction sub@row-max",
    "layout": "nn, nt, tn, tt: t is stored transposed", "grads": "dtype of the gradients", "master": "with float32 master weights",
    "shapes": "of the arrays, with commas: 64x3x7x7,64,12*256x256 (the last one twelve times)", "running": "dtype of running statistics",
    "window": "3x3, or global; adaptive: the result's size", "sequences": "steps by sequences: 128x64", "layers": "num_layers",
    "sizes": "input by hidden size: 512x512", "projection": "proj_size", "to": "dtype of the result", "size": "extents of the grid",
    "order": "axes 0,2,3,1 or layouts NCHW:NHWC", "slices": "one per dimension, as in Python: :,3:,1:-1,::2", "bias": "add a bias",
    "block": "side, or elements, of a block", "out_dtype": "dtype of the result", "a": "its shape, or scalar", "b": "its shape, or scalar",
    "c": "its shape; of matmul: add beta * c", "residual": "add a residual", "cell": "its recurrence"}
"""Help of the words that are no parameters of public functions."""


class WordParser(argparse.ArgumentParser):
    """Raises ValueError where it cannot parse."""

    def error(self, message):
        raise ValueError(f"{self.prog}: {message}")


def new_words(**kinds):
    """What a family's `_parse` binds: a decorator of its forms, ``@words("softmax_fwd", "softmax_bwd", small=texts)``, `FAMILY`,
    {operation: (what adds its words to a parser, what makes a problem of them, and of a record)}, `SMALL`, {operation: texts} of problems
    that ``python -m dnnkern check`` tries, and `parse_problem`. `kinds`: of words, by the parameters' names.

    >>> from dnnkern.softmax._parse import parse_problem
    >>> print(parse_problem("8192x4096 bf16 --log".split(), "softmax_fwd"))
    softmax_fwd 8192x4096 bfloat16 axis 1 log
    """
    family, small_ones = {}, {}

    def words(*ops, small):
        def add(form):
            for op in ops:
                small_ones[op] = small[op] if isinstance(small, dict) else small
                family[op] = (functools.partial(_add_arguments, op, ops, form, kinds), functools.partial(_make, op, form),
                              lambda record, op=op: problem_of_record(type(parse_problem(small_ones[op][0].split(), op)), op, record))
            return form
        return add

    @functools.cache
    def parser_of(op):
        parser = WordParser(op, add_help=False)
        family[op][0](parser)
        return parser

    def parse_problem(words, op=None):
        """The problem of `op`, by default the family's first, that a list of words describes; ValueError or TypeError in one line where
        they make no sense."""
        op = op or next(iter(family))
        return family[op][1](parser_of(op).parse_args(list(words)))
    return words, family, small_ones, parse_problem


@functools.cache
def _signature(op):
    return inspect.signature(getattr(dnnkern, op)).parameters


@functools.cache
def _parameters(op, form):
    """The form's parameters but the operation, and the public function's that stand for its ``**options``."""
    _, *own = inspect.signature(form).parameters.values()
    if own[-1].kind is not own[-1].VAR_KEYWORD:
        return own
    known = {"out", *(p.name for p in own), *operation_of(op).labels, *_NOT_OF_A_PROBLEM}
    return own[:-1] + [p.replace(kind=p.KEYWORD_ONLY) for p in _signature(op).values() if p.name not in known and p.default is not p.empty]


def _add_arguments(op, ops, form, kinds, parser):
    told, kinds = _told(op, ops), {**_KINDS, **kinds}
    for p in _parameters(op, form):
        kind = p.annotation
        if kind is p.empty:
            kind = _KIND_OF_DEFAULT.get(type(p.default)) or kinds.get(p.name) or (str if isinstance(p.default, str) else value_word)
        how = {"help": told.get(p.name) or getattr(kind, "told", None)}
        if isinstance(p.default, bool):
            how["action"] = "store_false" if p.default else "store_true"
        else:
            how |= kind if isinstance(kind, dict) else {"type": kind} if callable(kind) else {"choices": kind}
        if p.kind is p.KEYWORD_ONLY:
            flag = _SHORT.get(p.name, p.name)
            if not isinstance(p.default, bool):
                how.setdefault("metavar", None if "choices" in how else flag.upper())
            parser.add_argument(("--no-" if p.default is True else "--") + flag.replace("_", "-"), dest=p.name, default=p.default, **how)
        else:
            count = {"nargs": "*"} if p.kind is p.VAR_POSITIONAL else {} if p.default is p.empty else {"nargs": "?", "default": p.default}
            parser.add_argument(p.name, **count, **how)


def _told(op, ops):
    """{parameter: its first sentence, or its type} of the docstrings of functions of one form, the operation's own before the others'."""
    found = {}
    for doc in (inspect.getdoc(getattr(dnnkern, name)) for name in (*ops, op)):
        for names, kind, text in re.findall(r"^(\w+(?:, \w+)*) : (.*)(?:\n    ([\s\S]*?)(?=[.;]\s|\n\S|\n\n))?", doc, re.MULTILINE):
            found.update(dict.fromkeys(names.split(", "), " ".join((text or kind).replace("%", "%%").split())))
    return found | {name: text for name, text in _TOLD.items() if name not in found or name == "dtype"}


def _make(op, form, arguments):
    """The problem of a parser's namespace."""
    given, options = [op], {}
    for p in _parameters(op, form):
        value = getattr(arguments, p.name)
        if p.kind is p.KEYWORD_ONLY:
            options[p.name] = value
        else:
            given += value if p.kind is p.VAR_POSITIONAL else [value]
    return form(*given, **options)


# ---- what forms have in common

def like(t):
    """A tensor's shape and dtype, as `dnnkern.problem` takes them; None for None."""
    return t and (t.shape, t.dtype)


def optional(shape, dtype):
    """An array of this shape, as `dnnkern.problem` takes it; None for None."""
    return None if shape is None else (shape, dtype)


def taken(op, given):
    """Those of the given arguments that the public function has."""
    return {name: value for name, value in given.items() if name in _signature(op)}


def either(op, forward, **given):
    """The problem of a function or its gradient, whose further arrays are the function's results and their gradients; each is given the
    arguments that it has."""
    if op == forward:
        return problem(op, **given)
    found, more = problem(forward, **taken(forward, given)), {}
    for name, p in _signature(op).items():
        if name.endswith("_shape"):
            more[name] = getattr(found, name[0]).shape
        elif p.default is p.empty and name not in given:
            known = [getattr(found, n) for n in (name, name[1:]) if isinstance(getattr(found, n, None), Tensor)]
            more[name] = like(known[0] if known else None if hasattr(found, name[1:]) else found.outputs[0])
    unknown = {name: value for name, value in given.items() if name not in _signature(forward)}
    return problem(op, **{**taken(op, given), **unknown}, **more)


def image(shape, layout="NCHW"):
    """The shape of an array of images, written N, C, then the extents for every layout."""
    n, c, *extents = (*shape, 1, 1)[:max(len(shape), 2)]
    return (n, c, *extents) if layout == "NCHW" else (n, *extents, c)


def of_images(op, forward, shape, dtype, terms, **given):
    """`either` of images and terms."""
    given.update(terms)
    return either(op, forward, x=(image(shape, given.get("layout", "NCHW")), dtype), **given)


def check_sizes(op, shape, *expected):
    """Raise ValueError if the sizes of a word are not as many as one of the expected texts names: "MxNxK"."""
    if len(shape) not in [text.count("x") + 1 for text in expected]:
        raise ValueError(f"{op}: '{'x'.join(map(str, shape))}' is not {' or '.join(expected)}")


def addend_dtype(out):
    """dtype of a bias or c beside results of this dtype."""
    return "float32" if out == "int8" or out in FP8 else out


# ---- words

def matching(pattern, text, what):
    """The text; argparse's error, that it is not `what`, where it does not match."""
    if not re.fullmatch(pattern, text):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return text


def dtype_word(text):
    """A dtype's name, given as one of its names; argparse's error where it is none."""
    try:
        return dtype_name(text)
    except TypeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def sizes_word(text):
    """Sizes written 64x3x224x224."""
    sizes = tuple(map(int, matching(r"\d+(x\d+)*", text, "a shape such as 64x3x224x224").split("x")))
    if max(sizes) > LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} has a size beyond {LARGEST}")
    return sizes


def window_word(text):
    """Sizes, one alone as a number; None for "global", the whole image."""
    sizes = None if text == "global" else sizes_word(text)
    return sizes and (sizes if len(sizes) > 1 else sizes[0])


def shape_word(text):
    """Sizes written 64x256, or "scalar"."""
    return () if text == "scalar" else sizes_word(text)


def shapes_word(text):
    """Shapes written 64x3x7x7,64,12*256x256: the last one twelve times."""
    words = [matching(r"([1-9]\d*\*)?[^*]*", word, "a shape such as 64x256 or 12*64x256").rpartition("*") for word in text.split(",")]
    return tuple(sizes for times, _, shape in words for sizes in [sizes_word(shape)] * int(times or 1))


def integers_word(text):
    """Integers written 0,2,-1."""
    return tuple(map(int, matching(r"-?\d+(,-?\d+)*", text, "a list of axes such as 0,2,3").split(",")))


def value_word(text):
    """An integer, a number, or a name."""
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text) if re.fullmatch(r"-?\d*\.?\d+(e-?\d+)?", text) else text


def any_of(told, *kinds):
    """A word of the first of these kinds that takes it; `told` is what argparse's error says that it is not."""
    def word(text):
        for kind in kinds:
            with contextlib.suppress(argparse.ArgumentTypeError):
                return kind(text)
        raise argparse.ArgumentTypeError(f"{text!r} is {told}")
    return word


def in_each_dtype(*texts):
    """Problems in words, that end with a dtype, of each that most operations have."""
    return tuple(f"{text} {dtype}" for dtype in ("f32", "bf16", "f16", "f64") for text in texts)


_WINDOW = {"stride": r"s(\d+(?:x\d+)*)", "padding": r"p(\d+(?::\d+)?(?:x\d+(?::\d+)?)*)", "dilation": r"d(\d+(?:x\d+)*)"}


def terms(windows=False, numbers=(), named={}, **flags):
    """A word of ``*terms``, (parameter, value): a layout, one of the flags, {text: (parameter, value)}, a number as in `numbers`,
    (example, parameter), ``parameter=value`` as in `named`, {parameter: kind of the value}, and with windows s2 (stride), p1 or p0:1x2:0
    (padding) and d2 (dilation)."""
    known = {**flags, "nchw": ("layout", "NCHW"), "nhwc": ("layout", "NHWC")}
    patterns = {**{name: re.sub(r"\d+", r"(\\d+)", example) for example, name in numbers}, **(_WINDOW if windows else {})}

    window = "s2 or s2x1 (stride), p1, p1x2 or p0:1x2:0 (padding), d2 (dilation), " * windows

    def term(text):
        if text.lower() in known:
            return known[text.lower()]
        name, _, value = text.partition("=")
        if name in named:
            return name, named[name](value)
        for name, pattern in patterns.items():
            if found := re.fullmatch(pattern, text):
                values = tuple(tuple(map(int, part.split(":"))) if ":" in part else int(part) for part in found[1].split("x"))
                return name, values[0] if len(values) == 1 and isinstance(values[0], int) else values
        raise argparse.ArgumentTypeError(f"{text!r} is none of {term.told}")
    term.told = f"{''.join(f'{name}=.. ({_TOLD[name]}), ' for name in named)}{window}{', '.join((*known, *dict(numbers)))}"
    return term


_KINDS = {"axes": integers_word, "layout": str.upper, "shapes": shapes_word,
          **dict.fromkeys(("dtype", "dtype_b", "dtype_w", "out", "out_dtype", "to", "weights", "running", "cache", "angles", "grads"),
                          dtype_word),
          **dict.fromkeys(("shape", "a", "b", "c", "mask"), shape_word), **dict.fromkeys(("size", "positions"), sizes_word),
          "window": window_word}
_SHORT = {"label_smoothing": "smoothing", "ignore_index": "ignore", "padding_idx": "padding", "padding_mode": "padding",
          "scale_grad_by_freq": "frequency", "align_corners": "corners"}
"""What options are called that stand for public functions' parameters of longer names."""
_KIND_OF_DEFAULT = {int: int, float: float, tuple: integers_word}


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
