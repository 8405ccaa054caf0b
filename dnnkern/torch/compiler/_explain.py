"""What has become of a compiled program, as data and as a table."""
import io
import re
from collections import deque
from pathlib import Path
from typing import NamedTuple

import torch

from ..._table import show

_DYNAMO = str(Path(torch._dynamo.__file__).parent)
programs = deque(maxlen=1024)
"""Of this process, the oldest first."""


class Part(NamedTuple):
    """Nodes that run together: in which pass, their operators, the kernels that run, and their predicted time, in seconds."""
    kind: str
    operators: tuple
    kernels: str
    seconds: float


class Left(NamedTuple):
    """A node that the operation graph does not compute: in which pass, its operator, who computes it, and why."""
    kind: str
    operator: str
    by: str
    reason: str


class Program:
    """A graph of Dynamo's: its passes, as they are compiled. `codes` are those that Dynamo traced: the outermost, which has the cache, then
    what that calls, each after what it calls itself."""

    def __init__(self, codes, number):
        self.code, self.number, self.made = codes[0] if codes else None, number, []
        named = codes[-1] if codes and codes[0].co_filename.startswith(_DYNAMO) else self.code  # it calls forwards of PyTorch's modules
        self.name = named and (named.co_filename, _origin(named.co_name))

    @property
    def is_cached(self):
        """Whether Dynamo has it."""
        entries = torch._dynamo.eval_frame._debug_get_cache_entry_list(self.code)
        return any(entry.compile_id == self.number for entry in entries)

    def add(self, kind, assembled):
        """One more pass."""
        self.made.append((kind, _parts(kind, assembled), _left(kind, assembled)))


def _parts(kind, assembled):
    return [Part(kind, tuple(dict.fromkeys(_name(n.target) for n in part.nodes)), part.kernels.plan.name, part.kernels.plan.seconds)
            for part in assembled.parts]


def _left(kind, assembled):
    return [Left(kind, _name(node.target), by, why) for node, (by, why) in assembled.left.items()]


def _name(target):
    if hasattr(target, "_schema"):
        return str(target).removeprefix("aten.").removesuffix(".default")
    return getattr(target, "__name__", str(target))


class Explanation:
    """What `explain` returns.

    Attributes
    ----------
    graphs : int
        How many graphs the program was broken into.
    parts : list of Part
    left : list of Left
    """

    def __init__(self, found):
        self.graphs = len(found)
        self.parts = [part for program in found for _, parts, _ in program.made for part in parts]
        self.left = [node for program in found for _, _, left in program.made for node in left]

    def __str__(self):
        text = io.StringIO()
        rows = [(part.kind, " + ".join(part.operators), part.kernels, f"{part.seconds * 1e6:.1f}") for part in self.parts]
        show(("pass", "operators", "kernels", "predicted µs"), rows, file=text)
        if self.left:
            show(("pass", "operator", "computed by", "why"), self.left, title="\nWhat the operation graph does not compute", file=text)
        return text.getvalue().rstrip("\n")

    __repr__ = __str__


def explain(compiled):
    """What has become of a compiled function or module, as far as it has been called.

    Parameters
    ----------
    compiled : callable
        What ``torch.compile(..., backend="dnnkern")`` returned.

    Returns
    -------
    Explanation
        `parts`: nodes that run together, with their kernels; `left`: operators that run by themselves, and why. It prints as tables.

    Raises
    ------
    TypeError
        It was not compiled.

    Examples
    --------
    >>> import torch, dnnkern.torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU())
    >>> compiled = torch.compile(model, backend="dnnkern")
    >>> y = compiled(torch.ones(2, 3))
    >>> [part.operators for part in dnnkern.torch.explain(compiled).parts]
    [('addmm', 'relu')]
    """
    name = _name_of(compiled)
    found = [p for p in programs if p.name is not None and p.name == name and p.is_cached]
    latest = {(p.code, str(p.number)): p for p in found}  # numbers begin anew with Dynamo's caches
    return Explanation(list(latest.values()))


def _name_of(compiled):
    """(file, name) of what was compiled."""
    if isinstance(compiled, torch._dynamo.eval_frame.OptimizedModule):
        function = type(compiled._orig_mod).forward
    else:
        function = getattr(compiled, "_torchdynamo_orig_callable", None)
    if function is None:
        raise TypeError(f"explain: compiled is a {type(compiled).__name__}; expected what torch.compile returned")
    function = getattr(function, "forward", function) if isinstance(function, torch.nn.Module) else function
    code = getattr(getattr(function, "__func__", function), "__code__", None)
    return code and (code.co_filename, code.co_name)


def _origin(name):
    """A function's name, of what Dynamo resumes it as."""
    found = re.fullmatch(r"torch_dynamo_resume_in_(.*)_at_\d+", name)
    return found[1] if found else name
