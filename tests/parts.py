"""Functions of dnnkern that the tests' tools call in any commit's sources, not only in those beside them: the modules that have had each.

A change that moves one adds its new module in front and leaves the old one: `machine_code.py` records commits from before it too.
"""
import functools
import importlib

PLACES = {"compile_ltoir": ("dnnkern.device._numba_compile",), "cache_key": ("dnnkern.host.compile",), "link": ("dnnkern.host.compile",),
          "write_atomically": ("dnnkern.host.paths",)}


@functools.cache
def part(name):
    """The function of this name, from the first of its modules that has it."""
    for place in PLACES[name]:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            if not f"{place}.".startswith(f"{error.name}."):
                raise
            continue
        if hasattr(module, name):
            return getattr(module, name)
    raise ImportError(f"{name}: none of {', '.join(PLACES[name])} has it; tests/parts.py lists where it may be")
