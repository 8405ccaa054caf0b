"""Backward by steps: for each a kernel for the cells and a product of their gradients; those of inputs and weights over all steps."""
import functools

from ...device import cuda, i32, i64, jit
from ...device.convert import element
from ...device.index import divide_remainder, divisor
from ...engine.dropout_bits import drawn
from ...engine.embed import Place
from ...engine.plan import Plan, alignment_at
from ...host.launch import Argument, Launch
from ...host.tensor import Tensor
from .._cells import NEW, NEW_RECURRENT, TYPES, make_cell
from .._network import Lines, numbers, numbers_bytes, outputs_of, packed_lines, pointer
from .._parameters import line_strides, offsets, optional, state_strides
from .._spec import GATES, SLOTS
from ..naive.forward import kind_of
from .plan import (THREADS, Rows, alignment_of, blocks, cells_seconds, clean_inputs, fill, matrix_tensor, move_states, small_seconds,
                   states_before)


@functools.cache
def state_gradient_kernel(kind, inner):
    """With a projection: the gradient of its result at a step; 0, and what goes on as it is, of sequences that do not have the step."""
    e, T, load_dy = element(kind.dtype), TYPES[kind.compute], element(kind.compute if inner else kind.dtype).load
    store, LENGTHS = e.store, "lengths" in kind.present

    @jit(launch_bounds=THREADS)
    def rnn_projected_back(dy, rests, products, out, lengths, reserve, elements, units, samples, steps, k, first, dy_strides, offsets):
        i = i32(i32(cuda.blockIdx.x) * i32(THREADS) + i32(cuda.threadIdx.x))
        if i < elements:
            row, j = divide_remainder(i, units)
            which, n = divide_remainder(row, samples)
            length = i32(steps)
            if LENGTHS:
                length = min(max(i32(lengths[n]), i32(0)), length)
            total, d = rests[i], T(0)
            if not first:
                total += products[i]
            if k < length:
                t = i32(length - 1 - k) if which else i32(k)
                channel = which * i64(units[0]) + j
                d = total + load_dy(dy, t * dy_strides.t + n * dy_strides.n + channel * dy_strides.channel)
                total = T(0)
                at = offsets.backwards.projected if which else offsets.forwards.projected
                store(reserve, at + (t * i64(samples[0]) + n) * units[0] + j, d)
            rests[i] = total
            store(out, i64(i), d)
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


@functools.cache
def input_gradient_kernel(kind, dtype):
    """Of the first layer with "skip": the sum of all gates' gradients."""
    e, T, store = element(kind.dtype), TYPES[kind.compute], element(dtype).store
    load, GATES_OF, SLOTS_OF = e.load, GATES[kind.cell], SLOTS[kind.cell]

    @jit(launch_bounds=THREADS)
    def rnn_skipped_back(reserve, dx, elements, units, samples, directions, dx_strides, offsets):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < elements:
            line, j = divide_remainder(i, units)
            t, n = divide_remainder(line, samples)
            total = T(0)
            for which in range(directions):
                at = (offsets.backwards.gates if which else offsets.forwards.gates) + i64(line) * SLOTS_OF * units[0] + j
                for g in range(GATES_OF):
                    total += load(reserve, at + g * i64(units[0]))
            store(dx, t * dx_strides.t + n * dx_strides.n + j * dx_strides.channel, total)
    return rnn_skipped_back


@functools.cache
def kept_kernel(dtype, compute):
    """dx *= factor where an element was kept, else 0."""
    load, T = element(dtype).load, TYPES[compute]

    @jit(launch_bounds=THREADS)
    def rnn_dropped_back(dx, kept, elements, factor):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < elements:
            dx[i] = dx[i] * factor if load(kept, i64(i)) > T(0) else T(0)
    return rnn_dropped_back


def data_plan(problem, device, config):
    """The plan of the gradients by inputs and first states."""
    p, spec, plan = problem, problem.spec, Plan(device)
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


def _gates(p, layer, direction, first, count):
    """(Tensor (T * N, columns), Place) of gates' gradients in the reserve, some slots of them."""
    spec, size = p.spec, p.x.itemsize
    offset = p.region("gates", layer, direction) + first * spec.hidden_size * size
    width = spec.slots * spec.hidden_size
    return (Tensor((p.steps * p.samples, count * spec.hidden_size), (width, 1), p.dtype,
                   alignment_at(p.reserve.alignment, offset, width * size)), Place("reserve", offset))


def half_part(plan, p):
    """Where the gradient of an input by one direction waits for the other's; None with one direction."""
    spec = p.spec
    if not spec.bidirectional:
        return None
    most = max((spec.layer_input(n) for n in range(spec.num_layers) if spec.matrix("w_ih", n, 0)), default=0)
    return plan.part(numbers_bytes(p, p.steps * p.samples * most))


def input_gradients(plan, p, layer, to, half):
    """The gradient of a layer's input: products of both directions' gates, added up; 0 where elements were dropped."""
    spec, inputs = p.spec, p.spec.layer_input(layer)
    elements, dtype = p.steps * p.samples * inputs, p.dtype if layer == 0 else p.compute
    if not spec.matrix("w_ih", layer, 0):
        def skipped():
            arguments = (pointer(Place("reserve"), p.dtype), to.pointer(dtype), Argument("int32", elements),
                         Argument("uint32x3", divisor(inputs)), Argument("uint32x3", divisor(p.samples)),
                         Argument("int32", spec.directions), line_strides(to.strides), offsets(p, layer, (), ("gates",)))
            return (Launch(input_gradient_kernel(kind_of(p, layer), dtype), blocks(elements), (THREADS, 1, 1), arguments),)
        plan.add(small_seconds(elements, 20 * elements, plan.device), skipped)
        return
    rows = Rows(p, to, inputs)
    by_steps = rows.is_matrix and rows.order == (p.samples, 1)
    shape, strides = ((p.steps * p.samples, inputs), (rows.strides[0], rows.channel)) if by_steps else \
        ((p.steps, p.samples, inputs), to.strides)
    alignment = alignment_at(p.dx.alignment, *(abs(s) * p.x.itemsize for s in strides[:-1])) if layer == 0 else 16
    target = Tensor(shape, strides, dtype, alignment)
    matrices = matrix_tensor(p, "w_ih", layer, False)
    for d, (w, place) in enumerate(matrices):
        gates, at = _gates(p, layer, d, 0, spec.gates)
        if not by_steps:
            gates = Tensor((p.steps, p.samples, gates.shape[1]), (p.samples * gates.strides[0], *gates.strides), p.dtype, gates.alignment)
        more, operands = {}, {}
        is_last = d + 1 == len(matrices)
        if d:
            more, operands = {"c": half}, {"c": Tensor.packed(shape, p.compute)}
        y, y_at = (target, to.place) if is_last else (Tensor.packed(shape, p.compute), half)
        plan.product({"a": at, "b": place, "y": y_at, **more}, a=gates, b=w, y=y, **operands)
    kept = p.region("kept", layer - 1) if layer else None
    if kept is not None:
        def dropped():
            arguments = (numbers(to.place, p), pointer(Place("reserve", kept), p.dtype), Argument("int32", elements),
                         Argument(p.compute, drawn(spec.dropout)[1]))
            return (Launch(kept_kernel(p.dtype, p.compute), blocks(elements), (THREADS, 1, 1), arguments),)
        plan.add(small_seconds(elements, 12 * elements, plan.device), dropped)


def weights_plan(problem, device, config):
    """The plan of the gradient by the weights: a product for each matrix, whose sums run over all steps and sequences."""
    p, spec, plan = problem, problem.spec, Plan(device)
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
                    left = _gates(p, layer, d, slot, gates)
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
