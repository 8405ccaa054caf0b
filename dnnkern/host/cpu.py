"""`CpuExecutable` stands beside the executables of `launch`: a plan on the processor."""
import functools

from ..device.cpu.launch import address, compile_ahead, function, launch, scalar, scalars, tensor_map
from .extents import argument, extent
from .launch import HostExecutable
from .table import Table


class CpuExecutable(HostExecutable):
    """A plan's launches on the processor."""

    def __init__(self, launches, parameters, index):
        super().__init__(launches, parameters, index)
        compile_ahead(self.launches)
        for each in self.launches:
            function(each.kernel, each.signature)

    def execute(self, values, stream):
        """Run every launch to its end."""
        for each in self.launches:
            keep = []  # tables, until the launch has ended
            packed = b"".join(self._packed(a, values, keep) for a in each.parameters)
            launch(each.kernel, each.signature, each.grid, each.block, packed, each.shared, each.cluster, each.cooperative,
                   functools.partial(self._extents, each, values, keep))

    def _extents(self, each, values, kept):
        kept, found = iter(kept), []
        for name, a in [(argument(each.kernel, k), m) for k, a in enumerate(each.arguments) for m in a.members or (a,)]:
            if isinstance(a.spec, Table):
                found += [extent(values[self.order[of]], f"{of} of {name}") for of in a.spec.names]
            elif a.type == "tensormap" or a.is_pointer:
                value = self.value(a, values)
                found += [] if value is None else [extent(value, name)]
            if a.spec is not None:
                found.append(extent(next(kept), name))
        return found

    def _packed(self, a, values, keep):
        if isinstance(a.spec, Table):
            keep.append(a.spec.filled([address(values[self.order[name]]) for name in a.spec.names]))
            return scalar("uint64", address(keep[-1]))
        value = self.value(a, values)
        if a.type == "tensormap":
            return tensor_map(a.spec, address(value) + a.offset, keep)
        if a.is_pointer:
            return scalar("uint64", 0 if value is None else address(value) + a.offset)
        return scalars(a.type, value)
