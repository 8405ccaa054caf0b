"""Calls of overrides like earlier ones, without what overrides do besides calling this library's functions.

An override looks at dtypes, memory formats and windows, and calls one function of the library or a few, of which each makes a call like an
earlier one by a `host.sites` function. Where all did, a shortcut is generated: it compares what the override was given, and calls the
sites. For ``convolution`` it is::

    def shortcut(args):
        try:
            a0, a1, *given = args
        except ValueError:
            return MISS
        if given != rest or state0() != setting0 or state1() != setting1:
            return MISS
        r0 = site0((a0, a1), None, scalars0, None)
        if r0 is MISS:
            return MISS
        return r0

The sites' guards compare the tensors. An override that has shortcuts says what else its calls depend on (`_table.Override.state`).

In a program many layers take turns, and between them runs all else that it does: little of what a call needs is in the processor's caches
by then, and each line that it fetches counts. So constants that are equal are one object, and the shortcut that most often comes next is
tried before any is looked for.
"""
import contextlib
import functools
import threading

import torch

from ..host.front import FOLLOWERS, MISS
from ..host.guards import make_guard
from ..registry import when_choices_change
from ._table import nothing
from ._tensors import PRECISIONS

_PLAIN = int, float, bool, str, type(None), torch.dtype, torch.device
_SHORTCUTS = 8    # for arguments whose first tensor has the same shape
_ATTEMPTS = 32    # to make one, for such arguments
_KEYS = 1 << 12
SITES_FROM = 2    # calls before an override's calls have sites
_CONSTANTS = {}   # {how it is written: a constant of shortcuts}


class _Turn:
    """A shortcut after another one, and the turn that most often comes after this one: layers that are alike follow each other in groups,
    where the one before tells which of its group a layer is, and at whose end something else comes once."""
    __slots__ = "shortcut", "following", "erred"

    def __init__(self, shortcut):
        self.shortcut, self.following, self.erred = shortcut, None, False


class Repeated:
    """The shortcuts of an override.

    Parameters
    ----------
    function : callable
        The override.
    state : callable or tuple of them
        () -> what its calls depend on besides their arguments.
    """

    def __init__(self, function, state):
        self.function = function
        self.state = () if state is nothing else state if type(state) is tuple else (state,)
        self.known, self.tries, self.pairs = {}, {}, {}
        self.last = _Turn(None)
        when_choices_change(self.forget)

    def forget(self):
        """Drop all shortcuts."""
        self.known.clear()
        self.tries.clear()
        self.pairs.clear()
        self.last = _Turn(None)

    def shortened(self, args):
        """The result of a call, by a shortcut; MISS where there is none."""
        last = self.last
        following = last.following
        if following is not None:
            result = following.shortcut(args)
            if result is not MISS:
                if self.last is last:  # else another thread has had a call, or dropped all shortcuts
                    self.last = following
                if last.erred:
                    last.erred = False
                return result
        try:
            shortcuts = self.known.get(args[0].shape, ())
        except AttributeError:  # no tensor
            return MISS
        for shortcut in shortcuts:
            result = shortcut(args)
            if result is not MISS:
                self._follow(last, shortcut)
                return result
        return MISS

    def _follow(self, last, shortcut):
        """Remember what came after the last turn."""
        if len(self.pairs) >= _KEYS:
            self.forget()
        turn = self.pairs.get((last.shortcut, shortcut))
        if turn is None:
            turn = self.pairs[last.shortcut, shortcut] = _Turn(shortcut)
        if self.last is last:
            self.last = turn
        if last.following is None or last.erred:
            last.following = turn
        last.erred = not last.erred

    def call(self, *args, **kwargs):
        """The result of the override, which is followed once its calls have sites."""
        if kwargs:
            return self.function(*args, **kwargs)
        shape = getattr(args[0], "shape", None)
        settings = tuple([state() for state in self.state])
        tried = self.tries.get((shape, settings), 0)
        if tried > _ATTEMPTS:
            return self.function(*args)
        if len(self.tries) >= _KEYS:
            self.forget()
        self.tries[shape, settings] = tried + 1
        if tried < SITES_FROM:
            return self.function(*args)
        with followed() as calls:
            result = self.function(*args)
        shortcut = make_shortcut(args, result, calls, zip(self.state, settings))
        if shortcut is not None:
            self.known[shape] = (shortcut, *self.known.get(shape, ())[:_SHORTCUTS - 1])
        return result


repeated = functools.cache(Repeated)
"""The one `Repeated` of an override: what it knows outlives `enable` and `disable`."""


@contextlib.contextmanager
def followed():
    """The calls that this thread makes of the library's functions in the block, as `FOLLOWERS` are told of them."""
    calls, here = [], threading.get_ident()

    def follow(*call):
        if threading.get_ident() == here:
            calls.append(call)
    FOLLOWERS.append(follow)
    try:
        yield calls
    finally:
        FOLLOWERS.remove(follow)


def make_shortcut(args, result, calls, settings=()):
    """A function of the arguments that makes these calls; None where they are not all of it. `settings` are pairs of a function and what
    it has to return."""
    names = {id(a): (a, f"a{k}") for k, a in enumerate(args) if isinstance(a, torch.Tensor)}
    if not names:
        return None
    made, values, lines, looked_at = {}, {}, [], set()
    for n, (operation, site, operands, out, scalars, results) in enumerate(calls):
        writes = out is not None or operation.updates and any(x is not None and name in operation.updates
                                                              for name, x in zip(operation.operands, operands))
        if site is None or writes and n + 1 < len(calls):
            return None  # what was written in place would be written again
        given = _sequence(operands, names)
        into = "None" if out is None else _sequence(out, names) if isinstance(out, tuple) else _named(out, names)
        if given is None or into is None:
            return None
        looked_at.update(map(id, operands))
        values[f"site{n}"], values[f"scalars{n}"] = site, scalars
        lines += [f"r{n} = site{n}({given}, {into}, scalars{n}, None)", f"if r{n} is MISS:", "    return MISS"]
        if type(results) is tuple:
            made.update((id(r), (r, f"r{n}[{i}]")) for i, r in enumerate(results))
        else:
            made[id(results)] = results, f"r{n}"
    returned = _returned(result, names, made, values)
    if not calls or returned is None:
        return None
    tensors = {k: a for k, a in enumerate(args) if isinstance(a, torch.Tensor)}
    constants = {k: _constant(a) for k, a in enumerate(args) if k not in tensors}
    if None in constants.values():
        return None
    taken = 1 + max(tensors)
    values["rest"] = _constant([constants[k][0] for k in range(taken, len(args))])[0]
    tests = ["given != rest"]
    for k, (constant,) in constants.items():
        if k < taken:
            values[f"c{k}"] = constant
            tests.append(f"a{k} is not None" if constant is None else f"a{k} != c{k}")
    if not any(a.dtype is torch.float32 for a in tensors.values()):
        settings = [pair for pair in settings if pair[0] not in PRECISIONS.values()]
    for k, (state, setting) in enumerate(settings):
        values[f"state{k}"], values[f"setting{k}"] = state, setting
        tests.append(f"state{k}() != setting{k}")
    others = [k for k, a in tensors.items() if id(a) not in looked_at]
    if others:  # tensors that no site looks at: of which views are taken, or whose memory nothing reads
        values["guard"] = make_guard([args[k] for k in others])
        if values["guard"] is None:
            return None
        tests.append(f"not guard({', '.join(f'a{k}' for k in others)})")
    head = ["try:", f"    {''.join(f'a{k}, ' for k in range(taken))}*given = args", "except ValueError:", "    return MISS",
            f"if {' or '.join(tests)}:", "    return MISS"]
    return _maker((*head, *lines, f"return {returned}"), tuple(values))(*values.values())


def _constant(value):
    """The one object of equal constants, which nobody writes, in a tuple; None where it is no plain value and no list of such."""
    if type(value) is list:
        value = [_constant(v) for v in value]
        if None in value:
            return None
        value = [v for v, in value]
    elif type(value) not in _PLAIN:
        return None
    if len(_CONSTANTS) >= _KEYS:
        _CONSTANTS.clear()
    return _CONSTANTS.setdefault(repr(value), (value,))


def _sequence(arrays, known):
    """The source of a tuple of arguments; None if something is none."""
    found = ["None" if a is None else _named(a, known) for a in arrays]
    return None if None in found else f"({''.join(f'{name}, ' for name in found)})"


def _named(tensor, known):
    """The source of a tensor that is known, {id: (tensor, source)}, or a view of such of another shape; None if it is neither."""
    found = known.get(id(tensor))
    if found is not None:
        return found[1]
    for other, source in known.values():
        if tensor.data_ptr() == other.data_ptr() and tensor.numel() == other.numel() and tensor.dtype is other.dtype and (
                tensor.is_contiguous() and other.is_contiguous()):
            return f"{source}.view({tuple(tensor.shape)})"
    return None


def _returned(result, names, made, values):
    """The source of what an override returns: results of calls, views of them of another shape, its arguments, None, tensors without
    elements; None if it is something else."""
    if type(result) in (tuple, list):
        parts = [_returned(part, names, made, values) for part in result]
        return None if None in parts else f"({''.join(f'{part}, ' for part in parts)})"
    if result is None:
        return "None"
    if not isinstance(result, torch.Tensor):
        return None
    source = _named(result, {**names, **made})
    if source is None and not result.numel():
        name = f"empty{len(values)}"
        values[name] = functools.partial(torch.empty_strided, result.shape, result.stride(), dtype=result.dtype, device=result.device)
        return f"{name}()"
    return source


@functools.lru_cache(1024)
def _maker(lines, names):
    """A function that makes a shortcut with these lines, of the values that have these names in them."""
    text = "\n".join([f"def make({', '.join(names)}):", "    def shortcut(args):", *(f"        {line}" for line in lines),
                      "    return shortcut"])
    found = {"MISS": MISS}
    exec(compile(text, "<shortcut>", "exec"), found)
    return found["make"]
