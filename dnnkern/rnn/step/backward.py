"""Backward by steps: for each a kernel for the cells and a product of their gradients; those of inputs over all steps."""
import functools

from ...device import cuda, i64, jit
from ...device.convert import element
from ...device.index import divide_remainder, divisor
from ...engine.embed import Place
from ...engine.plan import Plan
from ...host.launch import Argument, Launch
from ...host.tensor import Tensor
from .._cells import NEW, NEW_RECURRENT, TYPES, make_cell
from .._network import Lines, numbers, numbers_bytes, outputs_of, packed_lines, pointer
from .._parameters import kind_of, line_strides, offsets, optional, state_strides
from .._plan import THREADS, blocks, cells_seconds, half_part, input_gradients, matrix_tensor, move_states, small_seconds
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
