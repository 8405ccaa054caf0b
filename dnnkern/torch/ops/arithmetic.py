"""Sums, differences, products, quotients, comparisons and choices of tensors, and of tensors and numbers."""
import functools
import math

import torch

from .._table import Refused, aten
from .pointwise import run

_COMPARISONS = {"eq": "cmp_eq", "ne": "cmp_neq", "gt": "cmp_gt", "ge": "cmp_ge", "lt": "cmp_lt", "le": "cmp_le"}
_LARGEST = torch.finfo(torch.float32).max


def _are_integers(*args, **kwargs):
    """Arithmetic of integers is PyTorch's: programs of floats have some everywhere."""
    for a in args:
        if isinstance(a, torch.Tensor) and not a.is_floating_point():
            return True
    return False


def _number(value, x):
    """The number beside a tensor, where float32 holds it."""
    if not isinstance(value, (int, float)):
        raise Refused(f"a {type(value).__name__} beside a tensor")
    if x.dtype is not torch.float64 and _LARGEST < abs(value) < math.inf:
        raise Refused(f"{value} beside {x.dtype}")
    return float(value)


def _combined(mode, a, b, alpha=1, out=None):
    """``a + alpha * b`` and others: at most one of both is a number."""
    if not isinstance(b, torch.Tensor):
        return run(mode, (a,), (_number(b, a) * _number(alpha, a),), out=out)
    if not isinstance(a, torch.Tensor):
        if alpha != 1:
            raise Refused("a factor of a tensor that is added to a number")
        return run(mode if mode in ("add", "mul") else f"r{mode}", (b,), (_number(a, b),))
    if alpha != 1:
        return run(f"{mode}_scaled", (a, b), (_number(alpha, a),), out=out)
    return run(mode, (a, b), out=out)


def _scaled(mode, a, b, *, alpha=1):
    return _combined(mode, a, b, alpha)


def _plain(mode, a, b):
    return _combined(mode, a, b)


def _scaled_in_place(mode, a, b, *, alpha=1):
    return _combined(mode, a, b, alpha, a)


def _in_place(mode, a, b):
    return _combined(mode, a, b, out=a)


def _compared(mode, x, y):
    """Numbers are rounded to x's dtype first, as PyTorch rounds them."""
    if isinstance(y, torch.Tensor):
        return run(mode, (x, y), result=torch.bool)
    rounded = _rounded(_number(y, x), x.dtype)
    return run(mode, (x,), (rounded,), result=torch.bool)


@functools.lru_cache(256)
def _rounded(value, dtype):
    if not dtype.is_floating_point:
        raise Refused(f"dtype {dtype}")
    found = torch.scalar_tensor(value, dtype=dtype).item()
    if math.isinf(found) and not math.isinf(value):
        raise Refused(f"{value} beside {dtype}")
    return found


def _add(names, function, mode, **how):
    aten(*names, heavy=False, **how)(functools.update_wrapper(functools.partial(function, mode), function))


for _mode, _new, _within in (("add", _scaled, _scaled_in_place), ("sub", _scaled, _scaled_in_place), ("mul", _plain, _in_place),
                             ("div", _plain, _in_place)):
    _add((f"{_mode}.Tensor",), _new, _mode, numbers=_are_integers)
    _add((f"{_mode}_.Tensor",), _within, _mode, numbers=_are_integers)
for _name, _mode in _COMPARISONS.items():
    _add((f"{_name}.Tensor", f"{_name}.Scalar"), _compared, _mode, numbers=_are_integers)


@aten("where.self", heavy=False)
def where(condition, x, y):
    """x where the condition holds, else y."""
    if condition.dtype is not torch.bool:
        raise Refused(f"a condition of {condition.dtype}")
    return run("where", (x, y), mask=condition)
