"""Override shapes: a plan that is built, for tensors of other dims and strides, `execute`'s override_uids and what goes with them.

The graph is inferred anew with what is given, and lowered by the plan's cut. A step keeps the plan's algorithm and configuration where they
solve its new problem; sizes are arguments of kernels, so nothing is compiled for it then.
"""
from .. import dispatch
from ._enums import data_type
from ._engines import Cut
from ._errors import AttributeNotSet, InvalidValue, ShapeDeductionFailed
from ._infer import GraphNode
from ._inner import InnerNodes
from ._ir import GraphSpec
from ._partition import between, cuts, spelled_cuts
from ._tensor import sizes, tensor_of
from .ops import OPERATIONS

REMEMBERED = 256  # shapes of a graph
_CONVOLUTIONS = {"conv_fprop": ("X", "W"), "conv_dgrad": ("DX", "W"), "conv_wgrad": ("X", "DW")}


def overridden(pygraph, plan, uids, shapes, strides):
    """The plan for tensors of these uids with these dims and strides; whatever depends on them follows. `pygraph` is the class, which
    infers.

    Raises
    ------
    RuntimeError
        INVALID_VALUE: lists of several lengths, a uid that is no tensor's or that comes twice, another rank, another order of strides,
        another number of groups.
    ValueError
        Dims that do not fit each other.
    cudnnGraphNotSupportedError
        What no algorithm can do.
    """
    built = plan.spec.origin
    spec = respecified(pygraph, built, _checked(built, uids, shapes, strides))
    _check_groups(built, spec)
    found = [*spelled_cuts(spec), *((spec, parts) for parts in cuts(spec))]
    if plan.cut >= len(found):
        found += [(spec, parts) for parts in between(spec)]
    number = min(plan.cut, len(found) - 1)
    cut, forced = Cut(found[number][0], number, found[number][1], plan.device, plan.kernels), {}
    if [step.op for step in cut.steps] == [step.op for step in plan.steps]:
        forced = {k: a for k, (a, step) in enumerate(zip(plan.algorithms, cut.steps)) if a is not None and _suits(a, step, plan.device)}
    made = cut.plan(plan.engine, forced=forced)
    made.promised = plan.promised
    return made


def _suits(algorithm, step, device):
    """Whether an algorithm solves a step with the configuration that it is bound to."""
    if step.problem.is_empty or dispatch.refusal(algorithm, step.problem, device) is not None:
        return False
    return algorithm.config is None or algorithm.config in list(algorithm.configs(step.problem, device))


# ---- what is given

def _checked(spec, uids, shapes, strides):
    """{uid: (dims, strides)}"""
    try:
        uids, shapes, strides = list(uids), list(shapes), list(strides)
    except TypeError:
        raise TypeError(f"execute: got override_uids={uids!r}, override_shapes={shapes!r}, override_strides={strides!r}; expected three "
                        "lists") from None
    if not len(uids) == len(shapes) == len(strides):
        raise InvalidValue(f"execute: got {len(uids)} override_uids, {len(shapes)} override_shapes and {len(strides)} override_strides; "
                           "expected as many of each")
    found, known = {}, {t.uid: t for t in spec.tensors}
    for uid, dim, stride in zip(uids, shapes, strides):
        t = known.get(uid)
        if t is None or t.by_value or uid in found:
            raise InvalidValue(f"execute: override_uids has {uid!r}, {_why(t)}; expected uids of tensors that are not passed by value, "
                               "each once")
        what = f"execute: override of tensor {t.name!r} (uid {uid})"
        dim, stride = sizes(dim, f"{what}: shape", 0), sizes(stride, f"{what}: stride", 0)
        if t.ragged is not None and len(stride) == 3 and len(dim) == len(t.dim) == 4:  # of its memory: tokens, heads, elements
            stride = (stride[0], stride[1], stride[0], stride[2])
        if not len(dim) == len(stride) == len(t.dim):
            raise InvalidValue(f"{what}: got shape {dim} and strides {stride}; expected {len(t.dim)} of each, as the graph was built with "
                               f"{t.dim}")
        if not _is_laid_out_alike(t, dim, stride):
            raise InvalidValue(f"{what}: got strides {stride} of shape {dim}; expected them in the order of {t.stride} of {t.dim}, which "
                               "the graph was built with")
        found[uid] = dim, stride
    return found


def _why(t):
    return "which no tensor has" if t is None else "which is passed by value" if t.by_value else "which comes twice"


def _is_laid_out_alike(t, dim, stride):
    """Whether no two axes along which both have several elements are in opposite orders."""
    axes = [k for k, (n, m) in enumerate(zip(t.dim, dim)) if n > 1 and m > 1]
    return all((t.stride[a] - t.stride[b]) * (stride[a] - stride[b]) >= 0 for a in axes for b in axes)


def _check_groups(spec, new):
    for node, after in zip(spec.nodes, new.nodes):
        if node.op in _CONVOLUTIONS:
            was, now = (_groups(of, n) for of, n in ((spec, node), (new, after)))
            if was != now:
                raise InvalidValue(f"execute: {node.op} node {node.name!r}: the shapes make {now} groups; expected {was}, which the graph "
                                   "was built with")


def _groups(spec, node):
    x, w = (spec.tensor(dict((*node.inputs, *node.outputs))[port]).dim for port in _CONVOLUTIONS[node.op])
    return x[1] // max(w[1], 1)


# ---- inference

def respecified(pygraph, spec, given) -> GraphSpec:
    """The graph with other dims and strides of some tensors, {uid: (dims, strides)}: what was inferred of a result is inferred anew."""
    graph = pygraph(spec.name, spec.io, spec.intermediate, spec.compute)
    made = {t.uid: tensor_of(graph, t) for t in spec.tensors}
    for t in spec.tensors:
        if t.ragged is not None:
            made[t.uid]._ragged = made[t.ragged]
    graph.tensors, graph.nodes = list(made.values()), [_node(graph, spec, node, made) for node in spec.nodes]
    for node in graph.nodes:
        _forget_inferred(node)
    for uid, (dim, stride) in given.items():
        made[uid]._dim, made[uid]._stride = dim, stride
        made[uid]._inferred.clear()
    for t in made.values():
        t._forget()
    try:
        for node in graph.nodes:
            if node.operation.name == "reduction":
                _follow(node, spec, given)
            node.operation.infer_node(node)
        graph.validate()
    except (AttributeNotSet, ShapeDeductionFailed) as error:
        text = str(error).removeprefix(f"{error.code}: ")
        raise type(error)(f"execute: with the shapes of override_uids {sorted(given)}: {text}") from None
    return graph._spec


def _node(graph, spec, node, made):
    inputs, outputs = ({port: made[uid] for port, uid in ports} for ports in (node.inputs, node.outputs))
    attributes = dict(node.attributes)
    if node.op == "slice":  # what reached the end of an axis still does
        dim = spec.tensor(node.inputs[0][1]).dim
        attributes["slices"] = tuple((first, None if end == n else end, step) for n, (first, end, step) in zip(dim, attributes["slices"]))
    found = GraphNode(graph, OPERATIONS[node.op], node.name, inputs, outputs, attributes, data_type[node.compute])
    for t in outputs.values():
        t._producer = found
    if node.inner is not None:
        found.inner = _inner(graph, spec, node.inner, made, found)
    return found


def _inner(graph, spec, inner, made, anchor):
    """What runs inside a node; all of its tensors are inferred anew."""
    given, taken = ({name: made[uid] for name, uid in side} for side in (inner.given, inner.taken))
    found = InnerNodes([_node(graph, spec, node, made) for node in inner.nodes], given, taken)
    for t in found.tensors:
        t._dim = t._stride = None
        t._inside = anchor
    for t in given.values():
        t._producer = anchor
    return found


def _forget_inferred(node):
    """Leave the dims and strides of a node's results open where inference gives them; strides of virtual results are nobody's."""
    results, attributes = [(t, t._dim, t._stride) for t in node.outputs.values()], dict(node.attributes)
    for t, *_ in results:
        t._dim = t._stride = None
    try:
        node.operation.infer_node(node)
        left_open = [t for t, dim, stride in results if t._dim == dim and (t._virtual or t._stride == stride)]
    except (AttributeNotSet, ShapeDeductionFailed):
        left_open = []
    node.attributes = attributes
    for t, dim, stride in results:
        t._dim, t._stride = dim, stride
        t._inferred = {"dim", "stride"} if t in left_open else set()


def _follow(node, spec, given):
    """The dims of a reduction's result are the caller's: what was reduced still is, the others are the operand's."""
    (x,), (y,) = node.inputs.values(), node.outputs.values()
    if y._virtual and y._dim is not None and y._uid not in given and len(x._dim) == len(y._dim):
        y._dim, y._stride = tuple(n if n == 1 < m else new for n, m, new in zip(y._dim, spec.tensor(x._uid).dim, x._dim)), None
