"""Parts without a product: reductions over one set of axes, and the pointwise nodes before, between and after them, as one kernel of
`dnnkern.fused`. Softmax and the norms spelled out of nodes are such parts.

Nodes have one of two dims: those of what is reduced, or of its rows, 1 along the axes. A tensor that is made and read within the part is
never in memory.
"""
from ..fused import FusedReductionProblem, StagedProgram
from ..host.products import FLOATS
from ._enums import DTYPE
from ._errors import cudnnGraphNotSupportedError
from ._fuse import Values, compute_node, loaded, loads_of, reduce_node, reduced_type, steps_of, stored
from .ops import OPERATIONS

OF_FLOATS = tuple(t for t, dtype in DTYPE.items() if dtype in FLOATS)


def is_reduction(node):
    """Whether a node reduces its input."""
    return OPERATIONS[node.op].reduces is not None


def is_pointwise(node):
    """Whether a node computes every element from the same element of its operands."""
    return OPERATIONS[node.op].formula is not None


def has_rows(nodes):
    """Whether nodes are a part of this kind."""
    return len(nodes) > 1 and any(map(is_reduction, nodes)) and all(is_reduction(n) or is_pointwise(n) for n in nodes)


def reduced(spec, node):
    """(dims of what a reduction reduces, dims of its result, the axes)"""
    dim, row = (tuple(spec.tensor(node.input("X")).dim), tuple(spec.tensor(node.outputs[0][1]).dim))
    return dim, row, tuple(k for k, (n, m) in enumerate(zip(dim, row)) if m == 1 and n != 1)


def refusal(spec, nodes):
    """Why nodes of `has_rows` are no part, or None."""
    first = next(filter(is_reduction, nodes))
    dim, row, axes = reduced(spec, first)
    for node in nodes:
        t = spec.tensor(node.outputs[0][1])
        if not is_reduction(node):
            if tuple(t.dim) not in (dim, row):
                return f"dims {t.dim} and {dim}"
            if node.op == "gen_index" and tuple(t.dim) == row:
                return "an index of rows"
            continue
        others = reduced(spec, node)
        if others != (dim, row, axes):
            return f"reductions of dims {dim} and {others[0]}, over the axes {axes} and {others[2]}"
        if not axes:
            return "a reduction over no axes"
        for given in map(spec.tensor, (node.input("X"), *(uid for _, uid in node.outputs))):
            if given.dtype not in OF_FLOATS:
                return f"a reduction of {given.dtype}"
    return None


def split(spec, nodes):
    """A part that no kernel takes, as two: what depends on no reduction, and the others; or reductions, and the others."""
    made, after = {uid for node in nodes for _, uid in node.outputs}, set()
    for node in nodes:
        if is_reduction(node) or any(uid in after for _, uid in node.inputs):
            after.update(uid for _, uid in node.outputs)
    dim, _, _ = reduced(spec, next(filter(is_reduction, nodes)))
    first = [n for n in nodes if n.outputs[0][1] not in after and tuple(spec.tensor(n.outputs[0][1]).dim) == dim]
    first = first or [n for n in nodes if is_reduction(n) and not any(uid in made for _, uid in n.inputs)]
    if not 0 < len(first) < len(nodes):
        first = nodes[:1]
    return tuple(first), tuple(n for n in nodes if all(n is not m for m in first))


def lower_rows(part, operations):
    """One step of the family `fused`, where another algorithm than the naive one takes it."""
    spec, values, known = part.spec, Values(0), {}
    dim, row, axes = reduced(spec, next(filter(is_reduction, part.nodes)))
    compute = reduced_type(spec, filter(is_reduction, part.nodes))

    def shape_of(ref):
        missing = len(dim) - len(ref.shape)
        return row if all(a < missing or ref.shape[a - missing] == 1 for a in axes) else dim

    def load(uid):
        if uid not in known:
            known[uid] = loaded(part, values, uid, shape_of)
        return known[uid]

    for node in part.nodes:
        if is_reduction(node):
            reduce_node(part, operations, values, known, node, part.nodes, load, compute)
        else:
            compute_node(part, operations, values, known, node, part.nodes, load)
    loads, reads, numbers, index_axes = loads_of(values, None)
    refs = iter(reads)
    accesses = [next(refs) if isinstance(access, str) else None for _, access in loads]
    loads = [(dtype, "row" if ref is not None and ref.shape == row else access) for (dtype, access), ref in zip(loads, accesses)]
    inputs, results, number = [ref for ref in reads if ref is not None], stored(part, known, part.nodes), values.number
    try:
        steps = steps_of(values)
        stores = [(number(value), ref.dtype, "row" if ref.shape == row else "matrix") for value, ref in results]
        problem = FusedReductionProblem(StagedProgram(loads, steps, stores), [ref.tensor for ref in inputs],
                                        [ref.tensor for _, ref in results], dim, axes, index_axes)
    except (TypeError, ValueError) as error:
        raise cudnnGraphNotSupportedError(f"{part}: {error}") from None
    part.add(problem, dict(zip(problem.names, (*inputs, *(ref for _, ref in results)))), dict(zip(problem.scalars, numbers)))
    part.expect_an_algorithm()
