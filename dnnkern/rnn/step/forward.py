"""Forward by steps: the input's products for all steps at once, then for each step a product of the states and a kernel for the cells."""
import functools

from ...device import cuda, i64, jit
from ...device.convert import element
from ...device.index import divide_remainder, divisor
from ...engine.embed import Place
from ...engine.plan import Plan, alignment_at
from ...host.launch import Argument, Launch
from ...host.tensor import Tensor
from .._cells import NEW, NEW_RECURRENT, TYPES, make_cell
from .._network import drop_launch, forward_layers, numbers, numbers_bytes, pointer
from .._parameters import SumStrides, kind_of, line_strides, offsets, optional
from .._plan import THREADS, Rows, alignment_of, blocks, cells_seconds, matrix_tensor, move_states, small_seconds
from .._spec import GATES, SLOTS


@functools.cache
def cell_kernel(kind):
    """The cells of one step: from sums to states, of all sequences that have the step; the others keep theirs."""
    e, T, cell = element(kind.dtype), TYPES[kind.compute], make_cell(kind.cell, kind.compute, kind.clip)
    load, store, forward = e.load, e.store, cell.forward
    LSTM, GRU, PROJECTED, SKIP = kind.cell == "lstm", kind.cell == "gru", kind.projected, kind.skip
    GATES_OF, SLOTS_OF = GATES[kind.cell], SLOTS[kind.cell]
    LINEAR, FIRST_BIAS, SECOND_BIAS = "w_ih" in kind.given, "b_ih" in kind.given, "b_hh" in kind.given
    LENGTHS, TRAINING = "lengths" in kind.present, "reserve" in kind.present

    @jit(launch_bounds=(THREADS, 4))
    def rnn_cells(sums, products, x, weights, states, cells, hidden, y, lengths, reserve, elements, units, samples, unit_count, steps, k,
                  sums_strides, x_strides, y_strides, offsets):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < elements:
            row, j = divide_remainder(i, units)
            which, n = divide_remainder(row, samples)
            length = steps
            if LENGTHS:
                length = min(max(lengths[n], 0), length)
            has = k < length
            t = length - 1 - k if which and has else k
            begin = offsets.backwards if which else offsets.forwards
            line, H = t * i64(samples[0]) + n, i64(unit_count)
            gates_at = begin.gates + line * SLOTS_OF * H + j
            to = t * y_strides.t + n * y_strides.n + which * i64(units[0]) * y_strides.channel + j * y_strides.channel
            if has:
                slots = cuda.local.array(SLOTS_OF, T)
                at = which * sums_strides.direction + t * sums_strides.t + n * sums_strides.n + j
                second = i64(row) * GATES_OF * H + j
                for g in range(GATES_OF):
                    first, half = T(0), products[second + g * H]
                    if LINEAR:
                        first = sums[at + g * H]
                    if SKIP:
                        first = load(x, t * x_strides.t + n * x_strides.n + j * x_strides.channel)
                    if FIRST_BIAS:
                        first = first + load(weights, begin.b_ih + g * H + j)
                    if SECOND_BIAS:
                        half += load(weights, begin.b_hh + g * H + j)
                    if GRU and g == NEW:
                        slots[NEW] = first
                        slots[NEW_RECURRENT] = half
                    else:
                        slots[g] = first + half
                state = cells[i] if LSTM else load(states, i)
                state, h = forward(slots, state)
                if LSTM:
                    cells[i] = state
                if TRAINING:
                    for g in range(SLOTS_OF):
                        store(reserve, gates_at + g * H, slots[g])
                    if LSTM:
                        store(reserve, begin.cells + line * H + j, state)
                    if PROJECTED:
                        store(reserve, begin.hidden + line * H + j, h)
                if PROJECTED:
                    store(hidden, i, h)
                else:
                    store(states, i, h)
                    store(y, to, h)
            else:
                if TRAINING:
                    for g in range(SLOTS_OF):
                        store(reserve, gates_at + g * H, T(0))
                    if LSTM:
                        store(reserve, begin.cells + line * H + j, T(0))
                    if PROJECTED:
                        store(reserve, begin.hidden + line * H + j, T(0))
                if PROJECTED:
                    store(hidden, i, T(0))
                else:
                    store(y, to, T(0))
    return rnn_cells


@functools.cache
def projected_kernel(kind):
    """What a projection gave, as states and results."""
    e, T = element(kind.dtype), TYPES[kind.compute]
    load, store, LENGTHS, TRAINING = e.load, e.store, "lengths" in kind.present, "reserve" in kind.present

    @jit(launch_bounds=THREADS)
    def rnn_projected(products, states, y, lengths, reserve, elements, units, samples, steps, k, y_strides, offsets):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < elements:
            row, j = divide_remainder(i, units)
            which, n = divide_remainder(row, samples)
            length = steps
            if LENGTHS:
                length = min(max(lengths[n], 0), length)
            has, h = k < length, T(0)
            t = length - 1 - k if which and has else k
            if has:
                h = load(products, i)
                store(states, i, h)
            at = offsets.backwards.projected if which else offsets.forwards.projected
            store(y, t * y_strides.t + n * y_strides.n + (which * i64(units[0]) + j) * y_strides.channel, h)
            if TRAINING:
                store(reserve, at + (t * i64(samples[0]) + n) * units[0] + j, h)
    return rnn_projected


def forward_plan(problem, device, config):
    """The plan of a forward pass."""
    p, spec, plan = problem, problem.spec, Plan(device, problem.spec.math)
    size, directions = p.x.itemsize, spec.directions
    rows, gates = spec.gates * spec.hidden_size, directions * p.samples * spec.gates * spec.hidden_size
    layers = forward_layers(p, plan)
    sums = plan.part(numbers_bytes(p, directions * p.steps * p.samples * rows))
    products, states = plan.part(numbers_bytes(p, gates)), plan.part(directions * p.samples * spec.state_size * size)
    units = directions * p.samples * spec.hidden_size
    cells = plan.part(numbers_bytes(p, units)) if spec.cell == "lstm" else states
    hidden = plan.part(units * size) if spec.proj_size else states
    outcome = plan.part(directions * p.samples * spec.state_size * size) if spec.proj_size else states
    for layer in layers:
        number = layer.number
        of = Rows(p, layer.input, spec.layer_input(number))
        alignment = alignment_at(alignment_of(p, of.place), *(s * size for s in of.strides))
        if spec.matrix("w_ih", number, 0):
            for d, (w, place) in enumerate(matrix_tensor(p, "w_ih", number, False)):
                to = Place(sums.name, sums.offset + d * numbers_bytes(p, p.steps * p.samples * rows))
                plan.product({"a": of.place, "b": place, "y": to}, a=of.tensor(p.dtype, alignment), b=w, transpose_b=True,
                             y=of.packed(rows, p.compute))
        move_states(plan, p, number, spec.state_size, ("h0", p.h0), (states, p.dtype))
        if spec.cell == "lstm":
            move_states(plan, p, number, spec.hidden_size, ("c0", p.c0), (cells, p.compute))
        _steps(plan, p, layer, of.order, sums, products, states, cells, hidden, outcome)
        move_states(plan, p, number, spec.state_size, (states, p.dtype), ("hn", p.hn))
        if spec.cell == "lstm":
            move_states(plan, p, number, spec.hidden_size, (cells, p.compute), ("cn", p.cn))
        if layer.dropped:
            plan.add(small_seconds(p.steps * p.samples * spec.output_size, 3 * p.steps * p.samples * spec.output_size * size, device),
                     lambda layer=layer: (drop_launch(p, layer),))
    return plan


def _steps(plan, p, layer, order, sums, products, states, cells, hidden, outcome):
    """The steps of a layer."""
    spec, dtype, number = p.spec, p.dtype, layer.number
    directions, kind, rows = spec.directions, kind_of(p, layer.number), spec.gates * spec.hidden_size
    recurrent, at = matrix_tensor(p, "w_hh", number, True)
    product = plan.chosen({"a": states, "b": at, "y": products}, a=Tensor.packed((directions, p.samples, spec.state_size), dtype),
                          b=recurrent, transpose_b=True, y=Tensor.packed((directions, p.samples, rows), p.compute))
    units = directions * p.samples * spec.hidden_size
    lengths = Argument("int32*", "lengths" if p.lengths else "weights")

    def cells_launch(k):
        arguments = (numbers(sums, p), numbers(products, p),
                     layer.input.pointer(dtype), pointer(Place("weights"), dtype), pointer(states, dtype),
                     numbers(cells, p), pointer(hidden, dtype), layer.output.pointer(dtype), lengths,
                     optional(p, "reserve", dtype, "hn"), Argument("int32", units), Argument("uint32x3", divisor(spec.hidden_size)),
                     Argument("uint32x3", divisor(p.samples)), Argument("int32", spec.hidden_size), Argument("int32", p.steps),
                     Argument("int32", k), Argument(SumStrides, SumStrides(p.steps * p.samples * rows, order[0] * rows, order[1] * rows)),
                     line_strides(layer.input.strides), line_strides(layer.output.strides),
                     offsets(p, number, ("b_ih", "b_hh"), ("gates", "cells", "hidden")))
        return (Launch(cell_kernel(kind), blocks(units), (THREADS, 1, 1), arguments),)
    project = _projection(plan, p, layer, states, hidden, outcome, lengths, kind) if spec.proj_size else None

    def step(plan, k):
        plan.add(*product)
        plan.add(cells_seconds(p, plan.device), lambda: cells_launch(k))
        if project:
            project(plan, k)
    plan.repeat(range(p.steps), step)


def _projection(plan, p, layer, states, hidden, outcome, lengths, kind):
    """Function ``project(plan, k)`` that adds the projection of a step."""
    spec, dtype = p.spec, p.dtype
    w, at = matrix_tensor(p, "w_hr", layer.number, True)
    product = plan.chosen({"a": hidden, "b": at, "y": outcome}, a=Tensor.packed((spec.directions, p.samples, spec.hidden_size), dtype),
                          b=w, transpose_b=True, y=Tensor.packed((spec.directions, p.samples, spec.proj_size), dtype))
    elements = spec.directions * p.samples * spec.proj_size

    def launch(k):
        arguments = (pointer(outcome, dtype), pointer(states, dtype), layer.output.pointer(dtype), lengths,
                     optional(p, "reserve", dtype, "hn"), Argument("int32", elements), Argument("uint32x3", divisor(spec.proj_size)),
                     Argument("uint32x3", divisor(p.samples)), Argument("int32", p.steps), Argument("int32", k),
                     line_strides(layer.output.strides), offsets(p, layer.number, (), ("projected",)))
        return (Launch(projected_kernel(kind), blocks(elements), (THREADS, 1, 1), arguments),)

    def project(plan, k):
        plan.add(*product)
        plan.add(small_seconds(elements, elements * 8, plan.device), lambda: launch(k))
    return project
