"""The command ``python -m dnnkern run``: a PyTorch program as it is, on this library's kernels."""
import contextlib
import importlib.abc
import importlib.util
import os
import runpy
import sys

HELP = """Run a PyTorch program, as it is, on this library's kernels: run train.py ARGUMENTS, or run -m MODULE ARGUMENTS. Options of this
command come before the program. What ran is printed to stderr at the end."""


def add_arguments(add):
    """The options, by a parser's ``add_argument``."""
    add("--ops", default="heavy", metavar="NAMES", help="what runs on this library: heavy (the default), all, or operators (mm) and "
        "groups of them (norm), separated by commas")
    add("--exclude", default="", metavar="NAMES", help="operators or groups that stay PyTorch's")
    add("--strict", action="store_true", help="an error where a call of them goes back to PyTorch")
    add("--report", action="store_true", help="print a table: calls of each operator, and why some went back to PyTorch")
    add("--simulate", action="store_true", help="without a GPU: the program's device cuda is the processor, or with "
        "DNNKERN_DEVICE=simulator the simulator")
    add("-m", dest="module", action="store_true", help="the program is the name of a module")
    add("program", help="a file, or with -m a module")


def main(arguments) -> int:
    """Run the program; its exit code."""
    if not arguments.module and not os.path.exists(arguments.program):
        raise ValueError(f"run: there is no file {arguments.program!r}; expected a program, or -m and the name of a module")
    if arguments.simulate:
        simulate()
    need_pytorch("run")
    from .torch import enable
    exclude = tuple(filter(None, arguments.exclude.split(",")))
    enable(arguments.ops, exclude=exclude, strict=arguments.strict)
    before = sys.argv, sys.path[0]
    sys.argv = [arguments.program, *arguments.words]
    os.environ.setdefault("KERAS_BACKEND", "torch")
    try:
        with devices(arguments.simulate), _keras():
            if arguments.module:
                sys.path[0] = os.getcwd()
                runpy.run_module(arguments.program, run_name="__main__", alter_sys=True)
            else:
                sys.path[0] = os.path.dirname(os.path.realpath(arguments.program))
                runpy.run_path(arguments.program, run_name="__main__")
    except Exception as error:  # as Python shows it, without the frames of this command
        error = error.with_traceback(_of_program(error.__traceback__))
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    finally:
        sys.argv, sys.path[0] = before
        _report(arguments.report)
    return 0


def need_pytorch(command):
    """ValueError without PyTorch."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ValueError(f"{command}: PyTorch cannot be imported ({error}); expected 2.9 or newer: pip install torch") from None


def _of_program(traceback):
    """The part of a traceback that begins in the program; all of it where the program was not reached."""
    here, inner = {__file__, runpy.__file__, "<frozen runpy>"}, traceback
    while inner is not None and inner.tb_frame.f_code.co_filename in here:
        inner = inner.tb_next
    return inner or traceback


def simulate():
    """The processor, or what the environment asks for instead of a GPU; in the simulator the simplest algorithms."""
    from .device._mode import NUMBA_VARIABLE, VARIABLE
    from .preference import VARIABLE as PREFER
    if os.environ.get(NUMBA_VARIABLE, "0") == "0" and os.environ.get(VARIABLE) != "simulator":
        os.environ[VARIABLE] = "cpu"
    else:
        os.environ.setdefault(PREFER, "naive")


def devices(simulate):
    """A block in which the device "cuda" is the processor, if that is asked for."""
    if not simulate:
        return contextlib.nullcontext()
    from .torch._devices import cuda_is_cpu
    return cuda_is_cpu()


class _WithKeras(importlib.abc.MetaPathFinder):
    """Imports ``dnnkern.keras`` once the program has imported Keras, by itself or through TensorFlow."""

    def find_spec(self, name, path, target=None):
        if name != "keras":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = self.after(spec.loader.exec_module)
        return spec

    @staticmethod
    def after(load):
        def exec_module(module):
            load(module)
            try:
                from . import keras  # noqa: F401
            except ImportError as error:  # another backend: nothing of it runs on PyTorch
                print(f"dnnkern: nothing of Keras runs on its kernels: {error}", file=sys.stderr)
        return exec_module


@contextlib.contextmanager
def _keras():
    """In the block Keras' functions are replaced as soon as it is imported."""
    finder = _WithKeras()
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


def _report(table):
    """Print what ran on this library's kernels, and what on PyTorch's."""
    from ._table import show, time_text
    from .torch import status
    rows = status()
    ours, back = (sum(row.calls for row in rows if row.ours is which) for which in (True, False))
    if table and rows:
        print(file=sys.stderr)
        show(("operator", "ran on", "calls", "time", "why"),
             [(row.op, "dnnkern" if row.ours else "PyTorch", row.calls, time_text(row.seconds * 1e3), row.why) for row in rows],
             file=sys.stderr)
    print(f"dnnkern: {ours} calls of {len({row.op for row in rows if row.ours})} operators ran on its kernels, {back} went back to PyTorch"
          f"{'' if table or not rows else ' (--report lists them)'}", file=sys.stderr)
