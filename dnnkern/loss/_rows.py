"""Threads side by side along the classes: a part of a warp, a warp or a block walks a row, or a piece of one; `rows` and `split`.

A thread has several loads of 16 bytes in flight (`device.rows` has unaligned edges). Forward it keeps the maximum of what it has seen and
the sum of exponentials below it, which is scaled whenever the maximum grows; the group merges these pairs once, at the row's end. Where
every class has a share of the target there are two more sums. Backward nothing is summed, but for probabilities: an element's gradient
follows from the logarithm of the sum of exponentials.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, device_function, i32, i64, jit, u32
from ..device.block import add, make_block_reduce, make_block_reduce_pair, merge_sums
from ..device.convert import element
from ..device.fastmath import log, maximum
from ..device.index import ceil_div, divide_remainder, divisor
from ..device.rows import LIMIT, Dim, RowLayout, RowForm, make_row, make_row_offsets, row_arguments
from ..device.vec import advance, pin
from ..device.warp import make_reduce
from ..engine.ahead import make_follow
from ..host.launch import Argument
from ._math import BACKWARD, FORWARD, Kind, kind_of, make_inverse, make_slope, make_terms
from ._totals import loss_arguments, totals_arguments, weight_argument, weight_step


@dataclass(frozen=True)
class Config:
    """What a kernel is compiled for.

    Attributes
    ----------
    kind : Kind
    vector_bytes, unaligned
        As `RowLayout`'s.
    dims : int
        Dimensions besides the classes, 1 at least.
    lanes : int
        Threads of a block that walk a row.
    registers : int
        Vectors of each array that a thread loads at once.
    backward, split : bool
        Which direction, and whether rows are cut into pieces.
    """
    kind: Kind
    vector_bytes: int
    unaligned: bool
    dims: int
    lanes: int
    registers: int
    backward: bool
    split: bool = False

    @property
    def threads(self):
        """Of a block."""
        return self.lanes if self.lanes > 32 else 128

    def layout(self, least=False):
        """How a group holds what it has loaded of a row; with `least`, -inf is beyond the row."""
        return RowLayout(self.kind.dtype, self.vector_bytes, self.lanes, self.registers, 0, self.unaligned, least)

    @property
    def registers_needed(self):
        """Of a thread: packed words, values of a vector, sums, addresses. The compiler is bound to what this leaves."""
        layout, real = self.layout(), 2 if self.kind.compute == "float64" else 1
        arrays, extra = 1 + self.kind.soft, 10 * self.kind.shares + 20 * bool(self.kind.weight)
        many = 14 * (self.registers > 4 and layout.itemsize == 2)  # the compiler takes more words apart at once than are used
        least = (15 if self.backward else 23) * real
        return min(255, least + many + arrays * (layout.words + real * (layout.elements + layout.edges)) + extra * real)

    @property
    def blocks(self):
        """Resident ones at least: the compiler's bound on registers."""
        return max(1, min(16, 65536 // (-(-self.registers_needed // 8) * 8 * self.threads), 1536 // self.threads))

    def __str__(self):
        return f"{self.lanes} threads, {self.registers} x {self.vector_bytes} bytes" + ", unaligned edges" * self.unaligned


def refusal(problem):
    """What keeps both algorithms from a problem; None if nothing does."""
    form = problem.form
    if not form.rows:
        return "there are no rows"
    if form.length >= LIMIT or form.rows >= 2 ** 31 - 2 ** 20:
        return f"{form.rows} rows of {form.length} classes; expected fewer than 2**31 - 2**20, of fewer than 2**28"
    return None


def vectors(problem):
    """Vectors of a row."""
    vector_bytes, unaligned = problem.vector
    per = vector_bytes // problem.scores.itemsize
    return max(1, problem.form.length // per if unaligned else ceil_div(problem.form.length, per))


def make_config(problem, lanes, registers, split=False):
    """The configuration of a problem with this way to walk a row."""
    return Config(kind_of(problem), *problem.vector, max(1, len(problem.form.outer)), lanes, registers,
                  not problem.is_forward, split)


def in_flight(problem):
    """Vectors of an array that a thread may load at once: more than four of them only if nothing else takes registers, as stores do."""
    plain = problem.is_forward and not kind_of(problem).shares and problem.compute != "float64"
    return 8 if plain or problem.vector[0] < 16 and not problem.is_soft else 2 if problem.is_soft else 4


# ---- device functions of a row

@functools.cache
def make_look(kind):
    """Device functions ``look(targets, to, weight, weight_step, classes, ignore)`` -> (label, its weight), and ``finish(...)``, which
    writes the logarithm of a row's sum of exponentials and returns its loss, written too where each row keeps its own."""
    do, Real = make_terms(kind), kind.real
    label_of, weigh, conclude, SOFT, EACH = do.label, do.weigh, do.conclude, kind.soft, kind.each

    @device_function
    def look(targets, to, weight, weight_step, classes, ignore):
        label, w = i64(0), Real(0)
        if not SOFT:
            label = label_of(targets, to, i64(classes), ignore)
            if label >= 0:
                w = weigh(weight, label * weight_step)
        return label, w

    @device_function
    def finish(loss, loss_at, lse, lse_at, label, score, w, m, total, base, aimed, sum_aimed, keep, share):
        z = log(total)
        lse[lse_at] = m + z
        value = conclude(label, m - score + z, m - base + z, aimed, sum_aimed, w, keep, share)
        if EACH:
            loss[loss_at] = value
        return value
    return look, finish


# ---- forward

@functools.cache
def forward_kernel(config, dependent):
    """The loss of each row, and the logarithm of its sum of exponentials; of a piece what is left to be merged."""
    kind, layout = config.kind, config.layout(True)
    vec, aims_of, do = make_row(layout), make_row(config.layout()), make_terms(kind)
    load_aims, load_rest_aims = aims_of.load, aims_of.load_edges
    load_one, (look, finish) = element(kind.dtype).load, make_look(kind)
    Real, NOTHING, SOFT, SHARES, COUNTED = kind.real, -math.inf, kind.soft, kind.shares, kind.soft or bool(kind.weight)
    MEAN, TOGETHER = kind.mean, not kind.each and not config.split
    E, WORDS, EDGE_SLOTS, EDGES, REGISTERS = layout.elements, layout.words, layout.edge_slots, layout.edges, config.registers
    MORE, MORE_REST = (WORDS, EDGE_SLOTS) if SOFT else (1, 1)
    THREADS, BLOCKS, LANES, SPLIT = config.threads, config.blocks, config.lanes, config.split
    ROWS, LOG, NARROW, TURN = THREADS // LANES, LANES.bit_length() - 1, LANES <= 32, LANES * REGISTERS
    SCRATCH = 1 if NARROW and not TOGETHER else THREADS // 8
    SCRATCH_SHARES = THREADS // 8 if SHARES and not NARROW else 1
    merge_block, merge_two = make_block_reduce_pair(do.merge, THREADS), make_block_reduce_pair(merge_sums, THREADS)
    row_offsets, hold, begin = make_row_offsets(config.dims, FORWARD), pin(WORDS), make_follow(dependent)
    if NARROW:
        widest, whole = make_reduce(maximum, LANES), make_reduce(add, LANES)

        @device_function
        def combine(m, total, scratch):
            top = widest(m)
            _, total = do.merge(m, total, top, Real(0), Real(0))
            return top, whole(total)

        @device_function
        def combine_sums(a, b, scratch):
            return whole(a), whole(b)
    else:
        @device_function
        def combine(m, total, scratch):
            return merge_block(m, total, Real(0), scratch, 0)

        @device_function
        def combine_sums(a, b, scratch):
            return merge_two(a, b, Real(0), scratch, 0)

    @jit(launch_bounds=(THREADS, BLOCKS))
    def cross_entropy_fwd_rows(logits, targets, weight, loss, weights, lse, partial, rows, classes, pieces, size, logits_step,
                               targets_step, weight_step, ignore, keep, share, divisors, strides):
        begin()
        scratch, scratch_shares = cuda.shared.array(SCRATCH, Real), cuda.shared.array(SCRATCH_SHARES, Real)
        words, more = cuda.local.array(WORDS, u32), cuda.local.array(MORE, u32)
        values, others = cuda.local.array(E, Real), cuda.local.array(E, Real)
        edges, rest_aims = cuda.local.array(EDGE_SLOTS, Real), cuda.local.array(MORE_REST, Real)
        thread = cuda.threadIdx.x
        lane = thread & (LANES - 1)
        row, piece = cuda.blockIdx.x * ROWS + (thread >> LOG), 0
        if SPLIT:
            row, piece = divide_remainder(cuda.blockIdx.x, pieces)
        n = classes if row < rows else 0
        offsets = row_offsets(row if row < rows else 0, divisors, strides)
        x, t = advance(logits, offsets.scores), targets
        if SOFT:
            t = advance(targets, offsets.targets)
        prologue, vectors = vec.split(x, n)
        m, total, aimed, sum_aimed, base = Real(NOTHING), Real(0), Real(0), Real(0), Real(0)
        if SHARES:
            if n > 0:
                base = do.anchor(load_one(x, i64(0)))
        if piece == 0:
            vec.load_edges(edges, x, prologue, vectors, n, lane)
            if SOFT:
                load_rest_aims(rest_aims, t, prologue, vectors, n, lane)
            for k in range(EDGES):
                m = maximum(m, edges[k])
            s = do.scale(m)
            low = do.shift(m * s)
            for k in range(EDGES):
                total += do.rise(edges[k], s, low)
                if SHARES:
                    j = lane + k * LANES
                    i = j if j < prologue else j + vectors * E
                    if i < n:
                        q = do.aim(rest_aims[k if SOFT else 0], do.weigh(weight, i * weight_step), keep, share)
                        if COUNTED:
                            aimed += q
                        sum_aimed += q * (edges[k] - base)
        end = vectors
        if SPLIT:
            end = min(end, piece * size + size)
        for first in range(piece * size, end, TURN):
            left = vectors - first
            vec.load(words, advance(x, i64(first) * E * logits_step), prologue, left, lane, logits_step)
            if SOFT:
                load_aims(more, advance(t, i64(first) * E * targets_step), prologue, left, lane, targets_step)
            old = m
            for c in range(REGISTERS):
                vec.unpack(values, words, c)
                for e in range(E):
                    m = maximum(m, values[e])
            s = do.scale(m)
            low = do.shift(m * s)
            total = total * do.drop(old, s, low)
            hold(words)
            for c in range(REGISTERS):
                vec.unpack(values, words, c)
                for e in range(E):
                    total += do.rise(values[e], s, low)
                if SHARES:
                    i = lane + c * LANES
                    if i < left:
                        if SOFT:
                            vec.unpack(others, more, c)
                        at = prologue + (first + i) * E
                        for e in range(E):
                            q = do.aim(others[e], do.weigh(weight, (at + e) * weight_step), keep, share)
                            if COUNTED:
                                aimed += q
                            sum_aimed += q * (values[e] - base)
        label, score, w = i64(0), Real(0), Real(0)
        if not SPLIT:
            if n > 0 and lane == 0:
                label, w = look(targets, offsets.targets, weight, weight_step, classes, ignore)
                if not SOFT:
                    if label >= 0:
                        score = load_one(x, label * logits_step)
        m, total = combine(m, do.settle(m, total), scratch)
        if SHARES:
            aimed, sum_aimed = combine_sums(aimed, sum_aimed, scratch_shares)
        value = Real(0)
        if n > 0 and lane == 0:
            if SPLIT:
                to = 4 * i64(cuda.blockIdx.x)
                partial[to] = m
                partial[to + 1] = total
                partial[to + 2] = aimed
                partial[to + 3] = sum_aimed
            else:
                if not COUNTED:
                    aimed = Real(classes)
                value = finish(loss, offsets.loss, lse, offsets.lse, label, score, w, m, total, base, aimed, sum_aimed, keep, share)
        if TOGETHER:
            if NARROW:
                value, w = merge_two(value, w, Real(0), scratch, 0)
            if thread == 0:
                loss[cuda.blockIdx.x] = value
                if MEAN:
                    weights[cuda.blockIdx.x] = w
    return cross_entropy_fwd_rows


# ---- backward

@functools.cache
def backward_kernel(config, dependent):
    """The gradient of each row, or of a piece of it."""
    kind, layout = config.kind, config.layout()
    vec, do = make_row(layout), make_terms(kind)
    power, weigh, aim, slope, inverse = do.power, do.weigh, do.aim, make_slope(kind), make_inverse(kind.compute)
    (look, _), Real = make_look(kind), kind.real
    SOFT, SHARES, WEIGHTED, MEAN, READS = kind.soft, kind.shares, bool(kind.weight), kind.mean, kind.reads
    E, WORDS, EDGE_SLOTS, EDGES, REGISTERS = layout.elements, layout.words, layout.edge_slots, layout.edges, config.registers
    MORE, MORE_REST = (WORDS, EDGE_SLOTS) if SOFT else (1, 1)
    THREADS, BLOCKS, LANES, SPLIT = config.threads, config.blocks, config.lanes, config.split
    ROWS, LOG, NARROW, TURN = THREADS // LANES, LANES.bit_length() - 1, LANES <= 32, LANES * REGISTERS
    SCRATCH, SUMMED = THREADS // 16 if SOFT and not NARROW else 1, SOFT and not SPLIT
    row_offsets, begin = make_row_offsets(config.dims, BACKWARD), make_follow(dependent)
    reduce_narrow, reduce_block = make_reduce(add, min(LANES, 32)), make_block_reduce(add, THREADS)

    @device_function
    def combine(total, scratch):
        if NARROW:
            return reduce_narrow(total)
        return reduce_block(total, scratch, 0)

    @jit(launch_bounds=(THREADS, BLOCKS))
    def cross_entropy_bwd_rows(dloss, scores, targets, lse, weight, gradient, totals, partial, rows, classes, pieces, size, scores_step,
                               targets_step, gradient_step, weight_step, ignore, keep, share, scale, divisors, strides):
        begin()
        scratch = cuda.shared.array(SCRATCH, Real)
        words, more = cuda.local.array(WORDS, u32), cuda.local.array(MORE, u32)
        values, others = cuda.local.array(E, Real), cuda.local.array(E, Real)
        edges, rest_aims = cuda.local.array(EDGE_SLOTS, Real), cuda.local.array(MORE_REST, Real)
        thread = cuda.threadIdx.x
        lane = thread & (LANES - 1)
        row, piece = cuda.blockIdx.x * ROWS + (thread >> LOG), 0
        if SPLIT:
            row, piece = divide_remainder(cuda.blockIdx.x, pieces)
        n = classes if row < rows else 0
        offsets = row_offsets(row if row < rows else 0, divisors, strides)
        x, t, y = scores, targets, advance(gradient, offsets.gradient)
        if READS:
            x = advance(scores, offsets.scores)
        if SOFT:
            t = advance(targets, offsets.targets)
        prologue, vectors = vec.split(y, n)
        # what the row's elements have in common
        label, low, aimed, w = i64(0), Real(0), Real(0), Real(0)
        g = dloss[offsets.dloss] * scale
        if MEAN:
            g = g * inverse(totals[0])
        if not SOFT:
            label, w = look(targets, offsets.targets, weight, weight_step, classes, ignore)
            if SHARES:
                aimed = totals[1] if WEIGHTED else Real(classes)
        if SUMMED:
            vec.load_edges(rest_aims, t, prologue, vectors, n, lane)
            for k in range(EDGES):
                j = lane + k * LANES
                i = j if j < prologue else j + vectors * E
                if i < n:
                    aimed += aim(rest_aims[k], weigh(weight, i * weight_step), keep, share)
            for first in range(0, vectors, TURN):
                left = vectors - first
                vec.load(more, advance(t, i64(first) * E * targets_step), prologue, left, lane, targets_step)
                for c in range(REGISTERS):
                    i = lane + c * LANES
                    if i < left:
                        vec.unpack(others, more, c)
                        at = prologue + (first + i) * E
                        for e in range(E):
                            aimed += aim(others[e], weigh(weight, i64(at + e) * weight_step), keep, share)
            aimed = combine(aimed, scratch)
        if SOFT and SPLIT:
            for k in range(i32(pieces[0])):
                aimed += partial[row * i64(pieces[0]) + k]
        probability, target, each = slope(label, g, w, aimed, keep, share)
        covered = n
        if READS:
            if label == -1:
                covered = 0
            elif n > 0:
                low = lse[offsets.lse]
        mark = i32(label)
        if piece == 0:
            if READS:
                vec.load_edges(edges, x, prologue, vectors, covered, lane)
            if SOFT:
                vec.load_edges(rest_aims, t, prologue, vectors, n, lane)
            for k in range(EDGES):
                j = lane + k * LANES
                i = j if j < prologue else j + vectors * E
                value = probability
                if READS:
                    value = probability * power(edges[k] - low)
                if i < n:
                    if SHARES:
                        q = aim(rest_aims[k if SOFT else 0], weigh(weight, i * weight_step), keep, share)
                        value = value - each * q
                    if not SOFT:
                        if i == mark:
                            value = value - target
                edges[k] = value
            vec.store_edges(y, edges, prologue, vectors, n, lane)
        end = vectors
        if SPLIT:
            end = min(end, piece * size + size)
        mark = mark - prologue
        for first in range(piece * size, end, TURN):
            left = vectors - first
            if READS:
                vec.load(words, advance(x, i64(first) * E * scores_step), prologue, left if covered > 0 else 0, lane, scores_step)
            if SOFT:
                vec.load(more, advance(t, i64(first) * E * targets_step), prologue, left, lane, targets_step)
            for c in range(REGISTERS):
                at = (first + lane + c * LANES) * E
                if READS:
                    vec.unpack(values, words, c)
                    for e in range(E):
                        values[e] = probability * power(values[e] - low)
                else:
                    for e in range(E):
                        values[e] = probability
                if SHARES:
                    if at < vectors * E:
                        if SOFT:
                            vec.unpack(others, more, c)
                        for e in range(E):
                            q = aim(others[e], weigh(weight, (prologue + at + e) * weight_step), keep, share)
                            values[e] = values[e] - each * q
                if not SOFT:
                    for e in range(E):
                        if at + e == mark:
                            values[e] = values[e] - target
                vec.pack(words, c, values)
                vec.store(advance(y, i64(first) * E * gradient_step), words, c, prologue, left, lane, gradient_step)
    return cross_entropy_bwd_rows


# ---- launches

def row_places(problem, names):
    """Kernel parameters `divisors` and `strides` of the offsets of a row in these arrays."""
    order = [problem.places_of.index(name) if name in problem.places_of else 0 for name in names]
    outer = tuple(Dim(d.size, tuple(d.strides[k] for k in order)) for d in problem.form.outer)
    divisors, strides = row_arguments(RowForm((Dim(1, (0,) * len(names)),), outer))
    return Argument(f"uint32x{len(divisors)}", divisors), Argument(f"int64x{len(strides)}", strides)


def arrays(problem, count):
    """Kernel parameters of the arrays, in the order of the kernels of the problem's direction; forward `count` losses are left."""
    p, kind = problem, kind_of(problem)
    pointer, numbers = element(p.dtype).pointer, f"{p.compute}*"
    targets = Argument(pointer if kind.soft else f"{kind.labels}*", "targets")
    if p.is_forward:
        return Argument(pointer, p.named[0][0]), targets, weight_argument(p), *loss_arguments(p, count), Argument(numbers, "lse")
    return (Argument(numbers, "dloss"), Argument(pointer, p.named[1][0]), targets, Argument(numbers, "lse" if kind.reads else "dloss"),
            weight_argument(p), Argument(pointer, p.named[-1][0]), totals_arguments(p))


def steps(problem):
    """Kernel parameters of the strides along the classes, and of the numbers of the problem."""
    p = problem
    names = ("scores", "targets") if p.is_forward else ("scores", "targets", "gradient")
    found = [Argument("int64", p.step(name) if name in p.whole else 0) for name in names]
    found += [Argument("int64", weight_step(p)), Argument("int64", p.ignore_index)]
    found += [Argument(p.compute, p.keep), Argument(p.compute, p.share)]
    if not p.is_forward:
        found.append(Argument(p.compute, 1 / p.rows if p.reduction == "mean" and p.is_soft else 1.0))
    return tuple(found)


def make_arguments(problem, count, partial=None, pieces=1, size=LIMIT):
    """Arguments of `forward_kernel` or `backward_kernel`; `partial` is a byte offset in the workspace, None where nothing is kept there."""
    p = problem
    kept = Argument(f"{p.compute}*", "lse" if p.is_forward else "dloss") if partial is None else \
        Argument(f"{p.compute}*", "workspace", partial)
    return (*arrays(p, count), kept, Argument("int32", p.rows), Argument("int32", p.classes), Argument("uint32x3", divisor(pieces)),
            Argument("int32", size), *steps(p), *row_places(p, FORWARD if p.is_forward else BACKWARD))
