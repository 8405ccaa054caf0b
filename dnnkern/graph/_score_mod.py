"""`score_mod` and `score_mod_bprop` of attention's nodes as programs of the family's problems.

Masks by position come first: a result ``binary_select(score, -inf, mask)`` whose mask compares indices of queries and keys, an affine bound
of their distance, becomes the family's window, so that tiles which it masks are skipped. What is left is a `Program`.
"""
from ..device.pointwise import Function
from ._fuse import Chain, Values, compute_node, loaded, loads_of, program_of, rounded

AXES = (-2,), -1
"""Of scores: queries, keys; the others are a batch."""
MASKING = -1e9
"""A score from here down is none (`attention._scores.LOWEST`)."""
MOST = 1 << 30
EXACT_INDICES = ("INT32", "FLOAT", "DOUBLE")


def modifiers_of(part, operations):
    """What runs inside the part's node: (fields of the problem: the window, the programs, their tensors; ({name: Ref}, {name: Value}) of
    their operands). A bias is added to what `score_mod` returns: by a program, where one is left without the window."""
    inner = part.node.inner
    given, taken = dict(inner.given), dict(inner.taken)
    shape = tuple(part.spec.tensor(given["Score"]).dim)
    inside = _Inside(part.spec, inner, shape)
    result, left, right = inside.without_masks(taken["score_mod"], lambda fill: fill <= MASKING)
    bias = dict(part.node.inputs).get("Bias")
    score_mod = _chain(part, operations, inside, (given["Score"],), result, bias)
    bprop = None
    if "score_mod_bprop" in taken:
        result, left_mask, right_mask = inside.without_masks(taken["score_mod_bprop"], lambda fill: fill == 0)
        if not (_covers(left_mask, left) and _covers(right_mask, right)):
            result = taken["score_mod_bprop"]
        bprop = _chain(part, operations, inside, (given["dScore"], given["Score"]), result)
    if score_mod is None and bprop is not None:
        score_mod = _identity(part, inside, given["Score"], bias)
    extras, refs, numbers = (), {}, {}
    for chain in (score_mod, bprop):
        if chain is not None:
            names = [f"x{len(extras) + k}" for k in range(len(chain.program.operands))]
            more, of_names, by_value = chain.extras(shape, names)
            extras, refs, numbers = extras + more, {**refs, **of_names}, {**numbers, **by_value}
    fields = {"left": left, "right": right, "score_mod": score_mod and score_mod.program, "extras": extras}
    if part.node.op == "sdpa_backward":
        fields["score_mod_bprop"] = bprop and bprop.program
    return fields, (refs, numbers)


def _covers(mask, window):
    """Whether a bound, -1 for none, leaves all that the window's does."""
    return mask < 0 or 0 <= window <= mask


def _identity(part, inside, score, bias):
    values, compute = Values(1), inside.compute(score)
    same = values.step(Function.of("identity"), [("accumulator", 0)], None, compute)
    return _finished(part, values, _biased(part, inside, values, same, bias, compute))


def _biased(part, inside, values, score, bias, compute):
    """A score and the bias, if there is one."""
    return score if bias is None else values.step(
        Function.of("add"), [score, loaded(part, values, bias, lambda ref: inside.shape)], None, compute)


def _finished(part, values, last):
    loads, reads, numbers, axes = loads_of(values, AXES)
    return Chain(program_of(part, values, _of_heads(loads, reads), (), last), reads, (), numbers, axes)


def _chain(part, operations, inside, accumulators, result, bias=None):
    """The `Chain` that computes a tensor inside, and adds a bias; None of the first of the accumulators itself."""
    if result == accumulators[0]:
        return None
    values, compute = Values(len(accumulators)), inside.compute(accumulators[0])
    known = {uid: ("accumulator", k) for k, uid in enumerate(accumulators)}
    nodes = inside.makers_of(result)

    def load(uid):
        known[uid] = loaded(part, values, uid, lambda ref: inside.shape)
        return known[uid]

    for node in nodes:
        if node.op == "gen_index":
            out = part.spec.tensor(node.outputs[0][1])
            axis = inside.axis_of(node)
            index = values.load("int32", 0.0 if axis is None else len(inside.shape) + axis)  # what broadcasts has one index
            known[out.uid] = rounded(part, values, index, "int32", out, nodes)
        else:
            compute_node(part, operations, values, known, node, nodes, load)
    last, dtype = known[result], part.dtype(part.spec.tensor(result))
    if not values.steps or dtype != compute:  # what the anchor reads has the tensor's type
        last = values.step(Function.of("identity"), [last], dtype if dtype != compute else None, compute)
    return _finished(part, values, _biased(part, inside, values, last, bias, compute))


def _of_heads(loads, reads):
    """The loads, by row what varies along neither queries nor keys: a kernel reads that once for each row."""
    refs = iter(reads)
    found = []
    for dtype, access in loads:
        ref = next(refs) if isinstance(access, str) else None
        is_of_head = access == "matrix" and ref.tensor.strides[-2:] == (0, 0)
        found.append((dtype, "row" if is_of_head else access))
    return found


class _Inside:
    """What runs inside a node, by uids; indices and masks among it."""

    def __init__(self, spec, inner, shape):
        self.spec, self.shape = spec, shape
        self.nodes, self.makers = inner.nodes, {uid: node for node in inner.nodes for _, uid in node.outputs}

    def compute(self, uid):
        """The type that scores are computed in."""
        return "float64" if self.spec.tensor(uid).dtype == "DOUBLE" else "float32"

    def makers_of(self, uid):
        """The nodes that a tensor is computed by, in their order."""
        wanted, found = {uid}, []
        for node in reversed(self.nodes):
            if node.outputs[0][1] in wanted:
                wanted.update(u for _, u in node.inputs)
                found.insert(0, node)
        return found

    def axis_of(self, node):
        """That of scores, from the last, which a `gen_index` counts; None where its tensor broadcasts along it."""
        dim = self.spec.tensor(node.outputs[0][1]).dim
        axis = node.attribute("axis") % len(dim) - len(dim)
        return axis if dim[axis] == self.shape[axis] else None

    def without_masks(self, uid, masks):
        """(the tensor without the masks by position that it ends with, left, right): bounds of the window that they are, -1 for none.
        ``masks(number)``: whether what is masked has that number instead."""
        left = right = -1
        while (node := self.makers.get(uid)) is not None and node.op in ("binary_select", "identity"):
            inputs = dict(node.inputs)
            if node.op == "identity":
                if self.spec.tensor(uid).dtype != self.spec.tensor(inputs["IN_0"]).dtype:
                    break
                uid = inputs["IN_0"]
                continue
            found = None
            for kept, filled, negated in (("IN_0", "IN_1", False), ("IN_1", "IN_0", True)):
                number = self._constant(inputs[filled])
                if found is None and number is not None and masks(number) and self.spec.tensor(inputs[kept]).dim == self.shape:
                    found = inputs[kept], self._window(inputs["IN_2"], negated)
            if found is None or found[1] is None:
                break
            uid, bounds = found
            for side, bound in bounds:
                if side == "left":
                    left = bound if left < 0 else min(left, bound)
                else:
                    right = bound if right < 0 else min(right, bound)
        return uid, left, right

    def _constant(self, uid):
        t = self.spec.tensor(uid)
        return float(t.value) if t.constant else None

    def _window(self, uid, negated):
        """[(side, bound), ...] that a mask is, or what it is not; None where it is none."""
        terms = self._conditions(uid)
        if terms is None or negated and len(terms) > 1:
            return None
        found = []
        for i, j, more in terms:
            if negated:  # of integers: not x >= 0 is -x - 1 >= 0
                i, j, more = -i, -j, -more - 1
            if (i, j) not in ((1, -1), (-1, 1)) or not 0 <= more < MOST or more != int(more):
                return None
            found.append(("right" if i == 1 else "left", int(more)))
        return found

    def _conditions(self, uid):
        """[(a, b, c), ...]: a mask is that a i + b j + c >= 0 for all of them, of query i and key j; None where it is something else."""
        node = self.makers.get(uid)
        if node is None:
            return None
        inputs = [u for _, u in node.inputs]
        if node.op == "identity":
            return self._conditions(*inputs)
        if node.op == "logical_and":
            first, second = map(self._conditions, inputs)
            return None if first is None or second is None else first + second
        if node.op not in ("cmp_ge", "cmp_gt", "cmp_le", "cmp_lt"):
            return None
        first, second = map(self._affine, inputs)
        if first is None or second is None:
            return None
        if node.op in ("cmp_le", "cmp_lt"):
            first, second = second, first
        i, j, more = (a - b for a, b in zip(first, second))
        return [(i, j, more - (node.op in ("cmp_gt", "cmp_lt")))]

    def _affine(self, uid):
        """(a, b, c) of a tensor that is a i + b j + c; None where it is something else."""
        t, node = self.spec.tensor(uid), self.makers.get(uid)
        if node is None:
            number = self._constant(uid)
            return None if number is None or number != int(number) else (0, 0, int(number))
        if t.dtype not in EXACT_INDICES:
            return None
        inputs = [u for _, u in node.inputs]
        if node.op == "gen_index":
            return {-2: (1, 0, 0), -1: (0, 1, 0)}.get(self.axis_of(node))
        if node.op == "identity":
            return self._affine(*inputs)
        if node.op not in ("add", "bias", "sub"):
            return None
        first, second = map(self._affine, inputs)
        if first is None or second is None:
            return None
        sign = -1 if node.op == "sub" else 1
        return tuple(a + sign * b for a, b in zip(first, second))
