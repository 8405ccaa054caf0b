"""What ours are compared with: one module ``<name>_<op>.py`` for each library and operation; those whose library is missing are left out.

Such a module binds ``NAME`` and ``make(case, operands, clock) -> Peer or None`` (None: the library cannot do it).
"""
import importlib
from pathlib import Path

from bench import shapes


class Peer:
    """Another library's way to solve a case.

    Attributes
    ----------
    contender : dnnkern.host.timing.Contender
        Its name is the module's `NAME`.
    write : callable()
        Computes set 0 and leaves the result in the operands' output, waited for: the check.
    tolerance : float or None
        Of that check, where the library rounds its result more than ours are.
    results : tuple of str or None
        Which outputs it writes, where not all.
    less : Contender or None
        A part of what it does that ours do not, which the library cannot leave out; its time, of the same run, is taken off. Where less
        than a twentieth is left, the peer has no time.
    is_exact : bool
        Whether it computes as exactly as was asked of ours; else its time stands beside, and no ratio is to it.
    """

    def __init__(self, contender, write, tolerance=None, results=None, less=None, is_exact=True):
        self.contender, self.write, self.tolerance, self.results, self.less = contender, write, tolerance, results, less
        self.is_exact = is_exact


def peers_of(op) -> tuple:
    """Modules of the peers of an operation, and why others are missing, by name."""
    found, missing = [], {}
    for name, stem in _stems(op).items():
        try:
            found.append(importlib.import_module(f"bench.peers.{stem}"))
        except ImportError as error:
            missing[name] = str(error)
    return found, missing


def names_of(op) -> list:
    """The `NAME` of every peer of an operation, whether its library is installed or not."""
    return list(_stems(op))


def _stems(op):
    longer = {other for other in shapes.operations() if other.endswith(f"_{op}")}
    return {path.stem.removesuffix(f"_{op}").replace("_", " "): path.stem for path in sorted(Path(__file__).parent.glob(f"*_{op}.py"))
            if not any(path.stem.endswith(f"_{other}") for other in longer)}  # torch_grouped_matmul is no peer of matmul
