"""The command ``dnnkern run``: a program of PyTorch, Keras or JAX as it is, on this library's kernels."""
import contextlib
import importlib.abc
import importlib.util
import os
import re
import runpy
import sys

from ._parser import program

HELP = """Run a program of PyTorch, Keras or JAX, as it is, on this library's kernels: run train.py ARGUMENTS, or run -m MODULE ARGUMENTS.
Options of this command come before the program. What ran is printed to stderr at the end."""


def add_arguments(add):
    """The options, by a parser's ``add_argument``."""
    add("--ops", default="heavy", metavar="NAMES", help="what runs on this library: heavy (the default), all, or operators (mm) and "
        "groups of them (norm), separated by commas")
    add("--exclude", default="", metavar="NAMES", help="operators or groups that stay the framework's")
    add("--strict", action="store_true", help="an error where a call of PyTorch's operators goes back to it")
    add("--report", action="store_true", help="print a table: calls of each operator, and why some went back to the framework")
    add("--simulate", action="store_true", help="without a GPU: the program's device cuda is the processor, or with "
        "DNNKERN_DEVICE=simulator the simulator")
    add("--quiet", action="store_true", help="print nothing at the end")
    add("-m", dest="module", action="store_true", help="the program is the name of a module")
    add("program", help="a file, or with -m a module")


def main(arguments) -> int:
    """Run the program; its exit code."""
    if not arguments.module and not os.path.exists(arguments.program):
        raise ValueError(f"run: there is no file {arguments.program!r}; expected a program, or -m and the name of a module")
    if arguments.simulate:
        simulate()
    exclude = tuple(filter(None, arguments.exclude.split(",")))
    pytorch, jax = (importlib.util.find_spec(name) is not None for name in ("torch", "jax"))
    if pytorch or not jax:
        need_pytorch("run")
        from .torch import enable
        enable(arguments.ops, exclude=exclude, strict=arguments.strict)
    before, reached = (sys.argv, sys.path[0]), True
    sys.argv = [arguments.program, *arguments.words]
    os.environ.setdefault("KERAS_BACKEND", "torch" if pytorch else "jax")
    try:
        with devices(arguments.simulate and pytorch), _after("keras", _keras), _after("jax", lambda: _jax(arguments.ops, exclude, pytorch)):
            if arguments.module:
                sys.path[0] = os.getcwd()
                runpy.run_module(arguments.program, run_name="__main__", alter_sys=True)
            else:
                sys.path[0] = os.path.dirname(os.path.realpath(arguments.program))
                runpy.run_path(arguments.program, run_name="__main__")
    except Exception as error:  # as Python shows it, without the frames of this command
        inner = _of_program(error.__traceback__)
        if inner is None and isinstance(error, ImportError):
            reached = False
            raise ValueError(f"run: {error}; expected a program, or -m and the name of a module") from None
        error = error.with_traceback(inner or error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        if pytorch and not arguments.simulate and _wants_gpu(error):
            print(f"dnnkern: PyTorch has no GPU here; to run it on the processor: {program()} run --simulate {arguments.program}",
                  file=sys.stderr)
        return 1
    finally:
        sys.argv, sys.path[0] = before
        if not arguments.quiet and reached:
            _report(arguments.report)
    return 0


def need_pytorch(command):
    """ValueError without PyTorch."""
    try:
        import torch  # noqa: F401
    except ImportError as error:
        raise ValueError(f"{command}: PyTorch cannot be imported ({error}); expected 2.9 or newer: pip install torch") from None


def _of_program(traceback):
    """The part of a traceback that begins in the program; None where the program was not reached."""
    here = {__file__, runpy.__file__, "<frozen runpy>"}
    while traceback is not None and traceback.tb_frame.f_code.co_filename in here:
        traceback = traceback.tb_next
    return traceback


def _wants_gpu(error):
    """Whether an error is likely to be of a program that needs a GPU, where PyTorch finds none."""
    import torch
    return not torch.cuda.is_available() and re.search("cuda|gpu|nvidia", str(error), re.IGNORECASE) is not None


def simulate():
    """The processor, or what the environment asks for instead of a GPU; in the simulator the simplest algorithms."""
    from .device._mode import NUMBA_VARIABLE, VARIABLE
    from .preference import VARIABLE as PREFER
    if os.environ.get(NUMBA_VARIABLE, "0") == "0" and os.environ.get(VARIABLE) != "simulator":
        os.environ[VARIABLE] = "cpu"
    else:
        os.environ.setdefault(PREFER, "naive")
    os.environ.setdefault("JAX_PLATFORMS", "cpu")


def devices(simulate):
    """A block in which the device "cuda" is the processor, if that is asked for."""
    if not simulate:
        return contextlib.nullcontext()
    from .torch._devices import cuda_is_cpu
    return cuda_is_cpu()


class _Finder(importlib.abc.MetaPathFinder):
    """Calls a function once the program has imported a module, by itself or through another."""

    def __init__(self, name, act):
        self.name, self.act = name, act

    def find_spec(self, name, path, target=None):
        if name != self.name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader.exec_module = self.after(spec.loader.exec_module)
        return spec

    def after(self, load):
        def exec_module(module):
            load(module)
            self.act()
        return exec_module


@contextlib.contextmanager
def _after(name, act):
    """In the block `act` is called as soon as the module is imported."""
    finder = _Finder(name, act)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


def _keras():
    """Replace Keras' functions, where it runs on PyTorch; on JAX it runs on what replaces JAX's operations."""
    if os.environ["KERAS_BACKEND"] == "jax":
        return
    try:
        from . import keras  # noqa: F401
    except ImportError as error:  # another backend: nothing of it runs on PyTorch
        print(f"dnnkern: nothing of Keras runs on its kernels: {error}", file=sys.stderr)


def _jax(ops, exclude, pytorch):
    """Replace JAX's operations."""
    try:
        from .jax._overrides import enable_for_run
    except (ImportError, AttributeError) as error:  # an older JAX has other internals
        print(f"dnnkern: nothing of JAX runs on its kernels: {error}", file=sys.stderr)
    else:
        enable_for_run(ops, exclude, others=pytorch)


def _report(table):
    """Print what ran on this library's kernels, and what on the frameworks'."""
    from ._table import show, time_text
    found = {name: sys.modules[module].status() for name, module in (("PyTorch", "dnnkern.torch"), ("JAX", "dnnkern.jax"))
             if module in sys.modules}
    rows = [(row, name) for name, of in found.items() for row in of]
    ours, back = (sum(row.calls for row, _ in rows if row.ours is which) for which in (True, False))
    if table and rows:
        print(file=sys.stderr)
        show(("operator", "ran on", "calls", "time", "why"),
             [(row.op, "dnnkern" if row.ours else name, row.calls, time_text(row.seconds * 1e3), row.why) for row, name in rows],
             file=sys.stderr)
    names = " or ".join(name for name in found if found[name]) or "PyTorch"
    operators = len({row.op for row, _ in rows if row.ours})
    print(f"dnnkern: {ours} calls of {operators} operators ran on its kernels, {back} went back to {names}"
          f"{'' if table or not rows else ' (--report lists them)'}", file=sys.stderr)
