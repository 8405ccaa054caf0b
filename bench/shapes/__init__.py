"""What is measured: one module ``<op>.py`` for each operation, with named sets of cases.

Such a module binds ``SETS``, ``DTYPES``, ``cases(name, dtypes, layouts, math)`` and ``parse(text, dtypes, layouts, math)``; a case has
``op``, ``problem``, ``call(arrays, **keywords)`` and a text.
"""
import importlib
from pathlib import Path

from dnnkern import _parser
from dnnkern.host.dtypes import dtype_name

_PRODUCTS = "matmul", "grouped_matmul", "grouped_matmul_bwd_weights"  # whose cases are sizes alone
_LAYOUTS = "nchw", "nhwc"


def operations() -> list:
    """The operations that have a module."""
    return sorted(p.stem for p in Path(__file__).parent.glob("[a-z]*.py"))


def of(op):
    """The module of an operation."""
    if op not in operations():
        raise ValueError(f"bench: no problems are named for {op!r}; there are some for {', '.join(operations())}")
    return importlib.import_module(f"bench.shapes.{op}")


def tiny(op):
    """A case for the simulator: the smallest problem on which ``python -m dnnkern check`` tries the operation."""
    texts = [text.split() for text in _check_texts(op)]
    if op in _PRODUCTS:
        return of(op).parse(texts[0][0], ("float32",))[0]
    known = [_in_words(op, words) for words in texts if dtype_name(words[_dtype_at(words)]) in of(op).DTYPES]
    return min(known, key=lambda case: case.problem.bytes)


def _check_texts(op):
    return importlib.import_module(f"dnnkern.{_parser.operations()[op]}._parse").SMALL[op]


def _in_words(op, words):
    """The case of words with dtype and layout."""
    at = _dtype_at(words)
    layouts = tuple(word for word in words if word in _LAYOUTS)
    text = " ".join("{}" if k == at else word for k, word in enumerate(words) if word not in layouts)
    return of(op).parse(text, (dtype_name(words[at]),), layouts)[0]


def _dtype_at(words):
    return next(k for k, word in enumerate(words) if _is_dtype(word))


def _is_dtype(word):
    try:
        return bool(dtype_name(word))
    except TypeError:
        return False
