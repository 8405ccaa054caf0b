"""Backward by steps: for each a kernel for the cells and a product of their gradients; those of inputs and weights over all steps."""
import functools

from ...device import cuda, i64, jit
from ...device.convert import element
from ...device.index import divide_remainder, divisor
from ...engine.dropout_bits import drawn
from ...engine.embed import Place
from ...engine.plan import Plan, alignment_at
from ...host.launch import Argument, Launch
from ...host.tensor import Tensor
from .._cells import NEW, NEW_RECURRENT, TYPES, make_cell
from .._network import Lines, numbers, numbers_bytes, outputs_of, packed_lines, pointer
from .._parameters import StateStrides, kind_of, line_strides, offsets, optional, state_strides
from .._plan import (THREADS, Rows, alignment_of, blocks, cells_seconds, fill, gates_tensor, half_part, input_gradients, matrix_tensor,
                     move_states, small_seconds)
from .._spec import GATES, SLOTS


@functools.cache
def state_gradient_kernel(kind, inner):
    """With a projection: the gradient of its result at a step; 0, and what goes on as it is, of sequences that do not have the step."""
    e, T, load_dy = element(kind.dtype), TYPES[kind.compute], element(kind.compute if inner else kind.dtype).load
    store, LENGTHS = e.store, "lengths" in kind.present

    @jit(launch_bounds=THREADS)
    def rnn_projected_back(dy, rests, products, out, lengths, reserve, elements, units, samples, steps, k, first, dy_strides, offsets):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < elements:
            row, j = divide_remainder(i, units)
            which, n = divide_remainder(row, samples)
            length = steps
            if LENGTHS:
                length = min(max(lengths[n], 0), length)
            total, d = rests[i], T(0)
            if not first:
                total += products[i]
            if k < length:
                t = length - 1 - k if which else k
                channel = which * i64(units[0]) + j
                d = total + load_dy(dy, t * dy_strides.t + n * dy_strides.n + channel * dy_strides.channel)
                total = T(0)
                at = offsets.backwards.projected if which else offsets.forwards.projected
                store(reserve, at + (t * i64(samples[0]) + n) * units[0] + j, d)
            rests[i] = total
            store(out, i, d)
    return rnn_projected_back


@functools.cache
def cell_kernel(kind, inner):
    """The cells of one step, back: gradients before the gates' functions, in the reserve and packed for the product with R."""
    e, T, cell = element(kind.dtype), TYPES[kind.compute], make_cell(kind.cell, kind.compute, kind.clip)
    load, store, backward, load_dy = e.load, e.store, cell.backward, element(kind.compute if inner else kind.dtype).load
    LSTM, GRU, PROJECTED = kind.cell == "lstm", kind.cell == "gru", kind.projected
    GATES_OF, SLOTS_OF = GATES[kind.cell], SLOTS[kind.cell]
    H0, C0, LENGTHS = (name in kind.present for name in ("h0", "c0", "lengths"))

    @jit(launch_bounds=(THREADS, 4))
    def rnn_cells_back(dy, rests, products, cells, turned, y, h0, c0, lengths, reserve, elements, units, samples, unit_count, steps, k,
                       layer, first, dy_strides, y_strides, s, offsets):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < elements:
            row, j = divide_remainder(i, units)
            which, n = divide_remainder(row, samples)
            length = steps
            if LENGTHS:
                length = min(max(lengths[n], 0), length)
            H, has = i64(unit_count), k < length
            total = T(0)
            if PROJECTED:
                total = products[i]
            else:
                total = rests[i]
                if not first:
                    total += products[i]
            to = i64(row) * GATES_OF * H + j
            if has:
                kept = cuda.local.array(SLOTS_OF, T)
                t = length - 1 - k if which else k
                before = t + 1 if which else t - 1
                begin = offsets.backwards if which else offsets.forwards
                line, channel = t * i64(samples[0]) + n, which * H + j
                line_before = before * i64(samples[0]) + n
                if not PROJECTED:
                    total += load_dy(dy, t * dy_strides.t + n * dy_strides.n + channel * dy_strides.channel)
                gates_at = begin.gates + line * SLOTS_OF * H + j
                for g in range(SLOTS_OF):
                    kept[g] = load(reserve, gates_at + g * H)
                d_state, state, old = T(0), T(0), T(0)
                of = layer + i64(which)
                if LSTM:
                    d_state, state = cells[i], load(reserve, begin.cells + line * H + j)
                    if k > 0:
                        old = load(reserve, begin.cells + line_before * H + j)
                    elif C0:
                        old = load(c0, of * s.c0.layer + n * s.c0.n + j * s.c0.unit)
                if GRU:
                    if k > 0:
                        old = load(y, before * y_strides.t + n * y_strides.n + channel * y_strides.channel)
                    elif H0:
                        old = load(h0, of * s.h0.layer + n * s.h0.n + j * s.h0.unit)
                rest = backward(kept, state, old, total, d_state)
                for g in range(SLOTS_OF):
                    store(reserve, gates_at + g * H, kept[g])
                for g in range(GATES_OF):
                    store(turned, to + g * H, kept[NEW_RECURRENT] if GRU and g == NEW else kept[g])
                if LSTM:
                    cells[i] = rest
                if not PROJECTED:
                    rests[i] = rest if GRU else T(0)
            else:
                for g in range(GATES_OF):
                    store(turned, to + g * H, T(0))
                if not PROJECTED:
                    rests[i] = total
    return rnn_cells_back


@functools.cache
def last_kernel(compute):
    """rests += products: what is left for the first states."""

    @jit(launch_bounds=THREADS)
    def rnn_rests(rests, products, elements):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < elements:
            rests[i] += products[i]
    return rnn_rests


def data_plan(problem, device, config):
    """The plan of the gradients by inputs and first states."""
    p, spec, plan = problem, problem.spec, Plan(device, problem.spec.math)
    size, many = p.x.itemsize, spec.directions * p.samples
    rests, products = (plan.part(numbers_bytes(p, many * spec.state_size)) for _ in range(2))
    turned = plan.part(many * spec.gates * spec.hidden_size * size)
    cells = plan.part(numbers_bytes(p, many * spec.hidden_size)) if spec.cell == "lstm" else rests
    inner = [plan.part(numbers_bytes(p, p.steps * p.samples * spec.output_size)) for _ in range(min(2, spec.num_layers - 1))]
    projected = (plan.part(many * spec.proj_size * size), plan.part(numbers_bytes(p, many * spec.hidden_size))) if spec.proj_size else None
    half = half_part(plan, p)
    given = Lines(Place("dy"), p.strides_of(p.dy))

    def last_launch():
        return (Launch(last_kernel(p.compute), blocks(many * spec.state_size), (THREADS, 1, 1),
                       (numbers(rests, p), numbers(products, p), Argument("int32", many * spec.state_size))),)
    for layer in reversed(range(spec.num_layers)):
        move_states(plan, p, layer, spec.state_size, ("dhn", p.dhn), (rests, p.compute))
        if spec.cell == "lstm":
            move_states(plan, p, layer, spec.hidden_size, ("dcn", p.dcn), (cells, p.compute))
        _steps(plan, p, layer, given, rests, products, cells, turned, projected)
        plan.add(small_seconds(many * spec.state_size, 12 * many * spec.state_size, device), last_launch)
        move_states(plan, p, layer, spec.state_size, (rests, p.compute), ("dh0", p.dh0))
        if spec.cell == "lstm":
            move_states(plan, p, layer, spec.hidden_size, (cells, p.compute), ("dc0", p.dc0))
        to = Lines(Place("dx"), p.strides_of(p.dx)) if layer == 0 else packed_lines(p, inner[layer % len(inner)], spec.layer_input(layer))
        input_gradients(plan, p, layer, to, half)
        given = to
    return plan


def _steps(plan, p, layer, given, rests, products, cells, turned, projected):
    """The steps of a layer, the last one first."""
    spec, dtype, kind, inner = p.spec, p.dtype, kind_of(p, layer), layer + 1 < p.spec.num_layers
    directions, units, y = spec.directions, spec.directions * p.samples * spec.hidden_size, outputs_of(p, layer)
    w, at = matrix_tensor(p, "w_hh", layer, True)
    lengths = Argument("int32*", "lengths" if p.lengths else "weights")
    dy = given.pointer(p.compute if inner else dtype)
    common = Argument("uint32x3", divisor(spec.hidden_size)), Argument("uint32x3", divisor(p.samples))
    back = plan.chosen({"a": turned, "b": at, "y": products}, b=w,
                       a=Tensor.packed((directions, p.samples, spec.gates * spec.hidden_size), dtype),
                       y=Tensor.packed((directions, p.samples, spec.state_size), p.compute))
    if spec.proj_size:
        small, dm = projected
        w_hr, w_hr_at = matrix_tensor(p, "w_hr", layer, True)
        elements = directions * p.samples * spec.proj_size
        projection = plan.chosen({"a": small, "b": w_hr_at, "y": dm}, a=Tensor.packed((directions, p.samples, spec.proj_size), dtype),
                                 b=w_hr, y=Tensor.packed((directions, p.samples, spec.hidden_size), p.compute))

    def is_first(k):
        return Argument("int32", int(k == p.steps - 1))

    def projected_launch(k):
        arguments = (dy, numbers(rests, p), numbers(products, p), pointer(small, dtype), lengths, pointer(Place("reserve"), dtype),
                     Argument("int32", elements), Argument("uint32x3", divisor(spec.proj_size)), common[1], Argument("int32", p.steps),
                     Argument("int32", k), is_first(k), line_strides(given.strides), offsets(p, layer, (), ("projected",)))
        return (Launch(state_gradient_kernel(kind, inner), blocks(elements), (THREADS, 1, 1), arguments),)

    def cells_launch(k):
        arguments = (dy, numbers(rests, p), numbers(dm if spec.proj_size else products, p), numbers(cells, p), pointer(turned, dtype),
                     y.pointer(dtype), optional(p, "h0", dtype, "weights"), optional(p, "c0", dtype, "weights"), lengths,
                     pointer(Place("reserve"), dtype), Argument("int32", units), *common, Argument("int32", spec.hidden_size),
                     Argument("int32", p.steps), Argument("int32", k), Argument("int32", layer * directions), is_first(k),
                     line_strides(given.strides), line_strides(y.strides), state_strides(p, "h0", "c0"),
                     offsets(p, layer, (), ("gates", "cells")))
        return (Launch(cell_kernel(kind, inner), blocks(units), (THREADS, 1, 1), arguments),)

    def step(plan, k):
        if spec.proj_size:
            plan.add(small_seconds(elements, 16 * elements, plan.device), lambda: projected_launch(k))
            plan.add(*projection)
        plan.add(cells_seconds(p, plan.device), lambda: cells_launch(k))
        plan.add(*back)
    plan.repeat(range(p.steps)[::-1], step)


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
    """The state before each step, packed, of one direction; 0 after the end of a sequence."""
    load, store, T = element(dtype).load, element(dtype).store, TYPES[element(dtype).compute]

    @jit(launch_bounds=THREADS)
    def rnn_states_before(y, h0, lengths, out, elements, size, samples, steps, backwards, strides, h0_strides):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < elements:
            row, c = divide_remainder(i, size)
            t, n = divide_remainder(row, samples)
            length = steps
            if lengths_given:
                length = min(lengths[n], length)
            value, before = T(0), t + 1 if backwards else t - 1
            if t < length:
                if before >= 0 and before < length:
                    value = load(y, before * strides.t + n * strides.n + c * strides.channel)
                elif h0_given:
                    value = load(h0, n * h0_strides.n + c * h0_strides.unit)
            store(out, i, value)
    return rnn_states_before


def states_before(plan, problem, lines, layer, direction):
    """Add a step that writes them; the place of (T, N, state)."""
    p, size = problem, problem.spec.state_size
    elements = p.steps * p.samples * size
    to = plan.part(elements * p.x.itemsize)
    which = layer * p.spec.directions + direction
    h0 = Place("h0", which * p.h0.strides[0] * p.x.itemsize) if p.h0 is not None else lines.place

    def launches():
        arguments = (lines.pointer(p.dtype), pointer(h0, p.dtype), Argument("int32*", "lengths" if p.lengths else lines.place.name),
                     pointer(to, p.dtype), Argument("int32", elements), Argument("uint32x3", divisor(size)),
                     Argument("uint32x3", divisor(p.samples)), Argument("int32", p.steps), Argument("int32", direction),
                     line_strides(lines.strides),
                     Argument(StateStrides, StateStrides(*(p.h0.strides if p.h0 is not None else (0, 0, 0)))))
        return (Launch(before_kernel(p.dtype, p.lengths is not None, p.h0 is not None), blocks(elements), (THREADS, 1, 1), arguments),)
    plan.add(small_seconds(elements, 2 * elements * p.x.itemsize, plan.device), launches)
    return to


# ---- the gradient of the weights

def weights_plan(problem, device, config):
    """The plan of the gradient by the weights: a product for each matrix, whose sums run over all steps and sequences."""
    p, spec, plan = problem, problem.spec, Plan(device, problem.spec.math)
    size, count, ones = p.x.itemsize, p.steps * p.samples, None
    if spec.bias != "none":
        ones = plan.part(count * size)
        fill(plan, ones, Tensor.packed((count,), p.dtype), 1.0)

    def product(m, first, rows, left, right, columns):
        """Rows of a matrix' gradient: the transpose of `left` times `right`, (Tensor, Place) each."""
        offset = (m.first + first * columns) * size
        y = Tensor((rows, columns), (columns, 1), p.dtype, alignment_at(p.dweights.alignment, offset))
        plan.product({"a": left[1], "b": right[1], "y": Place("dweights", offset)}, a=left[0], b=right[0], transpose_a=True, y=y)
    for layer in range(spec.num_layers):
        source = outputs_of(p, layer - 1) if layer else Lines(Place("x"), p.strides_of(p.x))
        lines = clean_inputs(plan, p, source, spec.layer_input(layer), p.region("kept", layer - 1) if layer else None,
                             drawn(spec.dropout)[1])
        y = outputs_of(p, layer)
        for d in range(spec.directions):
            states = Lines(Place(y.place.name, y.place.offset + d * spec.state_size * y.strides[2] * size), y.strides)
            before = states_before(plan, p, states, layer, d), spec.state_size
            split = [(0, 2, 0), (2, 1, 3)] if spec.cell == "gru" else [(0, spec.gates, 0)]  # gates, how many, their slot
            for name, parts in (("w_ih", [(0, spec.gates, 0)]), ("w_hh", split), ("b_ih", [(0, spec.gates, 0)]), ("b_hh", split)):
                m = spec.matrix(name, layer, d)
                for gate, gates, slot in parts if m else ():
                    left = gates_tensor(p, layer, d, slot, gates)
                    first, rows = gate * spec.hidden_size, gates * spec.hidden_size
                    if name == "w_ih":
                        of = Rows(p, lines, spec.layer_input(layer))
                        alignment = alignment_at(alignment_of(p, of.place), of.strides[0] * size)
                        product(m, first, rows, left, (of.tensor(p.dtype, alignment), of.place), spec.layer_input(layer))
                    elif name == "w_hh":
                        product(m, first, rows, left, (Tensor.packed((count, before[1]), p.dtype), before[0]), spec.state_size)
                    else:
                        offset = (m.first + first) * size
                        plan.product({"a": ones, "b": left[1], "y": Place("dweights", offset)}, a=Tensor.packed((1, count), p.dtype),
                                     b=left[0], y=Tensor((1, rows), (rows, 1), p.dtype, alignment_at(p.dweights.alignment, offset)))
            m = spec.matrix("w_hr", layer, d)
            if m:
                factors = []
                for name, width in (("projected", spec.proj_size), ("hidden", spec.hidden_size)):
                    offset = p.region(name, layer, d)
                    factors.append((Tensor((count, width), (width, 1), p.dtype, alignment_at(p.reserve.alignment, offset)),
                                    Place("reserve", offset)))
                product(m, 0, spec.proj_size, *factors, spec.hidden_size)
    return plan
