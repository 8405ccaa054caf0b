"""The cut: which nodes run together. A cut is a tuple of parts, in an order in which they can run; a part is a tuple of nodes in such an
order: an anchor and pointwise nodes that run in its kernel, or pointwise nodes alone."""
from .ops import OPERATIONS


def cuts(spec) -> list:
    """The cuts to try. The last is always one node a part, which every graph has."""
    single = one_by_one(spec)
    together = joined(spec, [node for (node,) in single])
    return [together, single] if len(together) < len(single) else [single]


def one_by_one(spec):
    """Every node is a part of its own; those of which nothing is used are left out."""
    used = {t.uid for t in spec.tensors if not t.virtual}
    kept = []
    for node in reversed(spec.nodes):
        if any(uid in used for _, uid in node.outputs):
            used.update(uid for _, uid in node.inputs)
            kept.append((node,))
    return tuple(reversed(kept))


def joined(spec, nodes):
    """Anchors with the pointwise nodes after them, and those that are left, in as few parts as there can be: a node joins the parts of what
    it reads where all of a part has the same dims and no part waits for itself."""
    makers = {uid: k for k, node in enumerate(nodes) for _, uid in node.outputs}
    reads = [{makers[uid] for _, uid in node.inputs if uid in makers} for node in nodes]
    dims = [_dims(spec, node) for node in nodes]
    part, members = list(range(len(nodes))), {k: [k] for k in range(len(nodes))}
    for k, node in enumerate(nodes):
        if not is_pointwise(node):
            continue
        for source in sorted(reads[k], key=lambda s: is_pointwise(nodes[s])):  # anchors first: a part has one
            a, b = part[source], part[k]
            if a == b or dims[source] != dims[k]:
                continue
            merged, target = sorted(members[a] + members[b]), min(a, b)
            anchors = [m for m in merged if not is_pointwise(nodes[m])]
            if len(anchors) > 1 or any(OPERATIONS[nodes[m].op].lower_fused is None or reads[m] & set(merged) for m in anchors):
                continue
            trial = [target if p in (a, b) else p for p in part]
            if _in_order(trial, reads):
                part, members = trial, {**{p: m for p, m in members.items() if p not in (a, b)}, target: merged}
    order = _in_order(part, reads)
    return tuple(_anchor_first([nodes[m] for m in members[p]]) for p in order)


def is_pointwise(node):
    """Whether a node computes every element from the same element of its operands."""
    return OPERATIONS[node.op].function is not None


def _dims(spec, node):
    return spec.tensor(node.outputs[0][1]).dim


def _anchor_first(nodes):
    """The anchor, then the others in their order: what they read besides is there before the anchor starts."""
    return tuple(sorted(nodes, key=is_pointwise))


def _in_order(part, reads):
    """The parts in an order in which they can run; None where one would wait for itself."""
    waits = {p: set() for p in part}
    for k, sources in enumerate(reads):
        waits[part[k]] |= {part[s] for s in sources} - {part[k]}
    order, done = [], set()
    while waits:
        ready = [p for p, sources in waits.items() if sources <= done]
        if not ready:
            return None
        order += ready
        done.update(ready)
        for p in ready:
            del waits[p]
    return order


def split(nodes):
    """A part that cannot run as one kernel, as two: the anchor, and its neighbours; or half of the nodes and the others. Where the parts
    would wait for each other, every node is a part."""
    first = 1 if not is_pointwise(nodes[0]) else len(nodes) // 2
    return nodes[:first], nodes[first:]
