"""What ours are compared with: one module ``<name>_<op>.py`` for each library and operation; those whose library is missing are left out.

Such a module binds ``NAME`` and ``make(case, operands, clock) -> Peer or None`` (None: the library cannot do it).
"""
import importlib
from pathlib import Path


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
        A part of what it does that ours do not, which the library cannot leave out; its time, of the same run, is taken off.
    """

    def __init__(self, contender, write, tolerance=None, results=None, less=None):
        self.contender, self.write, self.tolerance, self.results, self.less = contender, write, tolerance, results, less


def peers_of(op) -> tuple:
    """Modules of the peers of an operation, and why others are missing."""
    found, missing = [], []
    longer = {p.stem for p in Path(__file__).parent.parent.glob("shapes/*.py") if p.stem.endswith(f"_{op}")}
    for path in sorted(Path(__file__).parent.glob(f"*_{op}.py")):
        if any(path.stem.endswith(f"_{other}") for other in longer):  # torch_grouped_matmul is no peer of matmul
            continue
        try:
            found.append(importlib.import_module(f"bench.peers.{path.stem}"))
        except ImportError as error:
            missing.append(f"{path.stem}: {error}")
    return found, missing
