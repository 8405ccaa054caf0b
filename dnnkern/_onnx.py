"""The command ``dnnkern onnx`` without the package onnx: its options, and the message where it is missing."""
HELP = """Run a model of ONNX once on this library's kernels: onnx model.onnx --report. Inputs are random, or those of a file."""


def add_arguments(add):
    """The options, by a parser's ``add_argument``."""
    add("model", help="a file of an ONNX model")
    add("--report", action="store_true", help="print a table of the nodes: what computed each, with which it is fused, and why some ran on "
        "the host")
    add("--inputs", metavar="FILE.npz", help="arrays by the names of the inputs; the others are random")
    add("--save", metavar="FILE.npz", help="write the outputs")
    add("--dim", action="append", default=[], metavar="NAME=NUMBER", help="an extent that the model leaves open, such as batch=2")
    add("--seed", type=int, default=0, metavar="N", help="of random inputs")
    add("--unfused", action="store_true", help="one node at a time")


def main(arguments) -> int:
    """Run the model; the exit code."""
    import sys
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise ValueError(f"onnx: the package onnx cannot be imported ({error}); expected it: pip install onnx") from None
    from ._output import FAILED
    from ._parser import program
    from .onnx._command import main
    try:
        return main(arguments)
    except (RuntimeError, MemoryError, RecursionError) as error:
        line = " ".join(str(error).split()) or type(error).__name__
        print(f"{program()}: onnx: {arguments.model}: {line}", file=sys.stderr)
        return FAILED
