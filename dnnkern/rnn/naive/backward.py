"""Backward: one block per sequence and direction goes back through the steps; inputs and weights have one thread per element."""
import functools

from ...device import cuda, i64, jit
from ...device.convert import element
from ...device.index import ceil_div
from ...device.vec import advance
from ...engine.dropout_bits import drawn
from ...engine.embed import Place
from ...engine.plan import Plan
from ...host.launch import Argument, Launch
from .._cells import NEW, NEW_RECURRENT, TYPES, make_cell
from .._network import Lines, numbers, numbers_bytes, outputs_of, packed_lines, pointer
from .._parameters import kind_of, line_strides, offsets, optional, state_strides
from .forward import THREADS


def data_scratch(problem):
    """(places of the gradients of h and of the cell states, of layers' results, bytes)."""
    p, spec, plan = problem, problem.spec, Plan(None)
    rows = spec.directions * p.samples
    dh = plan.part(numbers_bytes(p, rows * spec.state_size))
    dc = plan.part(numbers_bytes(p, rows * spec.hidden_size)) if spec.cell == "lstm" else dh
    inner = [plan.part(numbers_bytes(p, p.steps * p.samples * spec.output_size)) for _ in range(min(2, spec.num_layers - 1))]
    return dh, dc, inner, plan.bytes


@functools.cache
def states_kernel(kind, inner):
    """What goes back through a layer's steps. `inner`: the gradient of its result lies in the workspace."""
    e, T, cell = element(kind.dtype), TYPES[kind.compute], make_cell(kind.cell, kind.compute, kind.clip)
    load, store, backward, load_dy = e.load, e.store, cell.backward, element(kind.compute if inner else kind.dtype).load
    LSTM, GRU, PROJECTED = kind.cell == "lstm", kind.cell == "gru", kind.projected
    GATES, SLOTS = {"lstm": (4, 4), "gru": (3, 4)}.get(kind.cell, (1, 1))
    H0, C0, DHN, DCN, LENGTHS = (name in kind.present for name in ("h0", "c0", "dhn", "dcn", "lengths"))

    @jit(launch_bounds=(THREADS, 4))
    def rnn_bwd_naive(dy, y, weights, h0, c0, dhn, dcn, lengths, reserve, dh0, dc0, dh, dc, steps, samples, units, states, layer,
                      dy_strides, y_strides, s, offsets):
        kept = cuda.local.array(SLOTS, T)
        n, which, thread = i64(cuda.blockIdx.x), i64(cuda.blockIdx.y), i64(cuda.threadIdx.x)
        at = offsets.backwards if which else offsets.forwards
        length = steps
        if LENGTHS:
            length = min(max(lengths[n], 0), steps)
        of, group = layer + which, which * samples + n
        first_h, first_c = advance(h0, of * s.h0.layer + n * s.h0.n), advance(c0, of * s.c0.layer + n * s.c0.n)
        of_h, of_c = advance(dh, group * states), advance(dc, group * units)
        out = advance(y, n * y_strides.n + which * states * y_strides.channel)
        given = advance(dy, n * dy_strides.n + which * states * dy_strides.channel)
        for j in range(thread, states, THREADS):
            of_h[j] = load(dhn, of * s.dhn.layer + n * s.dhn.n + j * s.dhn.unit) if DHN else T(0)
        if LSTM:
            for j in range(thread, units, THREADS):
                of_c[j] = load(dcn, of * s.dcn.layer + n * s.dcn.n + j * s.dcn.unit) if DCN else T(0)
        for step in range(length):
            k = length - 1 - step
            t = step if which else k
            before = t + 1 if which else t - 1
            row, row_before = t * samples + n, before * samples + n
            for j in range(thread, states, THREADS):
                total = of_h[j] + load_dy(given, t * dy_strides.t + j * dy_strides.channel)
                if PROJECTED:
                    store(reserve, at.projected + row * states + j, total)
                else:
                    of_h[j] = total
            if PROJECTED:
                cuda.syncthreads()
            for j in range(thread, units, THREADS):
                d, d_state, state, old = T(0), T(0), T(0), T(0)
                if PROJECTED:
                    for i in range(states):
                        d += load(weights, at.w_hr + i * units + j) * load(reserve, at.projected + row * states + i)
                else:
                    d = of_h[j]
                for g in range(SLOTS):
                    kept[g] = load(reserve, at.gates + (row * SLOTS + g) * units + j)
                if LSTM:
                    d_state, state = of_c[j], load(reserve, at.cells + row * units + j)
                    if k > 0:
                        old = load(reserve, at.cells + row_before * units + j)
                    elif C0:
                        old = load(first_c, j * s.c0.unit)
                if GRU:
                    if k > 0:
                        old = load(out, before * y_strides.t + j * y_strides.channel)
                    elif H0:
                        old = load(first_h, j * s.h0.unit)
                rest = backward(kept, state, old, d, d_state)
                for g in range(SLOTS):
                    store(reserve, at.gates + (row * SLOTS + g) * units + j, kept[g])
                if LSTM:
                    of_c[j] = rest
                if GRU:
                    of_h[j] = rest
            cuda.syncthreads()
            for j in range(thread, states, THREADS):
                total = of_h[j] if GRU else T(0)
                for g in range(GATES):
                    slot = NEW_RECURRENT if GRU and g == NEW else g
                    for i in range(units):
                        total = T(total + load(weights, at.w_hh + (g * units + i) * states + j)
                                  * load(reserve, at.gates + (row * SLOTS + slot) * units + i))
                of_h[j] = total
        for j in range(thread, states, THREADS):
            store(dh0, of * s.dh0.layer + n * s.dh0.n + j * s.dh0.unit, of_h[j])
        if LSTM:
            for j in range(thread, units, THREADS):
                store(dc0, of * s.dc0.layer + n * s.dc0.n + j * s.dc0.unit, of_c[j])
    return rnn_bwd_naive


@functools.cache
def inputs_kernel(kind, to, dropped):
    """The gradient of a layer's input, of dtype `to`: 0 after the end of a sequence."""
    e, T, store = element(kind.dtype), TYPES[kind.compute], element(to).store
    load, LINEAR, SKIP, LENGTHS = e.load, "w_ih" in kind.given, kind.skip, "lengths" in kind.present
    GATES, SLOTS = {"lstm": (4, 4), "gru": (3, 4)}.get(kind.cell, (1, 1))

    @jit(launch_bounds=(THREADS, 4))
    def rnn_inputs_naive(weights, lengths, reserve, kept, dx, steps, samples, inputs, units, directions, dx_strides, offsets, factor):
        e = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if e < steps * samples * inputs:
            row = e // inputs
            i, t = e - row * inputs, row // samples
            n, total = row - t * samples, T(0)
            length = steps
            if LENGTHS:
                length = i64(lengths[n])
            if t < length:
                for which in range(directions):
                    at = offsets.backwards if which else offsets.forwards
                    for g in range(GATES):
                        first = at.gates + (row * SLOTS + g) * units
                        if LINEAR:
                            for u in range(units):
                                total = T(total + load(weights, at.w_ih + (g * units + u) * inputs + i)
                                          * load(reserve, first + u))
                        if SKIP:
                            total += load(reserve, first + i)
                if dropped:
                    total = total * factor if load(kept, e) > T(0) else T(0)
            store(dx, t * dx_strides.t + n * dx_strides.n + i * dx_strides.channel, total)
    return rnn_inputs_naive


def data_launches(problem):
    """Two launches per layer, from the last one on."""
    p, spec, dtype = problem, problem.spec, problem.dtype
    dh, dc, inner, _ = data_scratch(p)
    launches, given = [], Lines(Place("dy"), p.strides_of(p.dy))
    factor = drawn(spec.dropout)[1]
    for layer in reversed(range(spec.num_layers)):
        is_last = layer + 1 == spec.num_layers
        y, kind = outputs_of(p, layer), kind_of(p, layer)
        arguments = (given.pointer(dtype if is_last else p.compute), y.pointer(dtype), pointer(Place("weights"), dtype),
                     *(optional(p, name, dtype, "weights") for name in ("h0", "c0", "dhn", "dcn")),
                     Argument("int32*", "lengths" if p.lengths else "weights"), pointer(Place("reserve"), dtype),
                     pointer(Place("dh0"), dtype), optional(p, "dc0", dtype, "dh0"),
                     *(numbers(place, p) for place in (dh, dc)),
                     *(Argument("int64", v) for v in (p.steps, p.samples, spec.hidden_size, spec.state_size, layer * spec.directions)),
                     line_strides(given.strides), line_strides(y.strides),
                     state_strides(p, "h0", "c0", "dhn", "dcn", "dh0", "dc0"),
                     offsets(p, layer, ("w_hh", "w_hr"), ("gates", "cells", "hidden", "projected", "outputs")))
        launches.append(Launch(states_kernel(kind, not is_last), (p.samples, spec.directions, 1), (THREADS, 1, 1), arguments))
        inputs = spec.layer_input(layer)
        dropped = layer > 0 and p.region("kept", layer - 1)
        to = Lines(Place("dx"), p.strides_of(p.dx)) if layer == 0 else packed_lines(p, inner[layer % 2 % len(inner)], inputs)
        out = dtype if layer == 0 else p.compute
        elements = p.steps * p.samples * inputs
        arguments = (pointer(Place("weights"), dtype), Argument("int32*", "lengths" if p.lengths else "weights"),
                     pointer(Place("reserve"), dtype), pointer(Place("reserve", dropped or 0), dtype), to.pointer(out),
                     *(Argument("int64", v) for v in (p.steps, p.samples, inputs, spec.hidden_size, spec.directions)),
                     line_strides(to.strides), offsets(p, layer, ("w_ih",), ("gates",)), Argument(p.compute, factor))
        if elements:
            launches.append(Launch(inputs_kernel(kind, out, bool(spec.dropout) and layer > 0), (ceil_div(elements, THREADS), 1, 1),
                                   (THREADS, 1, 1), arguments))
        given = to
    return tuple(launches)


@functools.cache
def weights_kernel(kind, name, dropped):
    """The gradient of a matrix or a bias: a sum over sequences and steps."""
    e, T = element(kind.dtype), TYPES[kind.compute]
    load, store, GRU, LENGTHS, H0 = e.load, e.store, kind.cell == "gru", "lengths" in kind.present, "h0" in kind.present
    INPUT, STATE, PROJECTION, SECOND = name == "w_ih", name == "w_hh", name == "w_hr", name in ("w_hh", "b_hh")
    SLOTS = {"lstm": 4, "gru": 4}.get(kind.cell, 1)

    @jit(launch_bounds=(THREADS, 4))
    def rnn_weights_naive(x, h0, reserve, kept, lengths, dweights, steps, samples, rows, columns, units, which, layer, at, factors_at,
                          x_strides, s, factor):
        e = i64(cuda.blockIdx.x) * THREADS + cuda.threadIdx.x
        if e < rows * columns:
            r, total = e // columns, T(0)
            c = e - r * columns
            width = SLOTS * units
            if PROJECTION:
                width = rows
            elif GRU and SECOND and r >= 2 * units:
                r += units
            for n in range(samples):
                length = steps
                if LENGTHS:
                    length = min(lengths[n], length)
                for t in range(length):
                    row, value = t * samples + n, T(1)
                    if INPUT:
                        value = load(x, t * x_strides.t + n * x_strides.n + c * x_strides.channel)
                        if dropped:
                            value = value * factor if load(kept, row * columns + c) > T(0) else T(0)
                    if STATE:
                        value, before = T(0), t + 1 if which else t - 1
                        if before >= 0 and before < length:
                            value = load(x, before * x_strides.t + n * x_strides.n + c * x_strides.channel)
                        elif H0:
                            value = load(h0, layer * s.h0.layer + n * s.h0.n + c * s.h0.unit)
                    if PROJECTION:
                        value = load(reserve, factors_at + row * columns + c)
                    total += load(reserve, at + row * width + r) * value
            store(dweights, e, total)
    return rnn_weights_naive


def weights_launches(problem):
    """A launch a matrix or bias."""
    p, spec, dtype = problem, problem.spec, problem.dtype
    launches, size = [], p.x.itemsize
    for layer in range(spec.num_layers):
        kind = kind_of(p, layer)
        inputs = outputs_of(p, layer - 1) if layer else Lines(Place("x"), p.strides_of(p.x))
        y, kept = outputs_of(p, layer), p.region("kept", layer - 1)
        for which in range(spec.directions):
            states = Lines(Place(y.place.name, y.place.offset + which * spec.state_size * y.strides[2] * size), y.strides)
            for name in kind.given:
                m = spec.matrix(name, layer, which)
                lines = states if name == "w_hh" else inputs
                at = p.region("projected" if name == "w_hr" else "gates", layer, which) // size
                rows, columns = (*m.shape, 1)[:2]
                arguments = (lines.pointer(dtype), optional(p, "h0", dtype, "x"), pointer(Place("reserve"), dtype),
                             pointer(Place("reserve", kept or 0), dtype), Argument("int32*", "lengths" if p.lengths else "x"),
                             pointer(Place("dweights", m.first * size), dtype),
                             *(Argument("int64", v) for v in (p.steps, p.samples, rows, columns, spec.hidden_size, which,
                                                              layer * spec.directions + which, at,
                                                              (p.region("hidden", layer, which) or 0) // size)),
                             line_strides(lines.strides), state_strides(p, "h0"), Argument(p.compute, drawn(spec.dropout)[1]))
                kernel = weights_kernel(kind, name, kept is not None and name == "w_ih")
                launches.append(Launch(kernel, (ceil_div(m.size, THREADS), 1, 1), (THREADS, 1, 1), arguments))
    return tuple(launches)
