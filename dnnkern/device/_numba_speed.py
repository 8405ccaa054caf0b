"""Numba's front end, a third faster, with the same results: what it did over and over is done once, or not at all where nobody asks for it.

Lowering a kernel of fifty device functions goes through two dozen passes for each. What they spend is spread evenly but for what is here;
what each saves is in docs/notes/cpu.md.
"""
import operator
import sys

from numba.core.types import Boolean, Function, Number
from numba.cuda.core import postproc, transforms
from numba.cuda.descriptor import cuda_target
from numba.cuda.flags import CUDAFlags

from ._collections import no_collections

_post_process, _call_type = postproc.PostProcessor.run, Function.get_call_type
_OPERATORS = {f for f in vars(operator).values() if callable(f)}
_DEFAULTS = {name: option.default for name, option in CUDAFlags.options.items()}
_typed = {}


def _same_flags(flags, others):
    """What Numba's own comparison says, without a dictionary of all options where the same ones are set."""
    if not isinstance(others, CUDAFlags):
        return NotImplemented
    if flags._values.keys() == others._values.keys():
        return flags._values == others._values
    return flags.values() == others.values()


def _post_processed(self, emit_dels=False, extend_lifetimes=False):
    """Numba's, without the variables that live where a block begins: only generators and deletions need them, and each pass asks anew."""
    if emit_dels or self.func_ir.is_generator:
        _post_process(self, emit_dels, extend_lifetimes)
        return
    self.func_ir.blocks = transforms.canonicalize_cfg(self.func_ir.blocks)
    self.func_ir.variable_lifetime = postproc.VariableLifetime(self.func_ir.blocks)
    self.func_ir.generator_info = None


def _operator_type(self, context, args, kws):
    """Signature of an operator of numbers, found once for each of their types: Numba tries all templates at each `+` of a kernel."""
    if kws or self.key[0] not in _OPERATORS or not all(isinstance(a, (Number, Boolean)) for a in args):
        return _call_type(self, context, args, kws)
    key = id(self), id(context), tuple(args)
    if key not in _typed:
        _typed[key] = _call_type(self, context, args, kws), self, context  # which live as long as their ids stand for them
    return _typed[key][0]


class _Later:
    """A truth that is found when somebody asks."""

    def __init__(self, find):
        self.find, self.found = find, None

    def __bool__(self):
        if self.found is None:
            self.found = bool(self.find())
        return self.found


def _without_blas():
    """Import Numba's functions of arrays, which look for SciPy's BLAS as they are imported: 0.1 s. Only products of arrays in a kernel need
    to know whether there is one; then they look."""
    if "numba.cuda.np.arraymath" in sys.modules:
        return
    from numba.cuda.np import linalg
    look = linalg.ensure_blas

    def missing():
        raise ImportError
    linalg.ensure_blas = missing
    try:
        from numba.cuda.np import arraymath
    finally:
        linalg.ensure_blas = look
    arraymath.ensure_blas, arraymath._HAVE_BLAS = look, _Later(arraymath._check_blas)


def load():
    """Import and register what Numba does at its first compile."""
    with no_collections(stays=True):
        _without_blas()
        cuda_target.target_context.refresh()


def install():
    """Replace them, once a process.

    Numba keeps what it has typed under the flags, and hashes these by the options' names: all collide, and are compared with each other.
    It also lists all of them at each pass.
    """
    CUDAFlags.__eq__, CUDAFlags.__hash__ = _same_flags, lambda flags: hash(flags.compute_capability)
    CUDAFlags.values = lambda flags: {**_DEFAULTS, **flags._values}
    postproc.PostProcessor.run, Function.get_call_type = _post_processed, _operator_type
