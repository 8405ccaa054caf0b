"""One part of the cut as steps: problems of the library's operations, and where each of their operands is.

A `Part` collects the steps of one part of the cut. Operations' lowering (`ops`) asks it for the memory of ports (`Ref`), for temporaries in
the workspace and for numbers, and adds steps through `call`: a problem made as a public function makes it, by the operation's front end.
"""
from dataclasses import dataclass, replace

from .. import dispatch
from ..engine.prologues import Prologue
from ..host.tensor import Tensor, packed_strides
from ._enums import DTYPE
from ._errors import cudnnGraphNotSupportedError


@dataclass(frozen=True)
class Ref:
    """An array: its descriptor, the buffer that holds it, and bytes from the buffer's begin. A buffer is ("tensor", uid) or ("temporary",
    number)."""
    tensor: Tensor
    buffer: tuple
    offset: int = 0

    @property
    def shape(self):
        return self.tensor.shape

    @property
    def dtype(self):
        return self.tensor.dtype

    def view(self, shape, strides, first=0, dtype=None):
        """The same memory with other dims and strides; `first` is the first element's distance, in elements."""
        dtype = dtype or self.dtype
        offset = self.offset + first * self.tensor.itemsize
        alignment = min(self.tensor.alignment, (first * self.tensor.itemsize) & -(first * self.tensor.itemsize) or 16)
        return replace(self, tensor=Tensor(tuple(shape), tuple(strides), dtype, alignment), offset=offset)

    def permuted(self, axes):
        """With its dims in another order."""
        return self.view([self.shape[a] for a in axes], [self.tensor.strides[a] for a in axes])

    def broadcast(self, shape):
        """With these dims, to which its own broadcast: stride 0 where they do."""
        missing = len(shape) - len(self.shape)
        own = (*(1,) * missing, *self.shape)[max(-missing, 0):] if missing >= 0 else self.shape[-missing:]
        strides = (*(0,) * missing, *self.tensor.strides) if missing >= 0 else self.tensor.strides[-missing:]
        return self.view(shape, [0 if n == 1 else s for n, s in zip(own, strides)])

    def reinterpreted(self, dtype):
        """Its bytes as another dtype of the same size."""
        return self.view(self.shape, self.tensor.strides, dtype=dtype)


def known_alignment(t) -> int:
    """What a `Tensor` may say of a buffer's alignment. The library takes 4 for a multiple of 4 that is none of 8, and two arrays of 4 for
    addresses that differ by a multiple of 8; a graph knows but that addresses are multiples of a tensor's alignment: half of it is safe."""
    return 16 if t.alignment >= 16 else max(1, t.alignment // 2)


@dataclass(frozen=True)
class Value:
    """A number that is read at each execution: the by-value tensor of a uid, times a factor; or with the by-value tensor of another uid,
    `offset`, the seed of dropout that is of both."""
    uid: int
    factor: float = 1.0
    offset: int | None = None

    @property
    def uids(self):
        """Of what it is made of."""
        return (self.uid,) if self.offset is None else (self.uid, self.offset)


@dataclass(frozen=True)
class Step:
    """One problem of one operation: its operands' buffers, by their names in launches, its numbers, and those of its fields that are
    numbers read at each execution (`bound`), and the labels of the nodes that it runs."""
    problem: object
    buffers: tuple
    scalars: tuple
    node: str
    bound: tuple = ()
    nodes: tuple = ()

    @property
    def op(self):
        return self.problem.op


class Part:
    """The steps of one part: of one node; of an anchor, a node that is no pointwise one, and neighbours that run in its kernel; or of
    pointwise nodes.

    Parameters
    ----------
    spec : GraphSpec
    nodes : tuple of Node
    needed : set of int
        uids of virtual tensors that other parts read.
    temporaries : list of Tensor
        Of the whole graph; `temporary` appends to it.
    views : {int: View}
        Tensors that are parts of others.
    """

    def __init__(self, spec, nodes, needed, temporaries, views):
        self.spec, self.nodes, self.needed, self.temporaries, self.steps = spec, nodes, needed, temporaries, []
        self.views = views
        self.node, self._filled = nodes[0], {}

    # ---- memory and numbers

    def spec_of(self, port):
        """`TensorSpec` of a port of the node, or None."""
        uid = self.node.input(port)
        uid = self.node.output(port) if uid is None else uid
        return None if uid is None else self.spec.tensor(uid)

    def input(self, port):
        """The array at an input port, or None. A number passed by value is written to a temporary first."""
        t = self.spec_of(port)
        if t is None:
            return None
        if not t.by_value:
            return self.memory(t)
        if t.uid not in self._filled:
            self._filled[t.uid] = filled = self.temporary(t.dim, self.dtype(t))
            self.fill(filled, t.value if t.constant else Value(t.uid))
        return self._filled[t.uid]

    def output(self, port, always=True):
        """The array of an output port. One that nobody reads is a temporary where the step has to write it (`always`), else None."""
        t = self.spec_of(port)
        if t is None:
            return None
        return self.memory(t) if not t.virtual or t.uid in self.needed or always else None

    def memory(self, t):
        """A tensor's own; of a view that of the tensor which it is a part of."""
        if t.uid in self.views:
            view = self.views[t.uid]
            return self.memory(self.spec.tensor(view.source)).view(view.dim, view.stride, view.first)
        return Ref(Tensor(t.dim, t.stride, self.dtype(t), known_alignment(t)), ("tensor", t.uid))

    def dtype(self, t):
        """The library's dtype of a tensor; refused where it has none."""
        if t.dtype not in DTYPE or t.reordering != "NONE" or t.vector is not None and not t.may_be_bits:
            more = f", reordering {t.reordering}" * (t.reordering != "NONE") + f", vectors {t.vector}" * (t.vector is not None)
            raise cudnnGraphNotSupportedError(f"{self}: tensor {t.name!r} (uid {t.uid}): data type {t.dtype}{more}; expected one of "
                                              f"{', '.join(DTYPE)}, in plain order")
        return DTYPE[t.dtype]

    def temporary(self, shape, dtype, strides=None):
        """An array in the workspace."""
        tensor = Tensor(tuple(shape), tuple(strides) if strides is not None else packed_strides(tuple(shape)), dtype)
        self.temporaries.append(tensor)
        return Ref(tensor, ("temporary", len(self.temporaries) - 1))

    def number(self, port, factor=1.0, default=None):
        """The number at a port passed by value, for a step's scalars: a float of a constant, else a `Value`."""
        t = self.spec_of(port)
        if t is None:
            return default
        if not t.by_value:
            self.refuse(port, "a tensor on the device", "a number passed by value (set_is_pass_by_value)")
        return float(t.value) * factor if t.constant else Value(t.uid, factor)

    def integer(self, port):
        """The same for a seed or an offset, 64 bits."""
        t = self.spec_of(port)
        return int(t.value) % 2 ** 64 if t.constant else Value(t.uid)

    def stream_seed(self, seed, offset):
        """The integer that kernels of attention take for a seed and an offset passed by value."""
        return Value(self.spec_of(seed).uid, offset=self.spec_of(offset).uid)

    @property
    def compute(self):
        """The library's dtype that the node computes in."""
        return DTYPE.get(self.node.compute, "float32")

    def attribute(self, key, default=None):
        """An attribute of the node."""
        return self.node.attribute(key, default)

    # ---- steps

    def call(self, op, operands, results, *parameters, scalars=(), make=None, chain=None, **more):
        """Add a step: the problem that a call of the operation's public function would have.

        Parameters
        ----------
        op : str
        operands, results : tuple of Ref or None
            In the order of the front end's operands and outputs.
        parameters
            What the front end's `make_problem` takes after the operands and outputs.
        scalars : tuple of float or Value
            In the order of the front end's scalars.
        make : callable, optional
            Instead of `make_problem`.
        chain : Chain, optional
            What the operation's kernel does to its result besides.
        """
        operation = dispatch.operation_of(op)
        tensors = [None if r is None else r.tensor for r in operands]
        tensors += [None] * (len(operation.operands) - len(operands))
        outs = tuple(None if r is None else r.tensor for r in results)
        try:
            problem = (make or operation.make_problem)(tuple(tensors), outs if len(outs) > 1 else outs[0], *parameters,
                                                       aliases=frozenset(), **more)
            refs = {**dict(zip(operation.operands, operands)), **dict(zip(operation.outputs, results))}
            numbers = dict(zip(operation.scalars, scalars))
            if chain is not None:
                tensors, more_refs, more_numbers = chain.extras(problem.outputs[0].shape)
                problem = replace(problem, program=chain.program, extras=tensors)
                refs, numbers = {**refs, **more_refs}, {**numbers, **more_numbers}
        except (TypeError, ValueError) as error:
            raise cudnnGraphNotSupportedError(f"{self}: {error}") from None
        self.add(problem, refs, numbers)

    def problem(self, kind, operands, results, scalars=None, bound=None, names=None, chain=None, prologues=None, dtype=None,
                beside=({}, {}), **fields):
        """Add a step: a problem of a class whose fields are its arrays' names, {name: Ref or None}, and these.

        `bound`: {field: Value} of fields that are read at each execution. `names`: {field: name in launches}, where they differ. `chain`
        is as `call`'s. `prologues`: {"a" or "b": Chain} of what the kernel makes of its operands, of this dtype. `beside`: ({name: Ref},
        {name: Value}) of operands that are no fields.
        """
        refs, (more_refs, more_numbers) = {**operands, **results}, beside
        for of, made in (prologues or {}).items():
            names_of = [f"{of}{k}" for k in range(len(made.program.operands))]
            tensors, some_refs, some_numbers = made.extras(made.main.shape, names_of)
            fields[f"prologue_{of}"] = Prologue(made.program, dtype, tensors)
            more_refs, more_numbers = {**more_refs, **some_refs}, {**more_numbers, **some_numbers}
        if chain is not None:
            fields["extras"], some_refs, some_numbers = chain.extras(chain.main.shape)
            fields["program"] = chain.program
            more_refs, more_numbers = {**more_refs, **some_refs}, {**more_numbers, **some_numbers}
        try:
            problem = kind(**{name: None if r is None else r.tensor for name, r in refs.items()}, **fields)
        except (TypeError, ValueError) as error:
            raise cudnnGraphNotSupportedError(f"{self}: {error}") from None
        self.add(problem, {**{(names or {}).get(name, name): r for name, r in refs.items()}, **more_refs},
                 {**(scalars or {}), **more_numbers}, bound)

    def add(self, problem, refs, scalars=None, bound=None):
        """Add a step; `refs` are its operands and outputs by their names in launches."""
        buffers = tuple((name, (r.buffer, r.offset)) for name, r in refs.items() if r is not None)
        self.steps.append(Step(problem, buffers, tuple((scalars or {}).items()), str(self), tuple((bound or {}).items()),
                               tuple(map(self.spec.label, self.nodes))))

    def expect_an_algorithm(self):
        """Refuse the part unless another algorithm than the naive one takes the problem that was added last."""
        problem = self.steps[-1].problem
        reasons = {a.name: a.reason(problem) for a in dispatch.algorithms(problem.op) if a.name != "naive"}
        if not problem.is_empty and all(reasons.values()):
            raise cudnnGraphNotSupportedError(f"{self}: " + "; ".join(f"{name}: {reason}" for name, reason in reasons.items()))

    def fill(self, ref, value):
        """Write a number to every element."""
        as_bytes = {"bool": "uint8"}.get(ref.dtype, ref.dtype)
        self.call("set_tensor", (), (ref.reinterpreted(as_bytes),), scalars=(value,),
                  make=lambda tensors, out, aliases: dispatch.operation_of("set_tensor").make_problem((out,), out, aliases=aliases))

    def copy(self, source, target):
        """Copy an array, and convert its values where dtypes differ. Truth values are 0 and 1 as numbers."""
        if source.dtype == target.dtype:
            source, target = (r.reinterpreted("uint8") if r.dtype == "bool" else r for r in (source, target))
            self.call("transpose", (source,), (target,), tuple(range(len(source.shape))))
            return
        if target.dtype == "bool":
            zero = self.temporary((1,), source.dtype)
            self.fill(zero, 0.0)
            self.call("binary", (source, zero.broadcast(source.shape)), (target,), "cmp_neq")
            return
        source = source.reinterpreted("uint8") if source.dtype == "bool" else source
        self.call("cast", (source,), (target,), target.dtype, False, scalars=(1.0,))

    def duplicate(self, source, target):
        """Copy floats, to memory that may be exactly the source's."""
        if source.dtype == target.dtype:
            self.call("unary", (source,), (target,), "identity", None)
        else:
            self.copy(source, target)

    def converted(self, ref, dtype):
        """The array in a dtype: itself, or a temporary that it is converted into."""
        if ref is None or ref.dtype == dtype:
            return ref
        found = self.temporary(ref.shape, dtype)
        self.copy(ref, found)
        return found

    def into(self, target, dtypes, preferred):
        """Where a step writes a result that may have one of these dtypes: the target, or a temporary of the preferred one, which `done`
        converts."""
        return target if target is None or target.dtype in dtypes else self.temporary(target.shape, preferred)

    def done(self, written, target):
        """Convert what was written elsewhere (`into`) to the target."""
        if target is not None and written is not target:
            self.copy(written, target)

    def refuse(self, port, got, expected):
        """No plan can do this: the node, the port and its tensor, what was got and what was expected."""
        t = self.spec_of(port) if port else None
        where = f"{self}: port {port}" + (f" (tensor {t.name!r}, uid {t.uid})" if t is not None else "") if port else str(self)
        raise cudnnGraphNotSupportedError(f"{where}: got {got}; expected {expected}")

    def __str__(self):
        return f"{self.node.op} node {self.node.name!r}"
