"""``python -m dnnkern bench``: ``main(argv) -> exit status``, with the arguments behind the word "bench".

The benches lie beside the package in a source checkout, with their shapes and peers; they are not installed.
"""
import sys
from pathlib import Path


def main(argv=None) -> int:
    """Run `bench.run.main`.

    Parameters
    ----------
    argv : list of str, optional
        ``["matmul", "--set", "square", "--dtype", "float32"]``; default ``sys.argv[1:]``. ``["--help"]`` explains.
    """
    return load().main(argv)


def load():
    """The module `bench.run`; SystemExit where there is no source checkout."""
    root = Path(__file__).resolve().parent.parent
    if not (root / "bench" / "run.py").is_file():
        raise SystemExit("dnnkern bench: the benches are in a source checkout of dnnkern, not in the installed package")
    if str(root) not in sys.path:
        sys.path.insert(0, str(root))
    from bench import run
    return run
