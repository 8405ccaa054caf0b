"""Problems that no estimate was fitted to: near those of the named sets, with other sizes, drawn by an operation's name.

Each size of a problem in words that is 8 or more becomes another within a factor of two, and equal sizes of one problem stay equal, so that
heads, groups and channels still agree; filters, strides and the like are smaller and stay. Some of the new sizes are odd, some multiples
of 8 or 64. What then is no problem, or too large to be measured in a moment, is drawn again.
"""
import dataclasses
import random
import re

from . import shapes

SET = "random"
COUNT = 4           # of each operation and dtype
LEAST = 8           # sizes below are no sizes of tensors
MOST_BYTES, MOST_FLOPS = 1 << 30, 4e12
_TRIES = 60         # of each case
_SIZES = re.compile(r"(?<![\w.])[a-z]?\d+(?:x\d+)*(?![\w.])")  # 64x3x224x224, k64; not bf16, 0.5


def cases(op, dtypes=("float32",), count=COUNT) -> list:
    """Cases of an operation; the same ones each time."""
    module, found = shapes.of(op), []
    for dtype in dtypes:
        draw = random.Random(f"{op} {dtype}")
        known = [case for name in module.SETS for case in module.cases(name, (dtype,))]
        seen, own = {case.problem for case in known}, []
        for _ in range(_TRIES * count):
            if len(own) == count:
                break
            case = _near(draw.choice(known), draw)
            if case is not None and case.problem not in seen:
                seen.add(case.problem)
                own.append(case)
        found += own
    return found


def _near(case, draw):
    """A case like this one of other sizes; None where they make no problem."""
    sizes = {}

    def other(n):
        if n < LEAST:
            return n
        if n not in sizes:
            step = draw.choice((1, 8, 64))
            sizes[n] = max(step, round(n * 2 ** draw.uniform(-1, 1) / step) * step)
        return sizes[n]

    def words(text):
        return _SIZES.sub(lambda m: re.sub(r"\d+", lambda n: str(other(int(n[0]))), m[0]), text)
    changed = {"label": ""}
    for field in dataclasses.fields(case):
        value = getattr(case, field.name)
        if type(value) is int:
            changed[field.name] = other(value)
        elif field.name in ("words", "program"):
            changed[field.name] = words(value)
    try:
        made = dataclasses.replace(case, **changed)
        problem = made.problem
    except (ValueError, TypeError):
        return None
    return made if not problem.is_empty and problem.bytes <= MOST_BYTES and problem.flops <= MOST_FLOPS else None
