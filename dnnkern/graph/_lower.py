"""From a cut to steps: each part as problems of the library's operations."""
from ._errors import cudnnGraphNotSupportedError
from ._fuse import lower_pointwise
from ._part import Part
from ._partition import split
from ._rows import has_rows, lower_rows
from ._views import placed, views


def lower(spec, parts, operations):
    """The steps of all parts, in order, and the temporaries they use: (tuple of Step, list of Tensor). A part that no kernel runs as one is
    split."""
    steps, temporaries, left, known = [], [], list(reversed(parts)), {**views(spec), **placed(spec)}
    while left:
        nodes = left.pop()
        count = len(temporaries)
        part = Part(spec, nodes, _read_outside(spec, nodes), temporaries, known)
        try:
            _lower_part(part, operations)
        except cudnnGraphNotSupportedError:
            if len(nodes) == 1:
                raise
            del temporaries[count:]
            left += reversed(split(spec, nodes))
            continue
        steps += part.steps
    return tuple(steps), temporaries


def _read_outside(spec, nodes):
    """uids that nodes outside of a part read."""
    inside = set(map(id, nodes))  # two nodes may have one name
    return {uid for node in spec.nodes if id(node) not in inside for _, uid in node.inputs}


def _is_mixed(part):
    """Whether the tensors of a node have several types, or one is a number: what takes conversions and copies but in a program."""
    tensors = [part.spec.tensor(uid) for _, uid in (*part.node.inputs, *part.node.outputs)]
    return len({t.dtype for t in tensors}) > 1 or any(t.by_value for t in tensors)


def _lower_part(part, operations):
    operation = operations[part.node.op]
    if has_rows(part.nodes):
        return lower_rows(part, operations)
    if operation.formula is not None and (len(part.nodes) > 1 or operation.lower_node is None or _is_mixed(part)):
        try:
            return lower_pointwise(part, operations)
        except cudnnGraphNotSupportedError:
            if len(part.nodes) > 1 or operation.lower_node is None:
                raise
    if len(part.nodes) > 1:
        return operation.lower_fused(part)
    if operation.lower_node is None:
        raise cudnnGraphNotSupportedError(f"{part}: no plan runs this operation")
    return operation.lower_node(part)
