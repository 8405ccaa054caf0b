"""A node while its graph is built, and what inference has in common: dims that broadcast, orders of strides, types that fall back."""
from ._enums import data_type
from ._errors import AttributeNotSet, ShapeDeductionFailed, cudnnGraphNotSupportedError
from ._ir import Node


def row_major(dim):
    """Strides with the last dim fastest."""
    return by_order(dim, range(len(dim)))


def channels_last(dim):
    """Strides with dim 1 fastest, then the last ones, then dim 0; row-major for fewer than three dims."""
    n = len(dim)
    return by_order(dim, [0, *range(2, n), 1] if n > 2 else range(n))


def by_order(dim, order):
    """Packed strides; `order` names the dims from the slowest to the fastest."""
    strides, step = [0] * len(dim), 1
    for axis in reversed(list(order)):
        strides[axis] = step
        step *= max(dim[axis], 1)
    return tuple(strides)


def ordered_like(dim, stride):
    """Packed strides of `dim`, in the order of other strides of as many dims; of equal ones the later dim is faster."""
    return by_order(dim, sorted(range(len(dim)), key=lambda axis: (-stride[axis], axis)))


def broadcast(dims):
    """The dims that several have together, aligned at the right; None where they do not broadcast."""
    rank, found = max(map(len, dims)), []
    for sizes in zip(*[(1,) * (rank - len(d)) + tuple(d) for d in dims]):
        wanted = {n for n in sizes if n != 1} or {1}
        if len(wanted) > 1:
            return None
        found += wanted
    return tuple(found)


def broadcasts(dim, to):
    """Whether dims broadcast to others."""
    return len(dim) <= len(to) and all(p in (1, q) for p, q in zip(reversed(dim), reversed(to)))


def overlaps(dim, stride):
    """Whether two elements may have one address: some dim steps less far than the faster ones together reach."""
    reach = 0
    for s, n in sorted((s, n) for n, s in zip(dim, stride) if n > 1):
        if s <= reach:
            return 0 not in dim
        reach += (n - 1) * s
    return False


class GraphNode:
    """A node with its tensors at ports: {port: tensor}; missing optional inputs are absent."""

    def __init__(self, graph, operation, name, inputs, outputs, attributes, compute):
        self.graph, self.operation, self.name, self.inputs, self.outputs = graph, operation, name, inputs, outputs
        self.attributes, self.compute, self.inner = attributes, compute, None

    def __str__(self):
        return f"{self.operation.name} node {self.name!r}"

    def where(self, port):
        """What messages call a port and its tensor."""
        t = self.inputs.get(port) or self.outputs.get(port)
        return f"{self}: port {port}" + (f" (tensor {t._label()})" if t is not None else "")

    @property
    def tensors(self):
        """All that it reads, makes, and has inside."""
        return [*self.inputs.values(), *self.outputs.values(), *(self.inner.tensors if self.inner is not None else ())]

    # ---- reading

    def dim(self, port):
        """Dims of an input, or of an output that has them already; `AttributeNotSet` where they are not set."""
        t = self.inputs.get(port) or self.outputs[port]
        if t._dim is None:
            raise AttributeNotSet(f"{self.where(port)}: dims are not set")
        return t._dim

    def stride(self, port):
        """Strides, likewise."""
        t = self.inputs.get(port) or self.outputs[port]
        if t._stride is None:
            raise AttributeNotSet(f"{self.where(port)}: strides are not set")
        return t._stride

    def expect(self, holds, port, got, expected, error=ShapeDeductionFailed):
        """Raise where something does not hold."""
        if not holds:
            raise error(f"{self.where(port)}: got {got}; expected {expected}")

    def expect_rank(self, port, *ranks):
        """The port's tensor has one of these numbers of dims."""
        dim = self.dim(port)
        self.expect(len(dim) in ranks, port, f"dims {dim}", f"{' or '.join(map(str, ranks))} of them")

    def expect_dim(self, port, dim):
        """The port's tensor has these dims."""
        self.expect(tuple(self.dim(port)) == tuple(dim), port, f"dims {self.dim(port)}", f"{tuple(dim)}")

    def refuse(self, port, message):
        """No plan can do this."""
        raise cudnnGraphNotSupportedError(f"{self.where(port) if port else self}: {message}")

    # ---- completing

    def result(self, port, dim, stride=row_major, exact=True, dtype=None):
        """Infer an output: its dims, its strides (a tuple, or a function of the dims), and a type that goes before the general rule.

        `exact`: dims that the caller has set must be these.
        """
        t = self.outputs.get(port)
        if t is None:
            return
        if dim is not None:
            t._infer("dim", tuple(dim))
            if exact:
                self.expect(t._dim == tuple(dim), port, f"dims {t._dim}", f"{tuple(dim)}, which the operation has")
        elif t._dim is None:
            raise AttributeNotSet(f"{self.where(port)}: dims are not set, and cannot be inferred; call set_dim")
        t._infer("stride", stride(t._dim) if callable(stride) else tuple(stride))
        self.expect(len(t._stride) == len(t._dim), port, f"strides {t._stride} of dims {t._dim}", "as many")
        if dtype is not None:
            t._infer("type", dtype)

    def complete_types(self):
        """Types of outputs that have none, by the general rule, and the compute type."""
        first = next((t._type for t in self.inputs.values() if t is not None), data_type.NOT_SET)
        for t in self.outputs.values():
            if t is not None and t._type is data_type.NOT_SET:
                context = (self.graph.intermediate, self.graph.io) if t.get_is_virtual() else (self.graph.io, self.graph.intermediate)
                t._infer("type", next((c for c in (*context, first) if c is not data_type.NOT_SET), data_type.FLOAT))

    @property
    def compute_type(self):
        """Name of the type to compute in: the node's, else the graph's, else DOUBLE with doubles and FLOAT without."""
        for given in (self.compute, self.graph.compute):
            if given is not data_type.NOT_SET:
                return given.name
        types = {t._type for t in (*self.inputs.values(), *self.outputs.values()) if t is not None}
        return "DOUBLE" if data_type.DOUBLE in types else "FLOAT"

    def spec(self, uid_of):
        """As plain data."""
        ports = [tuple((port, uid_of(t)) for port, t in side.items() if t is not None) for side in (self.inputs, self.outputs)]
        return Node(self.operation.name, self.name, *ports, tuple(self.attributes.items()), self.compute_type,
                    self.inner and self.inner.spec(uid_of))
