"""The cut: which nodes run together. A cut is a tuple of parts, in an order in which they can run; a part is a tuple of nodes in such an
order: an anchor with pointwise nodes that run in its kernel and reductions of what it computes, pointwise nodes alone, or these and
reductions among them (`_rows`). Those that an anchor reads are its prologue, by which its kernel makes its operands as it loads them. Two
products of one left operand may be anchors of one part, whose pointwise nodes read both, or one product whose columns two slices halve,
which then are nodes of the part."""
import itertools

from ._ir import over_of, prologue
from ._rows import has_rows, is_pointwise, is_reduction, refusal
from ._rows import split as split_rows
from ._spell import spelled
from ._views import halved, views
from .ops import OPERATIONS

ARRAYS, STEPS = 16, 32
"""The most of a part: buffers beside an anchor's operands, functions."""
BETWEEN = 6
"""The most of `between`."""


def cuts(spec) -> list:
    """The cuts to try: with prologues and reductions, without, with pointwise nodes together but products alone, and one node a part, which
    every graph has; those that have fewer parts than the next, or as many. First the one in which a product's kernel reads what it has
    reduced of its rows, and where these are a kernel of their own, then with two products that share a kernel and reductions among
    pointwise nodes, then with the latter alone."""
    single = one_by_one(spec)
    nodes = [node for (node,) in single]
    found = [single]
    for kinds in (*itertools.product((False, True), (False, True)), (True,) * 3, (True,) * 4, ALL):
        together = joined(spec, nodes, None, *kinds)
        if len(together) < len(found[0]):
            apart = tuple(part for whole in together for part in (split(spec, whole) if has_levels(whole) else (whole,)))
            if len(together) < len(apart) <= len(found[0]) and apart != found[0]:
                found.insert(0, apart)
            found.insert(0, together)
    loose = tuple(part for whole in joined(spec, nodes) for part in _without_anchor(whole))
    if loose not in found and len(loose) < len(single):
        found.insert(-1, loose)
    return found


def _without_anchor(part):
    """A product alone, and the pointwise nodes after it."""
    is_product = OPERATIONS[part[0].op].axes is not None
    return (part[:1], part[1:]) if is_product and len(part) > 1 else (part,)


def spelled_cuts(spec) -> list:
    """[(graph, parts)] of what is tried before `cuts`: the first cut of the graph spelled out (`_spell`), if sums that are spelled out are
    of an anchor's kernel there; else nothing."""
    other = spelled(spec)
    if other is None:
        return []
    known, first = set(map(id, spec.nodes)), cuts(other)[0]
    of_anchors = any(is_reduction(n) and id(n) not in known and not has_rows(part) for part in first if len(part) > 1 for n in part)
    return [(other, first)] * of_anchors


def between(spec) -> list:
    """More cuts than `cuts` has: the first of those with one of its parts split."""
    first, *others = cuts(spec)
    found = []
    for k, part in enumerate(first):
        if len(part) > 1 and (made := (*first[:k], *split(spec, part), *first[k + 1:])) not in (*others, *found):
            found.append(made)
    return found[:BETWEEN]


def one_by_one(spec):
    """Every node is a part of its own; those of which nothing is used, and views, are left out."""
    used, free = {t.uid for t in spec.tensors if not t.virtual}, views(spec)
    kept = []
    for node in reversed(spec.nodes):
        if any(uid in used for _, uid in node.outputs):
            used.update(uid for _, uid in node.inputs)
            if node.outputs[0][1] not in free:
                kept.append((node,))
    return tuple(reversed(kept))


ALL = (True,) * 5
"""What `joined` may do."""


def joined(spec, nodes, why=None, prologues=False, reductions=False, rows=False, duals=False, levels=False, after=None):
    """Anchors with the pointwise nodes after them, and those that are left, in as few parts as there can be: a node joins the parts of what
    it reads, and of those that read the same tensor, where all of a part has the same dims and no part waits for itself. With `prologues`
    an anchor joins the nodes that make its operands, with `reductions` these join the anchor whose values they are of, with `rows`
    pointwise nodes; with `duals` two products of one left operand are one part; with `levels` pointwise nodes after an anchor read what is
    reduced of its rows. The dict `why` is told the reason for each (node, node)
    that one reads of another and that are apart. `after`: {uid of an input: uids of results that have to be in memory before it is
    there}."""
    graph = _Graph(spec, nodes, prologues, reductions, rows, duals, levels, after or {})
    part, members = list(range(len(nodes))), {k: [k] for k in range(len(nodes))}
    reasons = {}
    for k, node in enumerate(nodes):
        for source in graph.neighbours(k):
            a, b = part[source], part[k]
            if a == b:
                continue
            merged, target = sorted(members[a] + members[b]), min(a, b)
            reason = graph.refusal(merged, source, k)
            if reason is None:
                trial = [target if p in (a, b) else p for p in part]
                if _in_order(trial, graph.reads) is not None:
                    part, members = trial, {**{p: m for p, m in members.items() if p not in (a, b)}, target: merged}
                    continue
                reason = "one would wait for the other"
            reasons[source, k] = reason
        for source in graph.through_views[k] - graph.direct[k]:
            reasons[source, k] = "a view of a result is read from memory"
    if why is not None:
        why.update({(nodes[a], nodes[b]): reason for (a, b), reason in reasons.items() if part[a] != part[b] and a in graph.reads[b]})
    return tuple(_anchor_first(graph.with_slices(members[p])) for p in _in_order(part, graph.reads))


class _Graph:
    """Nodes by number: what each reads and makes."""

    def __init__(self, spec, nodes, prologues, reductions, rows, duals, levels, after):
        self.spec, self.nodes, self.prologues, self.reductions, self.rows, self.duals = spec, nodes, prologues, reductions, rows, duals
        self.levels = levels
        self.makers = {uid: k for k, node in enumerate(nodes) for _, uid in node.outputs}
        free = views(spec)
        slices = halved(spec, free) if duals else {}
        self.halved = {k: slices[node.outputs[0][1]] for k, node in enumerate(nodes)
                       if OPERATIONS[node.op].shares and node.outputs[0][1] in slices}
        for k, pair in self.halved.items():  # a kernel makes both parts as results of its own
            for half in pair:
                uid = half.outputs[0][1]
                self.makers[uid] = k
                del free[uid]
        self.direct = [{self.makers[uid] for _, uid in node.inputs if uid in self.makers} for node in nodes]
        sources = [{source for _, uid in node.inputs for source in ((free[uid].source,) if uid in free else after.get(uid, ()))}
                   for node in nodes]
        self.through_views = [{self.makers[uid] for uid in some if uid in self.makers} for some in sources]
        self.reads = [a | b for a, b in zip(self.direct, self.through_views)]
        self.dims = [spec.tensor((self.halved[k][0] if k in self.halved else node).outputs[0][1]).dim for k, node in enumerate(nodes)]
        self.readers = {}
        for k, node in enumerate(nodes):
            for _, uid in node.inputs:
                self.readers.setdefault(uid, []).append(k)

    def with_slices(self, members):
        """The nodes of a part, which has those that halve its product if it has more than the product."""
        slices = [half for m in members if m in self.halved and len(members) > 1 for half in self.halved[m]]
        return [*(self.nodes[m] for m in members), *slices]

    def neighbours(self, k):
        """Nodes whose part a node may join: those whose results it reads, anchors first since a part has one; then pointwise ones that read
        the same whole tensor."""
        found = sorted(self.direct[k], key=lambda s: is_pointwise(self.nodes[s]))
        if is_pointwise(self.nodes[k]):
            whole = [uid for _, uid in self.nodes[k].inputs if self.spec.tensor(uid).dim == self.dims[k]]
            found += [s for uid in whole for s in self.readers[uid] if s < k and is_pointwise(self.nodes[s])]
        elif self.rows and is_reduction(self.nodes[k]):
            found += [s for _, uid in self.nodes[k].inputs for s in self.readers[uid] if s < k]
        return list(dict.fromkeys(found))

    def refusal(self, merged, source, k):
        """Why these nodes are no part, as far as they themselves say."""
        nodes = [self.nodes[m] for m in merged]
        if self.rows and has_rows(nodes):
            return refusal(self.spec, nodes) or self._size_refusal(merged)
        if not is_pointwise(self.nodes[k]) and not (self.prologues and OPERATIONS[self.nodes[k].op].makes) and not self._reduces(k):
            return f"{self.nodes[k].op} takes its operands from memory"
        anchors = [m for m in merged if not is_pointwise(self.nodes[m]) and not (self._reduces(m) and self.direct[m] & set(merged))]
        for m in anchors:
            if OPERATIONS[self.nodes[m].op].lower_fused is None:
                return OPERATIONS[self.nodes[m].op].alone or f"{self.nodes[m].op} runs no program"
        if (len(anchors) > 1 or set(anchors) & set(self.halved)) and (reason := self._dual_refusal(anchors, merged)):
            return reason
        whole = self.dims[anchors[0]] if anchors else None
        levels = self.levels and whole is not None and OPERATIONS[self.nodes[anchors[0]].op].levels and has_levels(nodes)
        for m in merged:
            if self._reduces(m) and (reason := self._reduction_refusal(m, anchors, merged, levels)):
                return reason
        if levels:
            if other := next((self.dims[m] for m in merged if m not in anchors and self.dims[m] not in (whole, (*whole[:-1], 1))), None):
                return f"dims {whole} and {other}"
        elif self.dims[source] != self.dims[k] and is_pointwise(self.nodes[k]):
            return f"dims {self.dims[source]} and {self.dims[k]}"
        for m in anchors:
            if self.reads[m] & set(merged) and (reason := self._prologue_refusal(m, merged)):
                return reason
        for m in anchors:
            takes = OPERATIONS[self.nodes[m].op].takes
            reason = takes and takes(self.spec, self.nodes[m], [self.nodes[j] for j in merged if j != m],
                                     lambda uid: not self.spec.tensor(uid).virtual or bool(set(self.readers.get(uid, ())) - set(merged)))
            if reason:
                return reason
        return self._size_refusal(merged)

    def _size_refusal(self, merged):
        """Why these nodes, of whatever kind, are no part."""
        if any(self.through_views[m] & set(merged) for m in merged):
            return "a view of a result is read from memory"
        nodes = [self.nodes[m] for m in merged]
        functions = sum(len(OPERATIONS[node.op].formula(node)) if is_pointwise(node) else is_reduction(node) for node in nodes)
        if functions > STEPS:
            return f"{functions} functions; a kernel has {STEPS} at most"
        arrays = self._arrays(merged)
        return f"{arrays} arrays; a kernel has {ARRAYS} at most" if arrays > ARRAYS else None

    def _reduces(self, m):
        """Whether a node is a reduction, which may join an anchor."""
        return self.reductions and is_reduction(self.nodes[m])

    def _reduction_refusal(self, m, anchors, merged, levels):
        """Why a reduction is none of a part with these anchors, or None; with `levels` others read it."""
        node = self.nodes[m]
        ended = "what is reduced is there when the kernel has ended" if any(m in self.reads[j] for j in merged) else None
        if not levels and ended:
            return ended
        if not anchors or OPERATIONS[self.nodes[anchors[0]].op].axes is None:
            return f"{node.op} takes its operands from memory"
        x, y = self.spec.tensor(node.input("X")).dim, self.dims[m]
        over = x == self.dims[anchors[0]] and over_of(x, y, *OPERATIONS[self.nodes[anchors[0]].op].axes(len(x)))
        if not over:
            return f"{node.op} of dims {x} to {y}; kernels reduce rows, columns or both"
        if levels and (over != "columns" or y[:-1] != x[:-1]):
            return ended or f"{node.op} of dims {x} to {y}, beside one of columns that others read"
        return None

    def _dual_refusal(self, anchors, merged):
        """Why these anchors are not two products that a kernel computes together, or None."""
        reason = self._unlike(anchors) if len(anchors) > 1 else None
        if reason is None and (any(self.reads[m] & set(merged) for m in anchors) or any(map(self._reduces, merged))):
            return "a kernel of two products makes no operands and reduces nothing"
        return reason

    def _unlike(self, anchors):
        """Why these anchors are not two products of one left operand, or None."""
        first, second, *others = (self.nodes[m] for m in anchors)
        shares = OPERATIONS[first.op].shares
        if not self.duals or others or first.op != second.op or not shares or set(anchors) & set(self.halved):
            return "a kernel has one product, or two of one left operand"
        if any(first.input(port) != second.input(port) for port in shares):
            return f"two products with different {' and '.join(shares)}"
        for port, uid in first.inputs:
            one, other = self.spec.tensor(uid), self.spec.tensor(second.input(port))
            if (one.dim, one.dtype) != (other.dim, other.dtype) or one.by_value or other.by_value:
                return f"two products whose {port} are no arrays of the same dims and type"
        if (first.attributes, first.compute) != (second.attributes, second.compute):
            return "two products that compute differently"
        return None

    def _prologue_refusal(self, m, merged):
        """Why an anchor's kernel cannot make its operands by the nodes of its part that it reads, or None."""
        op = OPERATIONS[self.nodes[m].op]
        if not self.prologues:
            return "a product takes its operands from memory"
        made = prologue([self.nodes[j] for j in merged], self.nodes[m])
        inside, of_anchor = set(map(id, made)), dict(self.nodes[m].inputs)
        for port, uid in of_anchor.items():
            if self.makers.get(uid) in merged and port not in op.makes:
                return f"{self.nodes[m].op} takes {port} from memory"
        for node in made:
            if is_reduction(node):
                return "a product makes its operands of no rows that are reduced"
            for _, uid in node.outputs:
                readers = [self.nodes[j] for j in self.readers.get(uid, ())]
                stored = not self.spec.tensor(uid).virtual or any(id(r) not in inside and r is not self.nodes[m] for r in readers)
                if stored and uid not in [of_anchor.get(port) for port in op.keeps]:
                    return "what a product makes of its operands is not stored"
                if sum(uid == u for u in of_anchor.values()) > 1:
                    return "both operands are the same tensor"
        return None

    def _arrays(self, merged):
        """Buffers of a part, but for an anchor's own operands."""
        inside, found = {uid for node in self.with_slices(merged) for _, uid in node.outputs}, set()
        for m in merged:
            if is_pointwise(self.nodes[m]) or is_reduction(self.nodes[m]):
                found |= {uid for _, uid in self.nodes[m].inputs if uid not in inside and not self.spec.tensor(uid).by_value}
        outside = {uid for uid, readers in self.readers.items() if set(readers) - set(merged)}
        return len(found | {uid for uid in inside if uid in outside or not self.spec.tensor(uid).virtual})


def has_levels(nodes):
    """Whether some of an anchor's nodes read what others reduce of its result."""
    if has_rows(nodes):
        return False
    made = {uid for node in nodes if is_reduction(node) for _, uid in node.outputs}
    return any(uid in made for node in nodes for _, uid in node.inputs)


def _anchor_first(nodes):
    """The anchor, then the others in their order: what they read besides is there before the anchor starts."""
    if has_rows(nodes):
        return tuple(nodes)
    own = {uid for node in nodes for _, uid in node.outputs}
    return tuple(sorted(nodes, key=lambda n: is_pointwise(n) or is_reduction(n) and any(uid in own for _, uid in n.inputs)))


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


def split(spec, nodes):
    """A part that cannot run as one kernel, as several: without its reductions, and each of these, unless others read them; its prologue,
    and the others; the anchor, and its neighbours; or half of the nodes and the others. Where the parts would wait for each other, every
    node is a part."""
    if has_rows(nodes):
        return split_rows(spec, nodes)
    if not has_levels(nodes) and (reductions := tuple(n for n in nodes[1:] if is_reduction(n))):
        return tuple(n for n in nodes if all(n is not r for r in reductions)), *((r,) for r in reductions)
    if is_pointwise(nodes[0]):
        return nodes[:len(nodes) // 2], nodes[len(nodes) // 2:]
    if made := prologue(nodes[1:], nodes[0]):
        return tuple(made), tuple(n for n in nodes if all(n is not m for m in made))
    return nodes[:1], tuple(n for n in nodes[1:] if n.op != "slice")  # one that halves the product is a view of it then
