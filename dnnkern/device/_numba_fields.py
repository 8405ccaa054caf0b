"""Variables that hold a NamedTuple of numbers are held field by field, where the class asks for it (`_typed.by_field`).

Numba keeps such a variable in one piece of memory. LLVM takes it apart, but later than it decides how often a loop is unrolled, and loads
and stores count there: loops around a `pipeline.PipelineState` were unrolled half as often as around two variables.
"""
from llvmlite import ir
from numba.cuda import types
from numba.cuda.lowering import CUDALower

from ._typed import is_by_field

_alloca_var, _loadvar, _storevar, _delvar = CUDALower._alloca_var, CUDALower.loadvar, CUDALower.storevar, CUDALower.delvar


def _is_split(self, name):
    """Whether a variable is held so: one of a class that asks for it, which Numba would keep in memory, and no debugger looks at."""
    kind = self.typeof(name)
    return (isinstance(kind, (types.NamedTuple, types.NamedUniTuple)) and is_by_field(kind.instance_class)
            and name not in self._singly_assigned_vars and name not in self._blk_local_varmap and not self._disable_sroa_like_opt)


def _alloca_fields(self, name, kind):
    if name not in self.varmap and _is_split(self, name):
        self.varmap[name] = tuple(self.alloca(f"{name}.{field}", t) for field, t in zip(kind.fields, kind.types))
        return
    _alloca_var(self, name, kind)


def _load_fields(self, name):
    if not _is_split(self, name):
        return _loadvar(self, name)
    value = ir.Constant(self.context.get_value_type(self.typeof(name)), ir.Undefined)
    for n, place in enumerate(self.getvar(name)):
        value = self.builder.insert_value(value, self.builder.load(place), n)
    return value


def _store_fields(self, value, name, argidx=None):
    if not _is_split(self, name):
        _storevar(self, value, name, argidx)
        return
    for n, place in enumerate(self.getvar(name)):
        self.builder.store(self.builder.extract_value(value, n), place)


def _delete_fields(self, name):
    if not _is_split(self, name):
        _delvar(self, name)
        return
    for place in self.getvar(name):  # as Numba does with any variable
        self.builder.store(ir.Constant(place.type.pointee, None), place)


def install():
    """Replace them, once a process."""
    CUDALower._alloca_var, CUDALower.loadvar = _alloca_fields, _load_fields
    CUDALower.storevar, CUDALower.delvar = _store_fields, _delete_fields
