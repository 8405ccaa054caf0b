"""Nodes of a part as one program: what runs in an anchor's registers, or in one kernel of its own (`dnnkern.fused`).

Values are those of the graph: each node computes in its type, and its result is rounded to the tensor's type where another node of the part
reads it, so that a part computes what its nodes one by one would.
"""
from dataclasses import dataclass, replace

from ..device.convert import INTEGERS
from ..device.pointwise import LOGICAL, Function
from ..device.program import Program, Step
from ..device.program_operands import DTYPES
from ..device.program_reduction import Reduction
from ..engine.program_words import access_of
from ..engine.programs import broadcast_strides, operand_names
from ..engine.prologues import SOURCES
from ..fused import FusedProblem
from ..host.tensor import Tensor
from ._errors import cudnnGraphNotSupportedError
from ._ir import over_of, prologue
from ._part import Value

EXACT = ("identity", "max", "min", "abs", "binary_select", "gen_index", *LOGICAL)
"""Functions that are the same of integers as such and of the floats that they are."""


@dataclass(frozen=True)
class Chain:
    """A program and what it reads and writes.

    Attributes
    ----------
    program : Program
    reads : tuple of Ref or None
        What its loads but for constants are, in their order; None for numbers and indices.
    writes : tuple of Ref
        Of its stores.
    numbers : tuple of Value
        The loads by value.
    axes : tuple of int
        The axes of the loads by index.
    main : Ref or None
        Where the program's result is written by the anchor; of a prologue, the array that value 0 is of.
    reduced : tuple of Ref
        The results of its reductions.
    """
    program: Program
    reads: tuple
    writes: tuple
    numbers: tuple
    axes: tuple
    main: object = None
    reduced: tuple = ()

    def permuted(self, order):
        """With the dims of everything in memory in another order."""
        if list(order) == sorted(order):
            return self
        return replace(self, axes=tuple(map(list(order).index, self.axes)), reads=tuple(ref and ref.permuted(order) for ref in self.reads),
                       writes=tuple(ref.permuted(order) for ref in self.writes), main=self.main.permuted(order),
                       reduced=tuple(ref.permuted(order) for ref in self.reduced))

    def extras(self, shape, names=None):
        """(the tensors of the program's operands, {name of an operand: Ref}, {name of a number: Value}) for a problem that has them, by
        these names."""
        tensors, refs, numbers = [], {}, {}
        names = iter(operand_names(self.program) if names is None else names)
        axes, values = iter(self.axes), iter(self.numbers)
        loads = [load for load in self.program.loads if isinstance(load[1], str)]
        for (dtype, access), ref in zip(loads, self.reads):
            name = next(names)
            if access == "value":
                tensors.append(Tensor((), (), dtype))
                numbers[name] = next(values)
            elif access == "index":
                axis = next(axes)
                tensors.append(Tensor(tuple(shape), tuple(int(d == axis) for d in range(len(shape))), "int32"))
            else:
                tensors.append(ref.tensor)
                refs[name] = ref
        for name, ref in zip(names, self.writes + self.reduced):
            tensors.append(ref.tensor)
            refs[name] = ref
        return tuple(tensors), refs, numbers


def sole_reader(part, operations, nodes, value, compute):
    """(node, its function, what it reads besides) of the one of these nodes that reads the tensor `value`, where that lies in no memory and
    is not rounded, and the node is one function of it that is computed in the same type; else None. What an epilogue may have."""
    t, kind = part.spec.tensor(value), {"float32": "FLOAT", "float64": "DOUBLE"}[compute]
    readers = [node for node in nodes if value in dict(node.inputs).values()]
    if len(readers) != 1 or not t.virtual or value in part.needed or t.dtype != kind or readers[0].compute != kind:
        return None
    node, = readers
    if operations[node.op].formula is None:
        return None
    (f, _), *more = operations[node.op].formula(node)
    others = [part.spec.tensor(uid) for _, uid in node.inputs if uid != value]
    return None if more or len(others) + 1 != f.inputs else (node, f, others)


class Values:
    """Numbers of values as a program is made: accumulators, then loads, then steps; loads are found while steps are made, so that both are
    numbered at the end."""

    def __init__(self, accumulators):
        self.accumulators, self.loads, self.steps = accumulators, [], []

    def load(self, *load):
        self.loads.append(load)
        return "load", len(self.loads) - 1

    def step(self, *step):
        self.steps.append(step)
        return "step", len(self.steps) - 1

    def number(self, value):
        kind, k = value
        return k + {"accumulator": 0, "load": self.accumulators, "step": self.accumulators + len(self.loads)}[kind]


def chain_of(part, operations, anchor=None, accumulator="float32", allowed=(), axes=((-2,), -1), nodes=None, first=None):
    """The `Chain` of a part's pointwise nodes, or of these `nodes` of them, but for those of a prologue, and of its reductions; None where
    there are no others.

    Parameters
    ----------
    anchor : int or tuple of int, optional
        uid of the result of another node of the part: an accumulator of the type `accumulator`, whose kernel writes one result of the
        dtypes `allowed`; or of several nodes' of one kernel.
    axes : (tuple of int, int or tuple of int)
        The axes of the result that are the rows of the anchor's kernel, and its columns; the others are a batch.
    nodes : list of Node, optional
        Those that are left where `anchor` is a result of others, which the kernel has anyhow.
    first : callable, optional
        ``first(values, accumulator)``: the anchor's result, of what its kernel computes.

    Raises
    ------
    cudnnGraphNotSupportedError
        There is no such program.
    """
    anchors = () if anchor is None else (anchor,) if isinstance(anchor, int) else anchor
    values, known = Values(len(anchors)), {}
    nodes = nodes or [node for node in part.nodes if operations[node.op].formula]
    if anchors:
        made = prologue(nodes, part.node)
        nodes = [node for node in nodes if all(node is not m for m in made)]
        reductions = [node for node in part.nodes[1:] if operations[node.op].reduces]
        if not nodes and not reductions and first is None:
            return None
        for k, uid in enumerate(anchors):
            value = ("accumulator", k) if first is None else first(values, ("accumulator", k))
            known[uid] = rounded(part, values, value, accumulator, part.spec.tensor(uid), nodes + reductions)
        made = {uid for node in reductions for _, uid in node.outputs}
        if any(uid in made for node in nodes + reductions for _, uid in node.inputs):
            nodes, reductions = [node for node in part.nodes if any(node is n for n in nodes + reductions)], []  # steps among others
    else:
        reductions = []
    _compute_nodes(part, operations, values, known, nodes, reductions)
    reduced = [of for node in reductions for of in _reduced(part, operations, known, node, axes)]
    return _finished(part, values, known, anchors, allowed, axes, nodes, reduced)


def _reduced(part, operations, known, node, axes):
    """[(value, mode, over what, Ref)] of the results of a reduction that are read."""
    x, rows, columns = part.spec.tensor(node.input("X")), *axes
    rank, found = len(x.dim), []
    for port, mode in operations[node.op].reduces(node):
        t = part.spec.tensor(node.output(port))
        if not t.virtual or t.uid in part.needed:
            over = over_of(x.dim, t.dim, [a % rank for a in rows], [columns % rank])
            found.append((known[x.uid], mode, over, part.memory(t)))
    return found


def prologue_of(part, operations, port, dtype, of_operand=((-2,), -1), sources=SOURCES):
    """The `Chain` that makes the tensor at an input port of the anchor, rounded to a dtype at the end, of the array `Chain.main`.
    `of_operand`: the axes of the operand that are the rows of its matrix, and its columns; `sources`: the dtypes that the array may have.

    Raises
    ------
    cudnnGraphNotSupportedError
        There is no such program.
    """
    uid, inputs = part.node.input(port), {u for _, u in part.node.inputs}
    nodes = prologue(part.nodes[1:], part.node)
    wanted, own = {uid}, []
    for node in reversed(nodes):  # those of this operand alone
        if node.outputs[0][1] in wanted:
            wanted.update(u for _, u in node.inputs)
            own.insert(0, node)
    makers, t = {n.outputs[0][1] for n in nodes}, part.spec.tensor(uid)
    if any(n.outputs[0][1] in inputs - {uid} for n in own):
        raise cudnnGraphNotSupportedError(f"{part}: one node makes both operands")
    wholes = [s for n in own for _, s in n.inputs if s not in makers and not part.spec.tensor(s).by_value
              and tuple(part.spec.tensor(s).dim) == tuple(t.dim) and part.dtype(part.spec.tensor(s)) in sources]
    if not wholes:
        raise cudnnGraphNotSupportedError(f"{part}: no whole array makes port {port}")
    main, values = part.memory(part.spec.tensor(wholes[0])), Values(1)
    known = {wholes[0]: ("accumulator", 0)}
    _compute_nodes(part, operations, values, known, own)
    last = known[uid]
    if part.dtype(t) != dtype:  # whatever reads the tensor reads this
        last = values.step(Function.of("identity"), [last], part.dtype(t), values.steps[-1][3])
    loads, reads, numbers, axes = loads_of(values, of_operand)
    return Chain(program_of(part, values, loads, (), last), reads, (), numbers, axes, main)


def made_of(part, operations, values, shape):
    """Function ``value(uid)`` of the tensors that the part's nodes in front of its anchor make, for elements of a result of this shape."""
    known, made = {}, prologue(part.nodes[1:], part.node)

    def load(uid):
        known[uid] = loaded(part, values, uid, lambda ref: shape)
        return known[uid]
    for node in made:
        compute_node(part, operations, values, known, node, [*made, part.node], load)
    return known.__getitem__


def _compute_nodes(part, operations, values, known, nodes, readers=()):
    """Add the values of nodes to those that are known, {uid: value}; `readers` are other nodes that read some."""
    reductions, readers = [node for node in nodes if operations[node.op].reduces], [*nodes, *readers]
    first = next((node for node in nodes if not operations[node.op].reduces), part.node)
    shape = part.spec.tensor((part.node if reductions else first).outputs[0][1]).dim

    def load(uid):
        if uid not in known:
            known[uid] = loaded(part, values, uid, lambda ref: shape)
        return known[uid]

    for node in nodes:
        if operations[node.op].reduces:
            reduce_node(part, operations, values, known, node, readers, load, reduced_type(part.spec, reductions))
        else:
            compute_node(part, operations, values, known, node, readers, load)


def reduced_type(spec, reductions):
    """The type that a part's reductions are computed in, as steps among others."""
    kinds = {kind for node in reductions for kind in (node.compute, *(spec.tensor(uid).dtype for _, uid in (*node.inputs, *node.outputs)))}
    return "float64" if "DOUBLE" in kinds else "float32"


def reduce_node(part, operations, values, known, node, readers, load, compute):
    """Add the values of a reduction of rows to those that are known; the other parameters are `compute_node`'s."""
    for port, mode in operations[node.op].reduces(node):
        out = part.spec.tensor(node.output(port))
        value = values.step(mode, [load(node.input("X"))], None, compute)
        known[out.uid] = rounded(part, values, value, compute, out, readers)


def loaded(part, values, uid, shape_of):
    """A tensor as a value: a number, or what lies in memory, broadcast to ``shape_of(ref)``."""
    t = part.spec.tensor(uid)
    if t.by_value:
        return values.load(part.dtype(t), float(t.value) if t.constant else Value(uid))
    ref = part.memory(t)
    ref = ref.broadcast(shape_of(ref))
    return values.load(ref.dtype, ref)


def compute_node(part, operations, values, known, node, readers, load):
    """Add the value of a pointwise node to those that are known; ``load(uid)`` makes one that is not. `readers`: nodes that may read it."""
    formula, out = operations[node.op].formula(node), part.spec.tensor(node.outputs[0][1])
    last, _ = formula[-1]
    if last.mode == "gen_index":
        known[out.uid] = rounded(part, values, values.load("int32", node.attribute("axis") % len(out.dim)), "int32", out, readers)
        return
    uids = dict(node.inputs)
    inputs = {port: known[uid] if uid in known else load(uid) for port, uid in uids.items()}
    compute = _compute(part, formula, [part.dtype(part.spec.tensor(uid)) for uid in uids.values()], part.dtype(out), node)
    results = []
    for f, of in formula:
        results.append(values.step(f, [results[v] if isinstance(v, int) else inputs[v] for v in of], None, compute))
    is_same = last.is_condition and part.dtype(out) == "bool"
    known[out.uid] = results[-1] if is_same else rounded(part, values, results[-1], compute, out, readers)


def _compute(part, formula, given, result, node):
    """The type that a node computes in: integers as such where that is exact, else float32, or float64 where float32 could lose
    something."""
    f, _ = formula[0]
    exact = len(formula) == 1 and (f.mode in EXACT or f.is_condition) and not f.refusal("int32")
    if exact and {*given, result} <= set(INTEGERS) - {"int64"}:
        return "int32"
    wide = {"float64", "int32"} & {*given, result} or node.compute == "DOUBLE"
    return "float64" if wide else "float32"


def rounded(part, values, value, kind, t, nodes):
    """A value of a type as the nodes of the part that read its tensor see it."""
    dtype = part.dtype(t)
    if dtype == kind or all(t.uid not in dict(node.inputs).values() for node in nodes):
        return value
    last = values.steps[-1] if value[0] == "step" else None
    if last is not None and value[1] == len(values.steps) - 1 and last[2] is None:
        values.steps[-1] = (*last[:2], dtype, last[3])
        return value
    return values.step(Function.of("identity"), [value], dtype, kind)


def stored(part, known, nodes):
    """[(value, Ref)] of the nodes' results that are not the part's alone."""
    found = []
    for node in nodes:
        for _, uid in node.outputs:
            t = part.spec.tensor(uid)
            if uid in known and (not t.virtual or uid in part.needed):
                found.append((known[uid], part.memory(t)))
    return found


def _finished(part, values, known, anchors, allowed, of_anchor, nodes, reduced):
    of_anchors = [n for n in part.nodes if set(anchors) & set(dict(n.outputs).values())]
    results = stored(part, known, (*of_anchors, *nodes) if anchors else part.nodes)
    main = None
    if anchors and not results:  # the kernel stores its result though nobody reads it
        t = part.spec.tensor(anchors[0])
        results.append((known[t.uid], part.temporary(t.dim, part.dtype(t), t.stride)))
    if anchors:
        whole = part.spec.tensor(anchors[0]).dim
        able = [k for k, (_, ref) in enumerate(results) if ref.dtype in allowed and tuple(ref.shape) == tuple(whole)]
        if not able:
            raise cudnnGraphNotSupportedError(f"{part}: no result of its neighbours is one of {', '.join(allowed)}")
        main = results.pop(able[-1])
    loads, reads, numbers, axes = loads_of(values, of_anchor if anchors else None)
    stores = [(value, ref.dtype, "matrix" if not anchors or tuple(ref.shape) == tuple(whole) else "row") for value, ref in results]
    program = program_of(part, values, loads, stores, main and main[0],
                         [(value, mode, over, ref.dtype) for value, mode, over, ref in reduced])
    return Chain(program, reads, tuple(ref for _, ref in results), numbers, axes, main and main[1], tuple(of[-1] for of in reduced))


def loads_of(values, of_anchor):
    """(a program's loads, `Chain.reads`, `Chain.numbers`, `Chain.axes`)"""
    loads, reads, numbers, axes = [], [], [], []
    for dtype, what in values.loads:
        if isinstance(what, Value):
            numbers.append(what)
            loads.append((dtype, "value"))
            reads.append(None)
        elif isinstance(what, float):
            loads.append((dtype, what))
        elif isinstance(what, int):
            axes.append(what)
            loads.append((dtype, "index"))
            reads.append(None)
        else:
            loads.append((dtype, "matrix" if of_anchor is None else access_of(broadcast_strides(what.tensor, what.shape), *of_anchor)))
            reads.append(what)
    return loads, tuple(reads), tuple(numbers), tuple(axes)


def program_of(part, values, loads, stored, result, reduced=()):
    """The `Program` of values; `stored` are (value, dtype, access), `reduced` (value, mode, over what, dtype)."""
    number = values.number
    try:
        return Program(loads, steps_of(values), [(number(value), *how) for value, *how in stored],
                       None if result is None else number(result), values.accumulators,
                       [(number(value), *how) for value, *how in reduced])
    except (TypeError, ValueError) as error:  # a dtype that no program has
        raise cudnnGraphNotSupportedError(f"{part}: {error}") from None


def steps_of(values):
    """Their steps, of which those by a mode are reductions of rows."""
    number = values.number
    return [Reduction(f, number(of[0]), round_to, kind) if isinstance(f, str) else Step(f, tuple(map(number, of)), round_to, kind)
            for f, of, round_to, kind in values.steps]


def lower_pointwise(part, operations):
    """One step of the family `fused`."""
    chain = chain_of(part, operations)
    _add(part, chain.program, [ref for ref in chain.reads if ref is not None], chain.writes, chain.numbers, chain.axes)


def _add(part, program, inputs, outputs, numbers, axes=()):
    if not inputs:
        raise cudnnGraphNotSupportedError(f"{part}: a program of no array")
    try:
        problem = FusedProblem(program, [ref.tensor for ref in inputs], [ref.tensor for ref in outputs], axes)
    except (TypeError, ValueError) as error:
        raise cudnnGraphNotSupportedError(f"{part}: {error}") from None
    part.add(problem, dict(zip(problem.names, (*inputs, *outputs))), dict(zip(problem.scalars, numbers)))


class Arithmetic:
    """What the lowering of an operation computes element by element, as one step of the family `fused`.

    Parameters
    ----------
    part : Part
    compute : "float32" or "float64"
        Of all functions.
    shape : tuple of int
        Of the results; operands broadcast to it.
    """

    def __init__(self, part, compute, shape):
        self.part, self.compute, self.shape, self.values = part, compute, tuple(shape), Values(0)
        self.inputs, self.numbers, self.stores, self.known = [], [], [], {}

    def of(self, port):
        """The value of an input port."""
        t = self.part.spec_of(port)
        if not t.by_value:
            return self.load(self.part.memory(t))
        if port not in self.known:
            dtype = self.part.dtype(t)
            if not t.constant:
                self.numbers.append(Value(t.uid))
            self.known[port] = self.values.load(dtype if dtype in DTYPES else self.compute, float(t.value) if t.constant else "value")
        return self.known[port]

    def load(self, ref):
        """The value of an array."""
        if ref not in self.known:
            source = ref if ref.dtype in DTYPES else self.part.converted(ref, self.compute)
            self.inputs.append(source.broadcast(self.shape))
            self.known[ref] = self.values.load(source.dtype, "matrix")
        return self.known[ref]

    def constant(self, number):
        """A number."""
        return self.values.load(self.compute, float(number))

    def __call__(self, mode, *values):
        """A pointwise mode of values."""
        return self.values.step(Function.of(mode), values, None, self.compute)

    def store(self, ref, value):
        """Write a result, unless it is None."""
        if ref is not None:
            self.stores.append((value, ref))

    def done(self):
        """Add the step, unless nothing is stored."""
        if not self.stores:
            return
        number = self.values.number
        steps = steps_of(self.values)
        stores = [(number(value), ref.dtype, "matrix") for value, ref in self.stores]
        _add(self.part, Program(self.values.loads, steps, stores, None, 0), self.inputs, [ref for _, ref in self.stores], self.numbers)
