"""What kernels name until something compiles: light objects, in whose place Numba is given its own.

Importing Numba takes 0.3 s, and a process that finds its kernels compiled needs none of it. `cuda.jit`, casts and intrinsics are therefore
these objects. Numba asks each for its type, which makes the object of Numba's that it stands for, once. What else is asked of a light
object is asked of that one.
"""
import functools
import types

from . import _typed
from ._mode import DEVICE


@functools.cache
def numba_cuda():
    """The module `numba.cuda`, with all that takes part in what it compiles."""
    from ._numba_compile import cuda
    if DEVICE == "cpu":
        from .cpu import programs
        programs.install()
    return cuda


class Light(_typed.Light):
    """Stands for what `_make` makes. `fingerprint` tells it from others, for the cubin cache."""

    @property
    def is_made(self):
        """Whether there is the object of Numba's."""
        return "_made" in vars(self)

    @property
    def made(self):
        """The object of Numba's, made at first use."""
        numba_cuda()
        found = vars(self).get("_made")
        return vars(self).setdefault("_made", self._make()) if found is None else found  # of two threads the first one's

    @property
    def _numba_type_(self):
        from ._numba import type_of
        return type_of(self.made)

    def __getattr__(self, name):
        if name.startswith("__") or name == "_numba_type_":  # protocols, and what is missing inside of a property
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.made, name)


class Function(Light):
    """A kernel or device function: what `cuda.jit` makes of a Python function."""

    def __init__(self, function, options):
        functools.update_wrapper(self, function)
        self.py_func, self.targetoptions = function, options

    def _make(self):
        return numba_cuda().jit(self.py_func, **self.targetoptions)

    def stand_for(self, other):
        """Be what an equal function is for Numba, unless something has been made of this one."""
        if other is not self and not self.is_made:
            vars(self).setdefault("_made", other.made)

    def __getitem__(self, launch):
        return self.made[launch]

    def __call__(self, *args, **kwargs):
        return self.made(*args, **kwargs)

    def __repr__(self):
        return f"<{'device function' if self.targetoptions.get('device') else 'kernel'} {self.__qualname__}>"


class Cast(Light):
    """A scalar type as kernels name it, to cast and to declare arrays."""

    def __init__(self, name):
        self.name = self.fingerprint = name

    def _make(self):
        from ._numba import SCALARS
        return SCALARS[self.name]

    def __getitem__(self, layout):
        return self.made[layout]

    def __call__(self, *args):
        return self.made(*args)

    def __repr__(self):
        return self.name


class Module(types.ModuleType):
    """`numba.cuda` with a light `jit`; what else is asked of it imports Numba."""

    @staticmethod
    def jit(func_or_sig=None, device=False, **options):
        """As `numba.cuda.jit`. With a signature, which is compiled at once, it is Numba's."""
        options = {"device": True, **options} if device else options
        if func_or_sig is None:
            return functools.partial(Module.jit, **options)
        if isinstance(func_or_sig, types.FunctionType):
            return Function(func_or_sig, options)
        return numba_cuda().jit(func_or_sig, **options)

    @property
    def _numba_type_(self):
        from ._numba import type_of
        return type_of(numba_cuda())

    def __getattr__(self, name):
        if name.startswith("__") or name == "_numba_type_":
            raise AttributeError(f"module 'numba.cuda' has no attribute {name!r}")
        return getattr(numba_cuda(), name)

    def __dir__(self):
        return dir(numba_cuda())


cuda = Module("numba.cuda")
