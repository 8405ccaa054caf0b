"""Conveniences around `pygraph`: `graph`, `jit`, `graph_cache`, and `Graph`, which is called with arrays."""
import contextlib
import functools
import inspect
import threading
from collections import OrderedDict

from ._enums import DTYPE, data_type, heur_mode
from ._errors import InvalidTensorName, InvalidValue, InvalidVariantPack, WorkspaceTooSmall
from ._pygraph import pygraph
from ._tensor import tensor


@contextlib.contextmanager
def graph(handle, name="test_graph", io_data_type=data_type.HALF, intermediate_data_type=data_type.FLOAT,
          compute_data_type=data_type.FLOAT):
    """A graph and a list for its uids: ``with graph(handle) as (g, uids): ...``."""
    yield pygraph(name=name, io_data_type=io_data_type, intermediate_data_type=intermediate_data_type,
                  compute_data_type=compute_data_type, handle=handle), []


def jit(heur_modes=heur_mode.A, **_):
    """Decorate a function that describes a graph and returns (graph, uids): the graph is built, unless it has plans already."""
    modes = list(heur_modes) if isinstance(heur_modes, (list, tuple)) else [heur_modes]

    def decorate(function):
        @functools.wraps(function)
        def built(*args, **kwargs):
            result = function(*args, **kwargs)
            g, uids = result if isinstance(result, tuple) else (result, [])
            if g._plans is None:
                g.build(modes)
            return g, uids
        return built
    return decorate


def graph_cache(key_fn, maxsize=256):
    """Decorate a function that returns (graph, uids): calls for which `key_fn` gives the same key get the very same result. The
    `maxsize` keys used last are kept."""
    if not callable(key_fn):
        raise TypeError(f"graph_cache: key_fn is {key_fn!r}; expected a function of the arguments")

    def decorate(function):
        known, lock = OrderedDict(), threading.RLock()

        @functools.wraps(function)
        def cached(*args, **kwargs):
            key = key_fn(*args, **kwargs)
            with lock:
                if key not in known:
                    known[key] = function(*args, **kwargs)
                    if len(known) > maxsize:
                        known.popitem(last=False)
                known.move_to_end(key)
                return known[key]
        cached.cache_clear = known.clear
        return cached
    return decorate


class Graph:
    """A graph that is called with arrays::

        with Graph(inputs=["mm::A", "mm::B"], outputs=["mm::C"]) as g:
            C = g.matmul(A=a, B=b, name="mm").set_output(True)
        c = g(a, b)

    In the block its methods are `pygraph`'s, and take arrays in place of tensors. The graph is built at the end of the block.

    Parameters
    ----------
    handle : "auto" or int, optional
        "auto": one of its own, on the current stream.
    inputs, outputs : sequence of str, optional
        Names of tensors in the order of calls: "node::argument" of inputs, "node::port" of outputs, or what `set_name` gave. Ports in
        upper or lower case.
    heuristics : sequence of heur_mode
        Default: A and FALLBACK.
    workspace_alloc : bool
        Allocate the workspace, once, for calls that are made one after the other; else each call takes one.
    **kwargs
        `pygraph`'s.
    """

    def __init__(self, *, handle="auto", inputs=None, outputs=None, heuristics=(heur_mode.A, heur_mode.FALLBACK), workspace_alloc=True,
                 **kwargs):
        self._stream_of_arrays = handle == "auto"
        self._handle = None if handle == "auto" else handle
        self._graph = pygraph(handle=self._handle, **kwargs)
        self._heuristics, self._workspace_alloc = list(heuristics), workspace_alloc
        self._inputs, self._outputs = inputs and tuple(inputs), outputs and tuple(outputs)
        self._given, self._arguments, self._workspace, self._is_built = {}, {}, None, False
        self._ports = {}  # {"node::port" in lower case: result}: cuDNN writes rmsnorm_backward's DSCALE Dscale

    def set_io_tuples(self, inputs, outputs):
        """Set the names of the inputs and outputs, in the order of calls."""
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.build()

    def build(self):
        """Build the graph; done at the end of the block."""
        self._graph.build(self._heuristics)
        self._is_built = True
        for names in (self._inputs, self._outputs):
            for name in names or ():
                self._named(name)

    def __getattr__(self, name):
        if name.startswith("__") or name in ("_graph", "_given"):
            raise AttributeError(name)
        value = getattr(self._graph, name)
        if not inspect.ismethod(value) or name not in _operations():
            return value
        return functools.partial(self._call, value, _operations()[name])

    def _call(self, method, operation, *args, **kwargs):
        bound = operation.signature.bind(self._graph, *args, **kwargs)
        taken = {key: self._tensors(value) for key, value in bound.arguments.items() if key != "self"}
        before = len(self._graph.nodes)
        result = method(**taken)
        node = self._graph.nodes[before]
        for key, value in taken.items():
            if isinstance(value, tensor):
                self._arguments[f"{node.name}::{key}"] = value
        self._ports.update({f"{node.name}::{port}".lower(): t for port, t in node.outputs.items() if t is not None})
        return result

    def _tensors(self, value):
        """Arrays as tensors of the graph; the same array is the same tensor."""
        if isinstance(value, (list, tuple)) and any(_is_array(v) for v in value):
            return type(value)(self._tensors(v) for v in value)
        if not _is_array(value):
            return value
        found = self._given.get(id(value))
        if found is None:
            found = self._given[id(value)] = self._graph.tensor_like(value), value  # which keeps the array alive, and its identity
        return found[0]

    def _named(self, name):
        if name in self._arguments:
            return self._arguments[name]
        for t in self._graph.tensors:
            if t.get_name() == name:
                return t
        if name.lower() in self._ports:
            return self._ports[name.lower()]
        known = [*self._arguments, *(t.get_name() for t in self._graph.tensors if t.get_name())]
        raise InvalidTensorName(f"no tensor of the graph is called {name!r}; there are {', '.join(map(repr, known))}")

    def __call__(self, *args, handle=None, workspace=None, **kwargs):
        """Run the graph: with the inputs in order, or with one dict of them by name; also by keyword, where a name is one.

        A second dict, or the same one, has buffers of outputs by name. Those that are missing are allocated.

        Returns
        -------
        array, or tuple of arrays
            In the order of `outputs`.
        """
        if not self._is_built:
            raise InvalidValue("Graph: called before it was built; it is at the end of its with block")
        given, out = self._bound(args, kwargs)
        pack = {self._named(name): value for name, value in (*given.items(), *out.items())}
        from ..host.arrays import kind_of
        like = next((v for t, v in pack.items() if _is_array(v) and not t.get_is_pass_by_value()), None)
        if like is None:
            raise InvalidVariantPack("Graph: got no arrays")
        kind = kind_of(like)
        index = kind.device(like)
        stream = self._graph._stream(handle)
        stream = kind.stream(index) if stream is None else stream
        results = []
        for name in self._outputs or [t.get_name() for t in self._results()]:
            t = self._named(name)
            if t not in pack:
                pack[t] = _empty(kind, t, index, stream)
            results.append(pack[t])
        size = self._graph.get_workspace_size()
        if workspace is None and size and self._workspace_alloc:
            known = self._workspace
            if known is None or known.shape[0] < size or kind_of(known).device(known) != index:  # of another plan, or another device
                self._workspace = known = kind.empty((size,), "uint8", index, stream)
            workspace = known
        try:
            self._graph.execute(pack, workspace, handle=handle)
        except WorkspaceTooSmall as error:  # for copies of what overlaps
            if not self._workspace_alloc or workspace is not None and workspace is not self._workspace:
                raise
            self._workspace = kind.empty((error.need,), "uint8", index, stream)
            self._graph.execute(pack, self._workspace, handle=handle)
        return results[0] if len(results) == 1 else tuple(results)

    def _results(self):
        return [t for node in self._graph.nodes for t in node.outputs.values() if t is not None and not t.get_is_virtual()]

    def _bound(self, args, kwargs):
        """({name: input}, {name: output}); a dict of inputs may have outputs as well."""
        dicts = [a for a in args if isinstance(a, dict)]
        arrays = [a for a in args if not isinstance(a, dict)]
        out = {}
        if arrays:
            if self._inputs is None:
                raise InvalidVariantPack("Graph: got arrays in order, but no inputs= were named; expected a dict by name")
            if len(arrays) != len(self._inputs):
                raise InvalidVariantPack(f"Graph: got {len(arrays)} arrays; expected {len(self._inputs)}: {', '.join(self._inputs)}")
            given = dict(zip(self._inputs, arrays))
            out = dict(dicts[0]) if dicts else {}
        else:
            given = dict(dicts[0]) if dicts else {}
            out = dict(dicts[1]) if len(dicts) > 1 else {}
        given.update(kwargs)
        return given, out


def _is_array(value):
    return not isinstance(value, tensor) and (hasattr(value, "__dlpack__") or hasattr(value, "__cuda_array_interface__"))


def _empty(kind, t, index, stream):
    """A new array of a tensor's dims, strides and type: a packed one, viewed in the order of its strides."""
    dim, stride = tuple(t.get_dim()), t.get_stride()
    order = sorted(range(len(dim)), key=lambda axis: (-stride[axis], axis))
    shape, dtype = [dim[a] for a in order], DTYPE.get(t.get_data_type().name)
    if t.get_data_type() is data_type.FP4_E2M1:  # bytes of two
        shape, dtype = (*shape[:-1], -(-shape[-1] // 2)), "uint8"
    packed = kind.empty(tuple(shape), dtype, index, stream)
    back = [order.index(a) for a in range(len(dim))]
    return packed.permute(*back) if hasattr(packed, "permute") else packed.transpose(back)


def _operations():
    from .ops import OPERATIONS
    return OPERATIONS
