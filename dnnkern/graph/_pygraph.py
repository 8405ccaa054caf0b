"""`pygraph`: a graph while it is described, and everything that is asked of it afterwards.

Operations are methods, one for each entry of `ops.OPERATIONS`. What happens after validation is `_lifecycle`'s.
"""
import operator

from ._enums import as_data_type, data_type, member, scalar_type, tensor_reordering
from ._errors import AttributeNotSet, InvalidValue, of_node
from ._infer import GraphNode, overlaps
from ._inner import check_outside
from ._ir import GraphSpec
from ._lifecycle import Lifecycle
from ._tensor import sizes, tensor
from .ops import OPERATIONS


class pygraph(Lifecycle):
    """A graph of operations on tensors.

    Parameters
    ----------
    name : str
    io_data_type, intermediate_data_type, compute_data_type : data_type
        Types of tensors and operations that have none of their own: of inputs and outputs, of virtual tensors, of arithmetic.
    handle : int, optional
        `create_handle`'s, whose stream the graph runs on; default: the current stream of the arrays' framework.
    sm_count : int, optional
        Multiprocessors that plans are made for; default: all of the device's. Kernels whose blocks take tile after tile have no more
        blocks than these hold; others, of a block for each tile, run wherever there is room. Estimates, and measurements that are
        kept, are those for so many.
    sm_version : int, optional
        90 for compute capability 9.0: the device to plan for, by its data sheet, where the one at hand is another.
    kernel_cache : KernelCache, optional
        `create_kernel_cache`'s: graphs that share it share kernels, and one of other dims prefers those that are there.
    device_property : DeviceProperties, optional
        `create_device_properties`'s: the device to plan for. Where it is of another architecture than the one at hand, or there is no GPU,
        `build` chooses by predicted times on it and compiles for it; the graph does not run here, but where `deserialize` is given what
        `serialize` returns.
    is_dynamic_shape_enabled : bool
        Accepted: sizes are arguments of kernels.
    is_override_shape_enabled : bool
        `execute` takes other shapes than those that the graph is built with.

    Examples
    --------
    >>> import numpy as np, dnnkern.graph as cudnn
    >>> graph = cudnn.pygraph(io_data_type=cudnn.data_type.FLOAT, compute_data_type=cudnn.data_type.FLOAT)
    >>> x = graph.tensor(name="x", dim=[1, 2, 3], stride=[6, 3, 1])
    >>> y = graph.relu(graph.neg(x)).set_output(True)
    >>> graph.build([cudnn.heur_mode.A])
    >>> out, workspace = np.empty((1, 2, 3), np.float32), np.empty(graph.get_workspace_size(), np.uint8)
    >>> graph.execute({x: np.array([[[-1, 2, -3], [4, -5, 6]]], np.float32), y: out}, workspace)
    >>> out
    array([[[1., 0., 3.],
            [0., 5., 0.]]], dtype=float32)
    """

    def __init__(self, name="test_graph", io_data_type=data_type.NOT_SET, intermediate_data_type=data_type.NOT_SET,
                 compute_data_type=data_type.NOT_SET, handle=None, sm_count=None, sm_version=None, kernel_cache=None, device_property=None,
                 is_dynamic_shape_enabled=False, is_override_shape_enabled=False):
        self.name = name
        self.io, self.intermediate, self.compute = (as_data_type(value, f"pygraph: {what}") for what, value in (
            ("io_data_type", io_data_type), ("intermediate_data_type", intermediate_data_type), ("compute_data_type", compute_data_type)))
        self.tensors, self.nodes = [], []
        self._spec, self._order = None, None
        self.is_dynamic_shape_enabled = bool(is_dynamic_shape_enabled) or kernel_cache is not None
        self.is_override_shape_enabled = bool(is_override_shape_enabled)
        self.sm_count, self.sm_version = (None if value is None else operator.index(value) for value in (sm_count, sm_version))
        Lifecycle.__init__(self, handle, kernel_cache, device_property)

    # ---- tensors

    def tensor(self, dim, stride, data_type=data_type.NOT_SET, is_virtual=False, is_pass_by_value=False, ragged_offset=None,
               reordering_type=tensor_reordering.NONE, name="", uid=-1):
        """A tensor that the caller gives, or that an operation writes where it takes outputs as arguments.

        Parameters
        ----------
        dim, stride : sequence of int
            Up to 8 dims, images as N, C and the spatial dims; strides in elements say what the layout is.
        data_type : data_type, or a torch or NumPy dtype
        is_virtual : bool
        is_pass_by_value : bool
            The buffer is a number in host memory, read at each execution.
        ragged_offset : tensor, optional
        reordering_type : tensor_reordering
        name : str
        uid : int
            -1: assigned at build.

        Returns
        -------
        tensor
        """
        made = self._new(name)
        dim, stride = sizes(dim, f"tensor {name!r}: dim", 0), sizes(stride, f"tensor {name!r}: stride", 0)
        if len(dim) != len(stride):
            raise InvalidValue(f"tensor {name!r}: got {len(stride)} strides {stride} of {len(dim)} dims {dim}; expected as many")
        made._dim, made._stride, made._type = dim, stride, as_data_type(data_type, f"tensor {name!r}")
        made._virtual, made._by_value = bool(is_virtual), bool(is_pass_by_value)
        made._reordering = member(tensor_reordering, reordering_type, f"tensor {name!r}: reordering_type")
        if ragged_offset is not None:
            made.set_ragged_offset(ragged_offset)
        if operator.index(uid) != -1:
            made.set_uid(uid)
        return made

    def tensor_like(self, x, name=""):
        """A tensor with the dims, strides and type of an array or of another tensor.

        An array in host memory is one passed by value. Without a GPU all arrays are in host memory: there those of one element are.
        """
        if isinstance(x, tensor):
            made = self._new(name)
            for attribute in ("dim", "stride", "type", "by_value", "reordering", "vector"):
                setattr(made, "_" + attribute, getattr(x, "_" + attribute))
            return made
        from ._arrays import described
        dim, stride, dtype, by_value = described(x, f"tensor_like: {name!r}" if name else "tensor_like")
        return self.tensor(dim, stride, as_data_type(dtype, "tensor_like"), is_pass_by_value=by_value, name=name)

    def tensor_scalar(self, value, scalar_type=scalar_type.RUNTIME_PARAM, name=""):
        """A number: with `RUNTIME_PARAM` an input passed by value, with `COMPILE_TIME_CONST` part of the graph. Floats are FLOAT,
        ints INT32."""
        from ._enums import scalar_type as kinds
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise TypeError(f"tensor_scalar: value is {value!r}; expected a number")
        made = self._new(name)
        made._dim, made._stride, made._by_value, made._value = (1,), (1,), True, value
        made._type = data_type.FLOAT if isinstance(value, float) else data_type.INT32
        made._constant = member(kinds, scalar_type, "tensor_scalar") is kinds.COMPILE_TIME_CONST
        return made

    def _new(self, name, producer=None):
        if not isinstance(name, str):
            raise TypeError(f"tensor: name is {name!r}; expected a string")
        made = tensor(self, name, producer)
        self.tensors.append(made)
        self._spec = None
        return made

    def _own(self, t, what):
        """Raise unless a tensor belongs to this graph."""
        if t._graph is not self:
            raise InvalidValue(f"{what}: tensor {t._label()} belongs to another graph, {t._graph.name!r}")

    def _changing(self, what):
        self._spec = None

    # ---- operations

    def _call(self, operation, arguments):
        """Add a node; its results as the operation's method returns them."""
        name = arguments["name"] or str(len(self.nodes))
        node = GraphNode(self, operation, name, {}, {}, {}, data_type.NOT_SET)
        node.compute = as_data_type(arguments.get("compute_data_type", data_type.NOT_SET), str(node))
        try:
            given = operation.arguments(**{key: value for key, value in arguments.items() if key in operation.own})
        except (TypeError, ValueError, InvalidValue) as error:
            raise of_node(error, operation.name, node) from None
        inputs, node.attributes, *made = given  # the third is {port: tensor the caller made, or None for a result that does not exist}
        made = made[0] if made else {}
        for port, t in inputs.items():
            if t is None:
                continue
            if not isinstance(t, tensor):
                raise TypeError(f"{node}: port {port}: got {type(t).__name__}; expected a tensor of the graph")
            self._own(t, f"{node}: port {port}")
            node.inputs[port] = t
        for port in operation.outputs:
            t = made.get(port, node)
            if t is None:
                continue
            if t is node:
                t = self._new(f"{name}::{port}", node)
            else:
                self._own(t, f"{node}: port {port}")
                if t._producer is not None:
                    raise InvalidValue(f"{node}: port {port}: tensor {t._label()} is a result of {t._producer} already")
                t._producer = node
            node.outputs[port] = t
        if operation.callbacks is not None:
            operation.callbacks(node, arguments)
        self.nodes.append(node)
        self._spec = None
        returned = [node.outputs.get(port) for port in operation.outputs if port not in operation.given]
        return returned if operation.listed else returned[0]

    # ---- validation

    def validate(self):
        """Infer dims, strides and types, and check that they fit.

        Raises
        ------
        ValueError
            What is neither set nor can be inferred, dims that do not fit.
        RuntimeError
            No operations, a cycle, a uid of two tensors.
        cudnnGraphNotSupportedError
            What no plan can do.
        """
        if not self.nodes:
            raise InvalidValue(f"graph {self.name!r} has no operations; expected one at least")
        for t in self.tensors:
            t._forget()
        for node in self.nodes:
            check_outside(node)
        order = self._sorted()
        self._mark_outputs()
        used = {id(t): t for node in order for t in node.tensors}
        used.update({id(t._ragged): t._ragged for t in list(used.values()) if t._ragged is not None})
        for t in used.values():
            self._check_tensor(t)
        for node in order:
            node.operation.infer_node(node)
            node.complete_types()
            for port in node.outputs:
                first = 1 if node.outputs[port]._ragged is not None else 0  # whose batches begin at offsets, whatever the stride
                node.expect(not overlaps(node.dim(port)[first:], node.stride(port)[first:]), port,
                            f"strides {node.stride(port)} of dims {node.dim(port)}", "no two elements at one address")
        self._number(used.values())
        self._order = order
        uid_of = {id(t): t._uid for t in used.values()}
        of = lambda t: uid_of[id(t)]  # noqa: E731
        self._spec = GraphSpec(tuple(t._spec(of(t), of) for t in used.values()), tuple(node.spec(of) for node in order), self.io.name,
                               self.intermediate.name, self.compute.name, self.name)
        self._validated(self._spec)

    def _sorted(self):
        """The nodes in topological order; ValueError where there is a cycle."""
        left, order, made = list(self.nodes), [], set()
        while left:
            ready = [n for n in left if all(t._producer is None or id(t._producer) in made for t in n.inputs.values())]
            if not ready:
                raise InvalidValue(f"graph {self.name!r} has a cycle: {', '.join(map(str, left))} each wait for another's result")
            for n in ready:  # as they were added, as far as that goes
                order.append(n)
                made.add(id(n))
            left = [n for n in left if id(n) not in made]
        return order

    def _mark_outputs(self):
        """A first result that nobody takes or mentions is an output, unless another result of its node is used."""
        read = {id(t) for node in self.nodes for t in node.inputs.values()}
        for node in self.nodes:
            results = list(node.outputs.values())
            if any(id(t) in read or not t._virtual for t in results):
                continue
            if results and not results[0]._marked:
                results[0]._stored = True

    def _check_tensor(self, t):
        what = f"tensor {t._label()}"
        if t._by_value and t._virtual:
            raise InvalidValue(f"{what} is passed by value and virtual at once; expected one of the two at most")
        if t._producer is None:
            if t._virtual:
                raise InvalidValue(f"{what} is virtual, and no operation makes it")
            if t._dim is None or t._stride is None:
                raise AttributeNotSet(f"{what}: {'dims' if t._dim is None else 'strides'} are not set")
        if t._producer is None or not t.get_is_virtual():
            if t._producer is None and t._type is data_type.NOT_SET:
                if self.io is data_type.NOT_SET:
                    raise AttributeNotSet(f"{what}: its data type is not set, nor is the graph's io_data_type")
                t._infer("type", self.io)
        if t._dim is not None and t._stride is not None and len(t._dim) != len(t._stride):
            raise InvalidValue(f"{what}: got {len(t._stride)} strides {t._stride} of {len(t._dim)} dims {t._dim}; expected as many")

    def _number(self, used):
        """Assign the uids that are not given; a duplicate is an error."""
        known = {}
        for t in used:
            if t._uid is not None and "uid" not in t._inferred:
                if t._uid in known:
                    raise InvalidValue(f"uid {t._uid} is that of tensor {t._label()} and of tensor {known[t._uid]._label()}; expected "
                                       "one tensor of each uid")
                known[t._uid] = t
        following = 1
        for t in used:
            if t._uid is None or "uid" in t._inferred:
                while following in known:
                    following += 1
                t._infer("uid", following)
                known[t._uid] = t

    def query_tensor_attributes_of_uid(self, uid):
        """The tensor of a uid; of a deserialized graph a copy."""
        for t in self.tensors:
            if t._uid == uid:
                return t
        return self._deserialized_tensor(uid)

    def __repr__(self):
        if self._spec is None and not self.nodes and self.spec is not None:
            return self.spec.to_json()
        if self._spec is not None:
            return self._spec.to_json()
        uids, known = {}, {t._uid for t in self.tensors if t._uid is not None}
        for t in self.tensors:
            uids[id(t)] = t._uid if t._uid is not None else next(k for k in range(1, len(self.tensors) + len(known) + 2) if k not in known)
            known.add(uids[id(t)])
        of = lambda t: uids[id(t)]  # noqa: E731
        return GraphSpec(tuple(t._spec(of(t), of) for t in self.tensors), tuple(node.spec(of) for node in self.nodes), self.io.name,
                         self.intermediate.name, self.compute.name, self.name).to_json()


def _method(operation):
    """The method of an operation."""
    signature = operation.signature

    def method(self, *args, **kwargs):
        try:
            bound = signature.bind(self, *args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{operation.name} node {(kwargs.get('name') or str(len(self.nodes)))!r}: {error}; it takes "
                            f"{', '.join(list(signature.parameters)[1:])}") from None
        bound.apply_defaults()
        arguments = dict(bound.arguments)
        del arguments["self"]
        return self._call(operation, arguments)
    method.__name__, method.__qualname__, method.__doc__ = operation.name, f"pygraph.{operation.name}", operation.doc
    method.__signature__, method.__module__ = signature, __name__
    return method


for _operation in OPERATIONS.values():
    setattr(pygraph, _operation.name, _method(_operation))
