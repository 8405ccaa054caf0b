"""Forward: one block per sequence and direction goes through the steps, one barrier between two; one thread per hidden unit."""
import functools

from ...device import cuda, i64, jit
from ...device.convert import element
from ...device.vec import advance
from ...engine.embed import Place
from ...engine.plan import Plan
from ...host.launch import Argument, Launch
from .._cells import NEW, NEW_RECURRENT, TYPES, make_cell
from .._network import drop_launch, forward_layers, numbers, numbers_bytes, pointer
from .._parameters import kind_of, line_strides, offsets, optional, state_strides

THREADS = 128


def forward_scratch(problem):
    """(layers, place of the cell states, place of what a projection is of, bytes)."""
    p, spec, plan = problem, problem.spec, Plan(None)
    layers, units = forward_layers(p, plan), spec.directions * p.samples * spec.hidden_size
    cells = plan.part(numbers_bytes(p, units)) if spec.cell == "lstm" else Place("y")
    hidden = plan.part(units * p.x.itemsize) if spec.proj_size and not p.training else Place("y")
    return layers, cells, hidden, plan.bytes


@functools.cache
def forward_kernel(kind):
    """A layer."""
    e, T, cell = element(kind.dtype), TYPES[kind.compute], make_cell(kind.cell, kind.compute, kind.clip)
    load, store, forward = e.load, e.store, cell.forward
    LSTM, GRU, PROJECTED, SKIP = kind.cell == "lstm", kind.cell == "gru", kind.projected, kind.skip
    GATES, SLOTS = {"lstm": (4, 4), "gru": (3, 4)}.get(kind.cell, (1, 1))
    LINEAR, FIRST_BIAS, SECOND_BIAS = "w_ih" in kind.given, "b_ih" in kind.given, "b_hh" in kind.given
    H0, C0, LENGTHS, TRAINING = (name in kind.present for name in ("h0", "c0", "lengths", "reserve"))

    @jit(launch_bounds=(THREADS, 4))
    def rnn_fwd_naive(x, weights, h0, c0, lengths, y, hn, cn, reserve, cells, hidden, steps, samples, inputs, units, states, layer,
                      x_strides, y_strides, s, offsets):
        sums = cuda.local.array(SLOTS, T)
        n, which, thread = i64(cuda.blockIdx.x), i64(cuda.blockIdx.y), i64(cuda.threadIdx.x)
        at = offsets.backwards if which else offsets.forwards
        length = steps
        if LENGTHS:
            length = min(max(lengths[n], 0), steps)
        of = layer + which
        first_h, first_c = advance(h0, of * s.h0.layer + n * s.h0.n), advance(c0, of * s.c0.layer + n * s.c0.n)
        own = advance(cells, (which * samples + n) * units)
        out = advance(y, n * y_strides.n + which * states * y_strides.channel)
        for k in range(length):
            t = length - 1 - k if which else k
            before = t + 1 if which else t - 1
            line, row = advance(x, t * x_strides.t + n * x_strides.n), t * samples + n
            for j in range(thread, units, THREADS):
                for g in range(SLOTS):
                    sums[g] = T(0)
                for g in range(GATES):
                    total, half, unit = T(0), T(0), g * units + j
                    if FIRST_BIAS:
                        total = load(weights, at.b_ih + unit)
                    if LINEAR:
                        for i in range(inputs):
                            total += load(weights, at.w_ih + unit * inputs + i) * load(line, i * x_strides.channel)
                    if SKIP:
                        total += load(line, j * x_strides.channel)
                    if SECOND_BIAS:
                        half = load(weights, at.b_hh + unit)
                    for i in range(states):
                        h = T(0)
                        if k > 0:
                            h = load(out, before * y_strides.t + i * y_strides.channel)
                        elif H0:
                            h = load(first_h, i * s.h0.unit)
                        half += load(weights, at.w_hh + unit * states + i) * h
                    if GRU and g == NEW:
                        sums[NEW] = total
                        sums[NEW_RECURRENT] = half
                    else:
                        sums[g] = total + half
                state = T(0)
                if LSTM:
                    if k > 0:
                        state = own[j]
                    elif C0:
                        state = load(first_c, j * s.c0.unit)
                else:
                    if k > 0:
                        state = load(out, before * y_strides.t + j * y_strides.channel)
                    elif H0:
                        state = load(first_h, j * s.h0.unit)
                state, h = forward(sums, state)
                if LSTM:
                    own[j] = state
                if TRAINING:
                    for g in range(SLOTS):
                        store(reserve, at.gates + (row * SLOTS + g) * units + j, sums[g])
                    if LSTM:
                        store(reserve, at.cells + row * units + j, state)
                if PROJECTED:
                    if TRAINING:
                        store(reserve, at.hidden + row * units + j, h)
                    else:
                        store(hidden, (which * samples + n) * units + j, h)
                else:
                    store(out, t * y_strides.t + j * y_strides.channel, h)
            cuda.syncthreads()
            if PROJECTED:
                source = reserve if TRAINING else hidden
                base = at.hidden + row * units if TRAINING else (which * samples + n) * units
                for j in range(thread, states, THREADS):
                    total = T(0)
                    for i in range(units):
                        total += load(weights, at.w_hr + j * units + i) * load(source, base + i)
                    store(out, t * y_strides.t + j * y_strides.channel, total)
                    if TRAINING:
                        store(reserve, at.projected + row * states + j, total)
                cuda.syncthreads()
        last = i64(0) if which else length - 1
        for j in range(thread, states, THREADS):
            h = T(0)
            if length > 0:
                h = load(out, last * y_strides.t + j * y_strides.channel)
            elif H0:
                h = load(first_h, j * s.h0.unit)
            store(hn, of * s.hn.layer + n * s.hn.n + j * s.hn.unit, h)
        if LSTM:
            for j in range(thread, units, THREADS):
                state = T(0)
                if length > 0:
                    state = own[j]
                elif C0:
                    state = load(first_c, j * s.c0.unit)
                store(cn, of * s.cn.layer + n * s.cn.n + j * s.cn.unit, state)
        for t in range(length, steps):
            row = t * samples + n
            for j in range(thread, states, THREADS):
                store(out, t * y_strides.t + j * y_strides.channel, T(0))
                if TRAINING and PROJECTED:
                    store(reserve, at.projected + row * states + j, T(0))
            if TRAINING:
                for j in range(thread, units, THREADS):
                    for g in range(SLOTS):
                        store(reserve, at.gates + (row * SLOTS + g) * units + j, T(0))
                    if LSTM:
                        store(reserve, at.cells + row * units + j, T(0))
                    if PROJECTED:
                        store(reserve, at.hidden + row * units + j, T(0))
    return rnn_fwd_naive


def forward_launches(problem):
    """A launch per layer, and one of dropout between two."""
    p, spec, dtype = problem, problem.spec, problem.dtype
    layers, cells, hidden, _ = forward_scratch(p)
    launches = []
    for layer in layers:
        number = layer.number
        arguments = (layer.input.pointer(dtype), pointer(Place("weights"), dtype), optional(p, "h0", dtype, "weights"),
                     optional(p, "c0", dtype, "weights"), Argument("int32*", "lengths" if p.lengths else "weights"),
                     layer.output.pointer(dtype), pointer(Place("hn"), dtype), optional(p, "cn", dtype, "hn"),
                     optional(p, "reserve", dtype, "hn"), numbers(cells, p), pointer(hidden, dtype),
                     *(Argument("int64", v) for v in (p.steps, p.samples, spec.layer_input(number), spec.hidden_size, spec.state_size,
                                                      number * spec.directions)),
                     line_strides(layer.input.strides), line_strides(layer.output.strides),
                     state_strides(p, "h0", "c0", "hn", "cn"), offsets(p, number))
        launches.append(Launch(forward_kernel(kind_of(p, number)), (p.samples, spec.directions, 1), (THREADS, 1, 1), arguments))
        if layer.dropped and p.steps:
            launches.append(drop_launch(p, layer))
    return tuple(launches)
