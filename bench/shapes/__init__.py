"""What is measured: one module ``<op>.py`` for each operation, with named sets of cases.

Such a module binds ``SETS``, ``DTYPES``, ``cases(name, dtypes, layouts, math)`` and ``parse(text, dtypes, layouts, math)``; a case has
``op``, ``problem``, ``call(arrays, **keywords)`` and a text.
"""
import importlib
from pathlib import Path

from dnnkern import dispatch
from dnnkern.host.dtypes import dtype_name

_PRODUCTS = {"matmul": "8x8x8", "grouped_matmul": "2x5x4x3", "grouped_matmul_bwd_weights": "2x5x4x3"}
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
    if op in _PRODUCTS:
        return of(op).parse(_PRODUCTS[op], ("float32",))[0]
    texts = [text.split() for text in _check_texts(op)]
    known = [_in_words(op, words) for words in texts if dtype_name(words[_dtype_at(words)]) in of(op).DTYPES]
    return min(known, key=lambda case: case.problem.bytes)


def _check_texts(op):
    families = (importlib.import_module(f"dnnkern.{family}._parse") for family in dispatch.families())
    return next(words.SMALL[op] for words in families if op in getattr(words, "SMALL", {}))


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
