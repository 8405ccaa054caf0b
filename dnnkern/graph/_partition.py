"""The cut: which nodes run together. A cut is a tuple of parts, in an order in which they can run; a part is a tuple of nodes."""


def cuts(spec) -> list:
    """The cuts to try, the best first. The last is always one node a part, which every graph has."""
    return [one_by_one(spec)]


def one_by_one(spec):
    """Every node is a part of its own; those of which nothing is used are left out."""
    used = {t.uid for t in spec.tensors if not t.virtual}
    kept = []
    for node in reversed(spec.nodes):
        if any(uid in used for _, uid in node.outputs):
            used.update(uid for _, uid in node.inputs)
            kept.append((node,))
    return tuple(reversed(kept))
