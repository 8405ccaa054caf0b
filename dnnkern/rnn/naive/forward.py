"""Forward: a block a sequence and direction goes through the steps, one barrier between two; a thread a hidden unit."""
import functools
from dataclasses import dataclass

from ...device import cuda, i64, jit
from ...device.convert import element
from ...device.vec import advance
from ...engine.embed import Place
from ...engine.plan import Plan
from ...host.launch import Argument, Launch
from .._cells import TYPES, make_cell
from .._network import drop_launch, forward_layers, numbers, numbers_bytes, pointer

THREADS = 128
PARTS = "w_ih", "w_hh", "b_ih", "b_hh", "w_hr"
KEPT = "gates", "cells", "hidden", "projected"


@dataclass(frozen=True)
class Kind:
    """What kernels over a layer are compiled for: the cell, and which parts there are."""
    cell: str
    dtype: str
    compute: str
    clip: tuple | None
    skip: bool
    given: tuple       # matrices and biases
    present: tuple     # optional arrays
    projected: bool


def kind_of(problem, layer):
    """The kind of a layer."""
    p, spec = problem, problem.spec
    present = tuple(name for name in ("h0", "c0", "dhn", "dcn", "lengths", "reserve") if getattr(p, name, None) is not None)
    return Kind(spec.cell, p.dtype, p.compute, spec.clip, spec.input_mode == "skip" and layer == 0,
                tuple(name for name in PARTS if spec.matrix(name, layer, 0)), present, bool(spec.proj_size))


def offsets(problem, layer, names=PARTS, kept=KEPT):
    """Where the matrices of both directions begin in the weights, and their kept values in the reserve, in elements; 0 for none."""
    p, spec, found = problem, problem.spec, []
    for direction in range(2):
        for name in names:
            m = spec.matrix(name, layer, min(direction, spec.directions - 1))
            found.append(m.first if m else 0)
        for name in kept:
            at = p.region(name, layer, min(direction, spec.directions - 1))
            found.append((at or 0) // p.x.itemsize)
    return Argument(f"int64x{len(found)}", tuple(found))


def optional(problem, name, dtype, substitute):
    """The pointer of an array that may be missing: then that of another, which nothing reads."""
    return pointer(Place(name if getattr(problem, name, None) is not None else substitute), dtype)


def state_strides(problem, *names):
    """Element strides of states, (layer and direction, n, unit) each."""
    found = []
    for name in names:
        t = getattr(problem, name, None)
        found += t.strides if t is not None else (0, 0, 0)
    return Argument(f"int64x{len(found)}", tuple(found))


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
        w_ih, w_hh = (offsets[9], offsets[10]) if which else (offsets[0], offsets[1])
        b_ih, b_hh, w_hr = (offsets[11], offsets[12], offsets[13]) if which else (offsets[2], offsets[3], offsets[4])
        gates_at, cells_at = (offsets[14], offsets[15]) if which else (offsets[5], offsets[6])
        hidden_at, projected_at = (offsets[16], offsets[17]) if which else (offsets[7], offsets[8])
        length = steps
        if LENGTHS:
            length = min(max(lengths[n], i64(0)), steps)
        of = layer + which
        first_h, first_c = advance(h0, of * s[0] + n * s[1]), advance(c0, of * s[3] + n * s[4])
        own = advance(cells, (which * samples + n) * units)
        out = advance(y, n * y_strides[1] + which * states * y_strides[2])
        for k in range(length):
            t = length - 1 - k if which else k
            before = t + 1 if which else t - 1
            line, row = advance(x, t * x_strides[0] + n * x_strides[1]), t * samples + n
            for j in range(thread, units, i64(THREADS)):
                for g in range(SLOTS):
                    sums[g] = T(0)
                for g in range(GATES):
                    total, half, unit = T(0), T(0), g * units + j
                    if FIRST_BIAS:
                        total = T(load(weights, b_ih + unit))
                    if LINEAR:
                        for i in range(inputs):
                            total = T(total + T(load(weights, w_ih + unit * inputs + i)) * T(load(line, i * x_strides[2])))
                    if SKIP:
                        total = T(total + T(load(line, j * x_strides[2])))
                    if SECOND_BIAS:
                        half = T(load(weights, b_hh + unit))
                    for i in range(states):
                        h = T(0)
                        if k > 0:
                            h = T(load(out, before * y_strides[0] + i * y_strides[2]))
                        elif H0:
                            h = T(load(first_h, i * s[2]))
                        half = T(half + T(load(weights, w_hh + unit * states + i)) * h)
                    if GRU and g == 2:
                        sums[2] = total
                        sums[3] = half
                    else:
                        sums[g] = T(total + half)
                state = T(0)
                if LSTM:
                    if k > 0:
                        state = own[j]
                    elif C0:
                        state = T(load(first_c, j * s[5]))
                else:
                    if k > 0:
                        state = T(load(out, before * y_strides[0] + j * y_strides[2]))
                    elif H0:
                        state = T(load(first_h, j * s[2]))
                state, h = forward(sums, state)
                if LSTM:
                    own[j] = state
                if TRAINING:
                    for g in range(SLOTS):
                        store(reserve, gates_at + (row * SLOTS + g) * units + j, sums[g])
                    if LSTM:
                        store(reserve, cells_at + row * units + j, state)
                if PROJECTED:
                    if TRAINING:
                        store(reserve, i64(hidden_at + row * units + j), h)
                    else:
                        store(hidden, i64(i64(which * samples + n) * units + j), h)
                else:
                    store(out, t * y_strides[0] + j * y_strides[2], h)
            cuda.syncthreads()
            if PROJECTED:
                source = reserve if TRAINING else hidden
                base = i64(hidden_at + row * units) if TRAINING else i64(i64(which * samples + n) * units)
                for j in range(thread, states, i64(THREADS)):
                    total = T(0)
                    for i in range(units):
                        total = T(total + T(load(weights, i64(w_hr + j * units + i))) * T(load(source, i64(base + i))))
                    store(out, i64(t * y_strides[0] + j * y_strides[2]), total)
                    if TRAINING:
                        store(reserve, i64(projected_at + row * states + j), total)
                cuda.syncthreads()
        last = i64(0) if which else length - 1
        for j in range(thread, states, i64(THREADS)):
            h = T(0)
            if length > 0:
                h = T(load(out, last * y_strides[0] + j * y_strides[2]))
            elif H0:
                h = T(load(first_h, j * s[2]))
            store(hn, of * s[6] + n * s[7] + j * s[8], h)
        if LSTM:
            for j in range(thread, units, i64(THREADS)):
                state = T(0)
                if length > 0:
                    state = own[j]
                elif C0:
                    state = T(load(first_c, j * s[5]))
                store(cn, of * s[9] + n * s[10] + j * s[11], state)
        for t in range(length, steps):
            row = t * samples + n
            for j in range(thread, states, i64(THREADS)):
                store(out, t * y_strides[0] + j * y_strides[2], T(0))
                if TRAINING and PROJECTED:
                    store(reserve, i64(projected_at + row * states + j), T(0))
            if TRAINING:
                for j in range(thread, units, i64(THREADS)):
                    for g in range(SLOTS):
                        store(reserve, gates_at + (row * SLOTS + g) * units + j, T(0))
                    if LSTM:
                        store(reserve, cells_at + row * units + j, T(0))
                    if PROJECTED:
                        store(reserve, i64(hidden_at + row * units + j), T(0))
    return rnn_fwd_naive


def forward_launches(problem):
    """A launch a layer, and one of dropout between two."""
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
                     Argument("int64x3", layer.input.strides), Argument("int64x3", layer.output.strides),
                     state_strides(p, "h0", "c0", "hn", "cn"), offsets(p, number))
        launches.append(Launch(forward_kernel(kind_of(p, number)), (p.samples, spec.directions, 1), (THREADS, 1, 1), arguments))
        if layer.dropped and p.steps:
            launches.append(drop_launch(p, layer))
    return tuple(launches)
