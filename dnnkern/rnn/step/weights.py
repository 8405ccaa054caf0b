"""The gradient of the weights: products whose sums run over all steps and sequences, of both directions at once, and sums for the biases.

In TF32 the tensor cores want both operands along the steps. Where it pays, the gates' gradients are transposed once, for both products,
and added up for the biases on the way.

The states before each step are the layer's results, a step apart. Either they are copied so, with the first states in front; or the
product takes the results themselves, without a step of the gates' gradients, and adds that step's product with the first states.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, f32, i64, jit
from ...device.convert import element
from ...device.index import ceil_div, divide_remainder, divisor
from ...device.numeric import bits_float, float_bits, round_tf32
from ...device.vec import advance, store4_from
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, flight_rate, memory_seconds, overlap
from ...engine.dropout_bits import drawn
from ...engine.embed import Place
from ...engine.moves import transpose_seconds
from ...engine.plan import Plan, alignment_at
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from ...host.tensor import Tensor
from .._cells import NEW, NEW_RECURRENT, TYPES
from .._network import Lines, outputs_of, pointer
from .._parameters import StateStrides, kind_of, line_strides, offsets
from .._plan import THREADS, Rows, alignment_of, blocks, small_seconds
from .._spec import SLOTS

COST = constants("rnn/weights")

SUMMING, IN_FLIGHT = 1024, 8  # threads of a block that adds up columns, loads of each on their way at once
SIDE, RESIDENT = 64, 4  # of a tile that is transposed, blocks of a multiprocessor


# ---- inputs without what lies after the ends of sequences, and after dropout

@functools.cache
def inputs_kernel(dtype, dropped, lengths_given):
    """A packed copy of lines, 0 after the end of a sequence and where an element was dropped."""
    load, store, T = element(dtype).load, element(dtype).store, TYPES[element(dtype).compute]

    @jit(launch_bounds=THREADS)
    def rnn_inputs(x, kept, lengths, y, elements, size, samples, strides, factor):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < elements:
            row, c = divide_remainder(i, size)
            t, n = divide_remainder(row, samples)
            value = T(0)
            if not lengths_given or t < lengths[n]:
                value = load(x, t * strides.t + n * strides.n + c * strides.channel)
            if dropped:
                value = value * factor if load(kept, i) > T(0) else T(0)
            store(y, i, value)
    return rnn_inputs


def clean_inputs(plan, problem, lines, size, kept, factor):
    """Lines that products over all steps may read: themselves, or a copy in the workspace."""
    p = problem
    rows = Rows(p, lines, size)
    if kept is None and p.lengths is None and rows.is_matrix and rows.order == (p.samples, 1):
        return lines
    elements = p.steps * p.samples * size
    to = plan.part(elements * p.x.itemsize)

    def launches():
        arguments = (lines.pointer(p.dtype), pointer(Place("reserve", kept or 0), p.dtype),
                     Argument("int32*", "lengths" if p.lengths else lines.place.name), pointer(to, p.dtype), Argument("int32", elements),
                     Argument("uint32x3", divisor(size)), Argument("uint32x3", divisor(p.samples)), line_strides(lines.strides),
                     Argument(p.compute, factor))
        return (Launch(inputs_kernel(p.dtype, kept is not None, p.lengths is not None), blocks(elements), (THREADS, 1, 1), arguments),)
    plan.add(small_seconds(elements, 2 * elements * p.x.itemsize, plan.device), launches)
    return Lines(to, (p.samples * size, size, 1))


# ---- states one step before

@functools.cache
def before_kernel(dtype, lengths_given, h0_given):
    """The state before each step, packed, by direction; 0 after the end of a sequence."""
    load, store, T = element(dtype).load, element(dtype).store, TYPES[element(dtype).compute]

    @jit(launch_bounds=THREADS)
    def rnn_states_before(y, h0, lengths, out, elements, size, samples, steps, strides, h0_strides):
        i, which = cuda.blockIdx.x * THREADS + cuda.threadIdx.x, cuda.blockIdx.y
        if i < elements:
            row, c = divide_remainder(i, size)
            t, n = divide_remainder(row, samples)
            length = steps
            if lengths_given:
                length = min(lengths[n], length)
            value, before = T(0), t + 1 if which else t - 1
            if t < length:
                if before >= 0 and before < length:
                    channel = which * i64(size[0]) + c
                    value = load(y, before * strides.t + n * strides.n + channel * strides.channel)
                elif h0_given:
                    value = load(h0, which * h0_strides.layer + n * h0_strides.n + c * h0_strides.unit)
            store(out, which * i64(elements) + i, value)
    return rnn_states_before


def states_before(plan, problem, layer):
    """Add a step that writes them; the place of (directions, T, N, state)."""
    p, size, directions, lines = problem, problem.spec.state_size, problem.spec.directions, outputs_of(problem, layer)
    elements = p.steps * p.samples * size
    to = plan.part(directions * elements * p.x.itemsize)
    h0 = Place("h0", layer * directions * p.h0.strides[0] * p.x.itemsize) if p.h0 is not None else lines.place

    def launches():
        arguments = (lines.pointer(p.dtype), pointer(h0, p.dtype), Argument("int32*", "lengths" if p.lengths else lines.place.name),
                     pointer(to, p.dtype), Argument("int32", elements), Argument("uint32x3", divisor(size)),
                     Argument("uint32x3", divisor(p.samples)), Argument("int32", p.steps), line_strides(lines.strides),
                     Argument(StateStrides, StateStrides(*(p.h0.strides if p.h0 is not None else (0, 0, 0)))))
        grid = blocks(elements)[0], directions, 1
        return (Launch(before_kernel(p.dtype, p.lengths is not None, p.h0 is not None), grid, (THREADS, 1, 1), arguments),)
    plan.add(small_seconds(directions * elements, 2 * directions * elements * p.x.itemsize, plan.device), launches)
    return to


# ---- biases

@functools.cache
def bias_kernel(kind, columns):
    """Sums over rows of the gates' gradients, or of parts of these sums: a block has so many columns of a direction, its threads rows."""
    e, T, GRU = element(kind.dtype), TYPES[kind.compute], kind.cell == "gru"
    load, store, GROUPS, LOG, SPAN = e.load, e.store, SUMMING // columns, columns.bit_length() - 1, SUMMING // columns * IN_FLIGHT
    FIRST, SECOND, SLOTS_OF, ROUNDS = "b_ih" in kind.given, "b_hh" in kind.given, SLOTS[kind.cell], (SUMMING // columns).bit_length() - 1

    @jit(launch_bounds=(SUMMING, 1))
    def rnn_bias_gradients(source, dweights, rows, units, apart, offsets):
        sums, values = cuda.shared.array(SUMMING, T), cuda.local.array(IN_FLIGHT, T)
        thread, begin = cuda.threadIdx.x, offsets.backwards if cuda.blockIdx.y else offsets.forwards
        group, column = thread >> LOG, (cuda.blockIdx.x << LOG) + (thread & (columns - 1))
        width, total = i64(SLOTS_OF) * units[0], T(0)
        inside, at = column < width, cuda.blockIdx.y * apart + column
        for first in range(group, rows, SPAN):
            for u in range(IN_FLIGHT):
                row = first + u * GROUPS
                values[u] = load(source, at + row * width) if row < rows and inside else T(0)
            for u in range(IN_FLIGHT):
                total += values[u]
        sums[thread] = total
        cuda.syncthreads()
        for r in range(ROUNDS):
            half = SUMMING >> (r + 1)
            if thread < half:
                sums[thread] += sums[thread + half]
            cuda.syncthreads()
        if group == 0 and inside:
            slot, unit = divide_remainder(column, units)
            if FIRST and not (GRU and slot == NEW_RECURRENT):
                store(dweights, begin.b_ih + column, sums[thread])
            if SECOND and not (GRU and slot == NEW):
                gate = NEW if GRU and slot == NEW_RECURRENT else slot
                store(dweights, begin.b_hh + gate * i64(units[0]) + unit, sums[thread])
    return rnn_bias_gradients


def bias_seconds(nbytes, grid, itemsize, device):
    """Predicted time of the sums: of all gates' gradients, at the rate of what blocks have in flight."""
    flying = min(1.0, grid / device.sms) * SUMMING * IN_FLIGHT * itemsize
    return LAUNCH + overlap(memory=memory_seconds(nbytes, device) / flight_rate(flying, COST.enough))


def biases(plan, problem, layer, source, rows, apart):
    """Add a step that writes the gradients of a layer's biases, from rows at `source`, those of the other direction `apart` elements on."""
    p, spec = problem, problem.spec
    width, device = spec.slots * spec.hidden_size, plan.device
    columns = 32 if ceil_div(width, 32) * spec.directions >= device.sms else 16
    grid = ceil_div(width, columns), spec.directions, 1

    def launches():
        arguments = (pointer(source, p.dtype), pointer(Place("dweights"), p.dtype), Argument("int32", rows),
                     Argument("uint32x3", divisor(spec.hidden_size)), Argument("int64", apart), offsets(p, layer, ("b_ih", "b_hh"), ()))
        return (Launch(bias_kernel(kind_of(p, layer), columns), grid, (SUMMING, 1, 1), arguments),)
    plan.add(bias_seconds(rows * width * spec.directions * p.x.itemsize, grid[0] * grid[1], p.x.itemsize, device), launches)


# ---- gates along the steps

@functools.cache
def transpose_kernel():
    """The gates' gradients transposed, rounded to TF32, by tiles of 64 x 64; a block has some rows of 64 columns, whose sums it leaves."""
    SIZE, ROWS, PITCH, EACH = SIDE * (SIDE + 1), THREADS // SIDE, SIDE + 1, SIDE * SIDE // THREADS
    STORES, QUARTER, LOG = SIDE * SIDE // THREADS // 4, SIDE // 4, SIDE.bit_length() - 1

    @jit(launch_bounds=(THREADS, RESIDENT))
    def rnn_gates_transposed(gates, out, sums, rows, width, share, apart):
        tile, values, words = cuda.shared.array(SIZE, f32), cuda.local.array(EACH, f32), cuda.local.array(4, f32)
        thread, part, which = cuda.threadIdx.x, cuda.blockIdx.y, cuda.blockIdx.z
        column, group = thread & (SIDE - 1), thread >> LOG
        first, total = cuda.blockIdx.x * SIDE, f32(0)
        source, target = advance(gates, which * apart), advance(out, which * i64(width) * rows)
        for begin in range(part * share, min((part + 1) * share, rows), SIDE):
            for j in range(EACH):
                row = begin + j * ROWS + group
                values[j] = source[row * width + first + column] if row < rows and first + column < width else f32(0)
            cuda.syncthreads()  # the tile before has been read
            for j in range(EACH):
                total += values[j]
                tile[column * PITCH + j * ROWS + group] = values[j]
            cuda.syncthreads()
            for j in range(STORES):
                line, four = (thread + j * THREADS) // QUARTER, (thread + j * THREADS) % QUARTER * 4
                if first + line < width and begin + four < rows:
                    for w in range(4):
                        words[w] = bits_float(round_tf32(float_bits(tile[line * PITCH + four + w])))
                    store4_from(target, (first + line) * rows + begin + four, words, 0)
        cuda.syncthreads()
        tile[thread] = total
        cuda.syncthreads()
        if group == 0 and first + column < width:
            for g in range(1, ROWS):
                total += tile[g * SIDE + column]
            sums[(which * i64(cuda.gridDim.y) + part) * width + first + column] = total
    return rnn_gates_transposed


def gates_transposed(plan, problem, layer, to):
    """Add a step that writes them, (directions, slots, T N); the place of their sums, and of how many rows they are."""
    p, spec = problem, problem.spec
    rows, width, size = p.steps * p.samples, spec.slots * spec.hidden_size, p.x.itemsize
    strips, device = ceil_div(width, SIDE), plan.device
    parts = max(1, min(ceil_div(rows, SIDE), RESIDENT * device.sms // (strips * spec.directions)))
    share = ceil_div(ceil_div(rows, SIDE), parts) * SIDE
    parts = ceil_div(rows, share)
    sums, (at, other) = plan.part(spec.directions * parts * width * size), (p.region("gates", layer, d) for d in (0, spec.directions - 1))

    def launches():
        arguments = (pointer(Place("reserve", at), p.dtype), pointer(to, p.dtype), pointer(sums, p.dtype), Argument("int32", rows),
                     Argument("int32", width), Argument("int32", share), Argument("int64", (other - at) // size))
        return (Launch(transpose_kernel(), (strips, parts, spec.directions), (THREADS, 1, 1), arguments),)
    matrices = Tensor.packed((spec.directions, rows, width), p.dtype), Tensor.packed((spec.directions, width, rows), p.dtype)
    plan.add(transpose_seconds(*matrices, (0, 2, 1), device), launches)
    return sums, parts


# ---- the plan

@dataclass(frozen=True)
class Config:
    """Whether the gates' gradients are transposed, once for all products, and whether the states before each step are copied."""
    transposed: bool
    copied: bool

    def __str__(self):
        return ("gates transposed once, " if self.transposed else "") + ("states copied" if self.copied else "states a step apart")


def configs_of(problem, device):
    """Transposed gates are for TF32 alone, and rows that tensor cores can read; results a step apart for sequences of the same length, in
    memory a matrix."""
    p = problem
    y = Rows(p, Lines(Place("y"), p.strides_of(p.y)), p.spec.state_size)
    apart = p.lengths is None and p.steps > 1 and y.is_matrix and y.order == (p.samples, 1)
    transposed = p.math == "tf32" and p.steps * p.samples * p.x.itemsize % 16 == 0
    return tuple(Config(t, c) for t in (False, True)[:1 + transposed] for c in (True, False)[:1 + apart])


class _Matrices:
    """Operands of products over all steps and sequences, of one direction or of both."""

    def __init__(self, problem):
        self.problem, self.directions = problem, problem.spec.directions
        self.rows, self.size = problem.steps * problem.samples, problem.x.itemsize

    def tensor(self, shape, strides, apart, alignment):
        """A matrix, or one for each direction, `apart` elements from each other."""
        if self.directions == 1:
            return Tensor(shape, strides, self.problem.dtype, alignment)
        return Tensor((2, *shape), (apart, *strides), self.problem.dtype, alignment_at(alignment, apart * self.size))

    def kept(self, name, layer, first, columns, width):
        """(Tensor, Place) of some columns of what the reserve keeps."""
        p = self.problem
        offset, other = (p.region(name, layer, d) + first * self.size for d in (0, self.directions - 1))
        alignment = alignment_at(p.reserve.alignment, offset, width * self.size)
        return self.tensor((self.rows, columns), (width, 1), (other - offset) // self.size, alignment), Place("reserve", offset)

    def some_rows(self, operand, transposed, first, first_back, count):
        """(Tensor, Place) of `count` rows of one, or of columns: from `first` on, of the direction backward from `first_back` on."""
        t, at = operand
        (rows, columns), (*apart, step, width) = t.shape[-2:], t.strides
        shape, along = ((rows, count), width) if transposed else ((count, columns), step)
        offset = at.offset + first * along * self.size
        apart = apart[0] + (first_back - first) * along if apart else 0
        return self.tensor(shape, (step, width), apart, alignment_at(t.alignment, offset)), Place(at.name, offset)

    def result(self, name, layer, first, rows):
        """(Tensor, Place) of rows of a matrix' gradient."""
        p, (m, other) = self.problem, (self.problem.spec.matrix(name, layer, d) for d in (0, self.directions - 1))
        columns = m.shape[1]
        offset = (m.first + first * columns) * self.size
        return (self.tensor((rows, columns), (columns, 1), other.first - m.first, alignment_at(p.dweights.alignment, offset)),
                Place("dweights", offset))


def weights_plan(problem, device, config):
    """The plan of the gradient by the weights."""
    transposed = config.transposed
    p, spec, plan, of = problem, problem.spec, Plan(device, problem.math), _Matrices(problem)
    count, units, slots = of.rows, spec.hidden_size, spec.slots * spec.hidden_size
    columns = plan.part(spec.directions * slots * count * of.size) if transposed else None
    sums = None if config.copied or p.h0 is None else \
        plan.part(spec.directions * spec.gates * units * spec.state_size * ITEMSIZE[p.compute])
    split = [(0, 2, 0), (2, 1, NEW_RECURRENT)] if spec.cell == "gru" else [(0, spec.gates, 0)]  # gates, how many, their slot

    def gates(layer, slot, some):
        """The left operand: gates' gradients of some slots."""
        if not transposed:
            return of.kept("gates", layer, slot * units, some * units, slots)
        return (of.tensor((some * units, count), (count, 1), slots * count, 16),
                Place(columns.name, columns.offset + slot * units * count * of.size))

    def product(name, layer, gate, some, left, right):
        """Some gates' rows of a matrix' gradient."""
        y, at = of.result(name, layer, gate * units, some * units)
        plan.product({"a": left[1], "b": right[1], "y": at}, a=left[0], b=right[0], transpose_a=not transposed, y=y)

    def of_states(layer, gate, some, left):
        """The same of w_hh, of results a step apart: forward the first step's gates have the first states before them, backward the last
        step's."""
        lines, size, n, later = outputs_of(p, layer), spec.state_size, p.samples, count - p.samples
        (y, at), rows, more, operands = of.result("w_hh", layer, gate * units, some * units), Rows(p, lines, size), {}, {}
        if p.h0 is not None:
            h0 = Place("h0", layer * spec.directions * p.h0.strides[0] * of.size)
            b = of.tensor((n, size), p.h0.strides[1:], p.h0.strides[0], alignment_at(p.h0.alignment, h0.offset))
            first = Tensor.packed(y.shape, p.compute)
            a, a_at = of.some_rows(left, transposed, 0, later, n)
            cost, step = plan.chosen({"a": a_at, "b": h0, "y": sums}, a=a, b=b, transpose_a=not transposed, y=first)
            plan.add(cost + Cost(waits=COST.added), step)
            more, operands = {"c": sums}, {"c": first}
        a, a_at = of.some_rows(left, transposed, n, 0, later)
        whole = of.tensor((count, size), (rows.strides[0], rows.channel), size * rows.channel,
                          alignment_at(alignment_of(p, rows.place), rows.strides[0] * of.size))
        b, b_at = of.some_rows((whole, rows.place), False, 0, n, later)
        plan.product({"a": a_at, "b": b_at, "y": at, **more}, a=a, b=b, transpose_a=not transposed, y=y, **operands)

    for layer in range(spec.num_layers):
        if transposed:
            parts = gates_transposed(plan, p, layer, columns)
        if spec.matrix("w_ih", layer, 0):
            size, source = spec.layer_input(layer), outputs_of(p, layer - 1) if layer else Lines(Place("x"), p.strides_of(p.x))
            lines = clean_inputs(plan, p, source, size, p.region("kept", layer - 1) if layer else None, drawn(spec.dropout)[1])
            rows = Rows(p, lines, size)
            right = of.tensor((count, size), (rows.strides[0], rows.channel), 0,
                              alignment_at(alignment_of(p, rows.place), rows.strides[0] * of.size))
            product("w_ih", layer, 0, spec.gates, gates(layer, 0, spec.gates), (right, rows.place))
        if config.copied:
            before, size = states_before(plan, p, layer), spec.state_size
            right = of.tensor((count, size), (size, 1), count * size, 16), before
            for gate, some, slot in split:
                product("w_hh", layer, gate, some, gates(layer, slot, some), right)
        else:
            for gate, some, slot in split:
                of_states(layer, gate, some, gates(layer, slot, some))
        if spec.bias != "none":
            lies, at = of.kept("gates", layer, 0, slots, slots)
            source, many, apart = (*parts, parts[1] * slots) if transposed else (at, count, lies.strides[0] if spec.bidirectional else 0)
            biases(plan, p, layer, source, many, apart)
        if spec.proj_size:
            (left, left_at), (right, right_at) = (of.kept(name, layer, 0, width, width)
                                                  for name, width in (("projected", spec.proj_size), ("hidden", units)))
            y, at = of.result("w_hr", layer, 0, spec.proj_size)
            plan.product({"a": left_at, "b": right_at, "y": at}, a=left, b=right, transpose_a=True, y=y)
    return plan
