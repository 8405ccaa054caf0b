"""Finds the benches of ``python -m dnnkern bench``: beside the package in a source checkout; they are not installed."""
import sys
from pathlib import Path


def load():
    """The module `bench.run`, from any directory; ValueError without a source checkout."""
    root = Path(__file__).resolve().parent.parent
    if not (root / "bench" / "run.py").is_file():
        raise ValueError(f"the benches are not installed with the package and not in {root}: run this from a source checkout")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    from bench import run
    return run
