"""CUDA graphs of the caller's, which get a plan's launches, or other buffers for those that they have."""
from ..device import DEVICE, HOST_MEMORY
from ..host import graphs
from ._errors import InvalidValue, cudnnGraphNotSupportedError


def fill(what, runner, pack, workspace, cuda_graph):
    """"populate" a graph with a plan's launches on these buffers, or "update" those that it has."""
    graph = _handle(f"{what}_cuda_graph", cuda_graph)
    if HOST_MEMORY:
        raise cudnnGraphNotSupportedError(f"{what}_cuda_graph: kernels run on the {DEVICE}, and CUDA graphs on GPUs alone")
    _, executable, values, *_ = runner.prepared(runner.by_uid(pack), workspace, 0)
    if not executable.is_steady:
        raise cudnnGraphNotSupportedError(f"{what}_cuda_graph: {runner.plan.name} reads tables of addresses, which each execution sends")
    if what == "populate":
        graphs.populate(executable, values, graph)
        return
    try:
        graphs.update(executable, values, graph)
    except graphs.OtherGraph as error:
        raise InvalidValue(f"update_cuda_graph: the CUDA graph is not what populate_cuda_graph makes for {runner.plan.name} on these "
                           f"buffers: {error}") from None


def _handle(function, given):
    """The address of a graph that is given as one or by an object with it."""
    try:
        found = None if isinstance(given, (bool, float, str)) else int(given)
    except (TypeError, ValueError):
        found = None
    if found is None:
        raise TypeError(f"{function}: cuda_graph is {given!r}; expected the handle of a CUDA graph: an int, or a CUgraph of cuda.bindings")
    if not found:
        raise InvalidValue(f"{function}: cuda_graph is null; expected a CUDA graph")
    return found
