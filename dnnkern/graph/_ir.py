"""The graph as plain data: frozen, hashable, and JSON both ways.

A `GraphSpec` is what everything after validation reads: the cut, the plans, their caches, serialized graphs, logs.
"""
import hashlib
import json
from dataclasses import dataclass, fields, replace

FORMAT = 1


@dataclass(frozen=True)
class TensorSpec:
    """One tensor. Types are names of `data_type`; what is not known yet is None.

    Attributes
    ----------
    uid : int
    name : str
    dim, stride : tuple of int
        In elements; dims of images are in the order N, C, then the spatial ones, whatever the layout.
    dtype : str
    virtual : bool
        An intermediate result that has no buffer.
    by_value : bool
        A number in host memory, read at each execution.
    value : float or int, optional
        Of a compile-time constant.
    constant : bool
    ragged : int, optional
        uid of the tensor of offsets, in elements, at which the batches begin.
    reordering : str
    alignment : int
        Bytes.
    vector : (int, int), optional
        (count, dimension) of vectorized formats; 8 of BOOLEAN: its buffer has one bit per element.
    """
    uid: int
    name: str
    dim: tuple | None
    stride: tuple | None
    dtype: str
    virtual: bool = False
    by_value: bool = False
    value: float | int | None = None
    constant: bool = False
    ragged: int | None = None
    reordering: str = "NONE"
    alignment: int = 16
    vector: tuple | None = None

    @property
    def elements(self):
        """How many elements it spans, gaps included."""
        if 0 in self.dim:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.dim, self.stride))

    @property
    def may_be_bits(self):
        """Whether its buffer may have one bit per element, in the order of memory: BOOLEAN, without gaps."""
        if self.dtype != "BOOLEAN" or self.virtual or self.by_value or self.ragged is not None or 0 in self.dim:
            return False
        count = 1
        for s, n in sorted((s, n) for n, s in zip(self.dim, self.stride) if n > 1):
            if s != count:
                return False
            count *= n
        return count % 8 == 0


@dataclass(frozen=True)
class Node:
    """One operation: `op` is the name of pygraph's method, ports have cuDNN's names, attributes are plain data; `inner` is what runs inside
    of it."""
    op: str
    name: str
    inputs: tuple
    outputs: tuple
    attributes: tuple
    compute: str
    inner: "Inner | None" = None

    @property
    def label(self):
        """Its name; of a node that the user has not named, the operation too."""
        return f"{self.op} {self.name}" if self.name.isdecimal() else self.name

    def input(self, port):
        """uid at an input port, or None."""
        return dict(self.inputs).get(port)

    def output(self, port):
        """uid at an output port, or None."""
        return dict(self.outputs).get(port)

    def attribute(self, key, default=None):
        """One attribute."""
        return dict(self.attributes).get(key, default)


@dataclass(frozen=True)
class Inner:
    """Pointwise nodes that run inside another, in topological order; ((name, uid), ...) of the tensors that it gives them, and of those
    that it takes."""
    nodes: tuple
    given: tuple
    taken: tuple

    @property
    def anonymous(self):
        """Without names."""
        return replace(self, nodes=tuple(replace(n, name="") for n in self.nodes))


@dataclass(frozen=True)
class GraphSpec:
    """A graph: its tensors, its nodes in topological order, and the types that tensors and nodes without one have."""
    tensors: tuple
    nodes: tuple
    io: str = "NOT_SET"
    intermediate: str = "NOT_SET"
    compute: str = "NOT_SET"
    name: str = ""

    @property
    def origin(self):
        """The graph as the caller made it."""
        return self

    def tensor(self, uid) -> TensorSpec:
        """The tensor of a uid."""
        try:
            return self._by_uid[uid]
        except AttributeError:
            object.__setattr__(self, "_by_uid", {t.uid: t for t in self.tensors})
            return self._by_uid[uid]

    def label(self, node) -> str:
        """What explanations call a node: its label, numbered from its second use on."""
        if "_labels" not in self.__dict__:
            labels = {}
            for n in self.nodes:
                count, text = 1, n.label
                while text in labels.values():
                    count += 1
                    text = f"{n.label} ({count})"
                labels[n.outputs[0][1]] = text
            object.__setattr__(self, "_labels", labels)
        return self._labels[node.outputs[0][1]]

    @property
    def anonymous(self):
        """The same without names, which do not count: equal graphs have equal ones."""
        return replace(self, name="", tensors=tuple(replace(t, name="") for t in self.tensors),
                       nodes=tuple(replace(n, name="", inner=n.inner and n.inner.anonymous) for n in self.nodes))

    def key(self) -> int:
        """A hash that is the same in every process; names do not count."""
        return int.from_bytes(hashlib.sha256(self.anonymous.to_json().encode()).digest()[:8], "little") >> 1

    def __str__(self):
        sizes = ["x".join(map(str, self.tensor(node.outputs[0][1]).dim)) for node in self.nodes]
        return f"graph {self.name} of {' + '.join(f'{node.op} {size}' for node, size in zip(self.nodes, sizes))}".replace("  ", " ")

    def to_json(self, indent=None, tags=None) -> str:
        """As JSON text; `tags` are cuDNN's names of operations, {op: tag}, for logs."""
        nodes = [_node_data(n, tags) for n in self.nodes]
        data = {"format": FORMAT, "context": {"name": self.name, "io_data_type": self.io, "intermediate_data_type": self.intermediate,
                                              "compute_data_type": self.compute},
                "nodes": nodes, "tensors": {str(t.uid): _tensor_data(t) for t in self.tensors}}
        return json.dumps(data, indent=indent)

    @classmethod
    def from_json(cls, text):
        """The graph of JSON text; ValueError where it is something else."""
        try:
            data = json.loads(text) if isinstance(text, (str, bytes)) else text
            if data["format"] != FORMAT:
                raise ValueError(f"format {data['format']}; expected {FORMAT}")
            context = data["context"]
            tensors = tuple(_tensor(int(uid), t) for uid, t in data["tensors"].items())
            nodes = tuple(map(_node, data["nodes"]))
            return cls(tensors, nodes, context["io_data_type"], context["intermediate_data_type"], context["compute_data_type"],
                       context["name"])
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"not a graph as JSON: {type(error).__name__}: {error}") from None


def _node_data(n, tags):
    found = {"op": n.op, **({"tag": tags(n)} if tags else {}), "name": n.name, "inputs": dict(n.inputs), "outputs": dict(n.outputs),
             "attributes": {k: _plain(v) for k, v in n.attributes}, "compute_data_type": n.compute}
    if n.inner is not None:
        found["inner"] = {"nodes": [_node_data(i, tags) for i in n.inner.nodes], "given": dict(n.inner.given), "taken": dict(n.inner.taken)}
    return found


def _node(data):
    inner = data.get("inner")
    if inner is not None:
        inner = Inner(tuple(map(_node, inner["nodes"])), _ports(inner["given"]), _ports(inner["taken"]))
    return Node(str(data["op"]), str(data["name"]), _ports(data["inputs"]), _ports(data["outputs"]),
                tuple((str(k), _frozen(v)) for k, v in data["attributes"].items()), str(data["compute_data_type"]), inner)


def _ports(data):
    return tuple((str(name), _uid(uid)) for name, uid in data.items())


_FIELDS = {f.name: f for f in fields(TensorSpec) if f.name != "uid"}


def _tensor_data(t):
    return {name: _plain(getattr(t, name)) for name in _FIELDS}


def _tensor(uid, data):
    if set(data) != set(_FIELDS):
        raise ValueError(f"tensor {uid} has {sorted(data)}; expected {sorted(_FIELDS)}")
    return TensorSpec(uid, **{name: _frozen(value) for name, value in data.items()})


def _uid(value):
    if not isinstance(value, int) or isinstance(value, bool):
        raise ValueError(f"uid {value!r}; expected an int")
    return value


def _plain(value):
    """As JSON has it: tuples are lists, slices and infinities are marked."""
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return {"number": str(value)}
    return value


def _frozen(value):
    if isinstance(value, list):
        return tuple(_frozen(v) for v in value)
    if isinstance(value, dict):
        return float(value["number"])
    return value


def prologue(nodes, anchor):
    """The nodes among others that an anchor reads, directly or through others of them, in their order: they make its operands."""
    wanted, found = {uid for _, uid in anchor.inputs}, []
    for node in reversed([n for n in nodes if n is not anchor]):
        if any(uid in wanted for _, uid in node.outputs):
            wanted.update(uid for _, uid in node.inputs)
            found.insert(0, node)
    return found


def over_of(x, y, rows, columns):
    """What is reduced between these dims, "rows", "columns" or "all" of matrices of these axes, of each of a batch or of the batch too;
    None where it is something else."""
    def longer(axes):
        return {d for d in axes if x[d] != 1}
    gone, batch = {d for d in range(len(x)) if y[d] != x[d]}, longer(set(range(len(x))) - {*rows, *columns})
    for over, axes in (("all", (*rows, *columns)), ("rows", rows), ("columns", columns)):
        if gone and gone in (longer(axes), longer(axes) | batch):
            return over
    return None
