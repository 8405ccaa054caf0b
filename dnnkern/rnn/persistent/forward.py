"""Forward: states are exchanged; with a projection what they are of too, in the middle of a step. Layers side by side wait for the one
below."""
import functools

from ...device import cuda, i32, i64, jit, u32
from ...device.convert import element
from ...device.vec import advance
from .._cells import NEW, NEW_RECURRENT, TYPES, make_cell
from .._spec import GATES, SLOTS
from .layer import make_copy, make_meeting, make_pairs, make_product


@functools.cache
def forward_kernel(config, kind):
    """Steps `begin` to `end` of a layer: all of them, or one, and then cell states pass through `carried`."""
    e, T, cell = element(kind.dtype), TYPES[kind.compute], make_cell(kind.cell, kind.compute, kind.clip)
    load, store, forward = e.load, e.store, cell.forward
    LSTM, GRU, SKIP = kind.cell == "lstm", kind.cell == "gru", kind.skip
    GATES_OF, SLOTS_OF = GATES[kind.cell], SLOTS[kind.cell]
    LINEAR, FIRST_BIAS, SECOND_BIAS = "w_ih" in kind.given, "b_ih" in kind.given, "b_hh" in kind.given
    H0, C0, LENGTHS, TRAINING = (name in kind.present for name in ("h0", "c0", "lengths", "reserve"))
    (fetch, multiply), (clear, _, bring), (tell, meet) = make_product(config), make_copy(config), make_meeting(config)
    pair, ends_of = make_pairs(config, LENGTHS)
    THREADS, UNITS, SAMPLES, PART, PAIRS, SPLITS = config.threads, config.units, config.samples, config.part, config.pairs, config.splits
    ROWS, PITCH, SUMS, INNER = config.rows, config.pitch, config.sums, config.width
    LAYERS, SPLIT_N, start_below = config.layers, config.splits_n, make_copy(config, 1)[1]
    PROJECTED, MEETINGS, after = kind.projected, 1 + kind.projected, config.second or config
    (fetch_w, project), bring_hidden, (pair_of_h, ends_of_h) = make_product(after), make_copy(after)[2], make_pairs(after, LENGTHS)
    STATES, OF_STATES, STATE_UNITS, STATE_ROWS, STATE_SPLITS = after.held, after.pairs, after.units, after.rows, after.splits
    HELD, HELD_TYPE, INPUTS, narrow, widen = config.held, u32 if config.mma else T, PAIRS * GATES_OF, e.narrow, e.widen

    @jit(launch_bounds=(THREADS, 1))
    def rnn_persistent(sums, x, weights, h0, c0, lengths, states, hidden, came, carried, between, y, hn, cn, reserve, steps, samples, units,
                       size, layer, blocks, sums_strides, x_strides, y_strides, s, offsets, begin, end):
        tile, products = cuda.shared.array(0, HELD_TYPE, alignment=16), cuda.shared.array(SUMS, T)
        held = cuda.local.array(HELD, HELD_TYPE)
        cells, last, slots = cuda.local.array(PAIRS, T), cuda.local.array(PAIRS, T), cuda.local.array(SLOTS_OF, T)
        inputs, ends = cuda.local.array(INPUTS, T), cuda.local.array(PAIRS, i32)
        projection, state_ends = cuda.local.array(STATES, HELD_TYPE), cuda.local.array(OF_STATES, i32)
        kept = cuda.local.array(OF_STATES, T)
        group, slot = cuda.blockIdx.y, cuda.blockIdx.z  # the slot of a direction, or of a layer
        which, more = 0 if LAYERS else slot, i64(max(slot - 1, 0))
        first, n0 = cuda.blockIdx.x * UNITS, group * SAMPLES
        base = offsets.second if slot else offsets.first
        in_weights, in_reserve = more * offsets.weights_apart, more * offsets.reserve_apart
        w_hh, w_hr, b_ih, b_hh = base.w_hh + in_weights, base.w_hr + in_weights, base.b_ih + in_weights, base.b_hh + in_weights
        gates_at, cells_at = base.gates + in_reserve, base.cells + in_reserve
        H, of = i64(units), layer + i64(slot)
        fetch(held, tile, weights, w_hh, units, first, 2 * INNER if LAYERS and slot else INNER)
        if PROJECTED:
            fetch_w(projection, tile, weights, w_hr, size, i32(i32(cuda.blockIdx.x) * STATE_UNITS), units)
        clear(tile)
        counter = advance(came, slot * i64(cuda.gridDim.y) + group)
        mine, parity = advance(states, slot * i64(samples) * INNER), cuda.gridDim.z * i64(samples) * INNER
        counter_below = advance(came, more * cuda.gridDim.y + group)
        below, above = advance(between, more * offsets.between_apart), advance(between, slot * offsets.between_apart)
        ends_of(ends, lengths, steps, samples, units)
        for p in range(PAIRS):
            unit, n = pair(p)
            cells[p], last[p] = T(0), T(0)
            if ends[p] >= 0:
                own = (slot * i64(samples) + n) * H + unit
                if begin > 0:
                    last[p] = load(states, (begin & 1) * parity + own)
                    if LSTM:
                        cells[p] = carried[own]
                elif H0 and not PROJECTED:
                    last[p] = load(h0, of * s.h0.layer + n * s.h0.n + unit * s.h0.unit)
                if C0 and begin == 0:
                    cells[p] = load(c0, of * s.c0.layer + n * s.c0.n + unit * s.c0.unit)
        if PROJECTED:
            ends_of_h(state_ends, lengths, steps, samples, size)
            for p in range(OF_STATES):
                unit, n = pair_of_h(p)
                kept[p] = T(0)
                if H0 and state_ends[p] >= 0:
                    kept[p] = load(h0, of * s.h0.layer + n * s.h0.n + unit * s.h0.unit)
        for step in range(begin, end):
            # what this step adds from the input is in flight while the others finish
            for p in range(PAIRS):
                unit, n = pair(p)
                if step < ends[p]:
                    t = ends[p] - 1 - step if which else step
                    at = which * sums_strides.direction + t * sums_strides.t + n * sums_strides.n + unit
                    for g in range(GATES_OF):
                        value = T(0)
                        if LINEAR and not (LAYERS and slot):
                            value = sums[at + g * H]
                        if SKIP:
                            value = load(x, t * x_strides.t + n * x_strides.n + unit * x_strides.channel)
                        if FIRST_BIAS:
                            value += load(weights, b_ih + g * H + unit)
                        inputs[p * GATES_OF + g] = value
            if step > begin:
                meet(counter, u32(step * MEETINGS * blocks))
            if LAYERS and slot:
                meet(counter_below, u32((step + 1) * blocks))
            for q in range(0, SAMPLES, PART):
                if LAYERS and slot:
                    start_below(tile, advance(below, step * i64(samples) * H), n0 + q, samples)
                bring(tile, advance(mine, (step & 1) * parity), n0 + q, samples)
                multiply(held, tile, products, q)
                cuda.syncthreads()
            target = advance(mine, ((step + 1) & 1) * parity)
            for p in range(PAIRS):
                unit, n = pair(p)
                unit_here, sample = unit - first, n - n0
                if ends[p] >= 0:
                    has = step < ends[p]
                    t = ends[p] - 1 - step if which and has else step
                    line = t * i64(samples) + n
                    to = t * y_strides.t + n * y_strides.n + (which * H + unit) * y_strides.channel
                    h = T(0)
                    for g in range(SLOTS_OF):
                        slots[g] = T(0)
                    state = T(0)
                    if has:
                        for g in range(GATES_OF):
                            half, below_n = T(0), T(0)
                            for q in range(SPLITS):
                                row = q * ROWS + g * UNITS + unit_here
                                if SPLIT_N and g == NEW:
                                    below_n += products[row * PITCH + sample]
                                    row = row + UNITS
                                half += products[row * PITCH + sample]
                            if SECOND_BIAS:
                                half += load(weights, b_hh + g * H + unit)
                            if GRU and g == NEW:
                                slots[NEW] = inputs[p * GATES_OF + NEW] + below_n
                                slots[NEW_RECURRENT] = half
                            else:
                                slots[g] = inputs[p * GATES_OF + g] + half
                        state, h = forward(slots, cells[p] if LSTM else last[p])
                        if LSTM:
                            cells[p] = state
                    if PROJECTED:
                        store(hidden, (which * i64(samples) + n) * H + unit, h)
                        if TRAINING:
                            store(reserve, base.hidden + line * H + unit, h)
                    else:
                        if LAYERS and slot < LAYERS - 1:
                            store(above, line * H + unit, h)
                        else:
                            store(y, to, h)
                        if has:
                            last[p] = T(widen(narrow(h)))
                        store(target, i64(n) * INNER + unit, last[p])
                    if TRAINING:
                        for g in range(SLOTS_OF):
                            store(reserve, gates_at + (line * SLOTS_OF + g) * H + unit, slots[g])
                        if LSTM:
                            store(reserve, cells_at + line * H + unit, state)
            if PROJECTED:
                tell(counter)
                meet(counter, u32(i32(2 * step + 1) * blocks))
                for q in range(i32(0), i32(SAMPLES), i32(PART)):
                    bring_hidden(tile, advance(hidden, which * i64(samples) * H), i32(n0 + q), samples)
                    project(projection, tile, products, q)
                    cuda.syncthreads()
                for p in range(OF_STATES):
                    unit, n = pair_of_h(p)
                    if state_ends[p] >= 0:
                        has = step < state_ends[p]
                        t = i32(state_ends[p] - 1 - step) if which and has else i32(step)
                        h = T(0)
                        if has:
                            for q in range(STATE_SPLITS):
                                row = i32(q * STATE_ROWS + unit - i32(i32(cuda.blockIdx.x) * STATE_UNITS))
                                h += products[i32(row * PITCH + i32(n - n0))]
                            kept[p] = T(widen(narrow(h)))
                        store(target, i64(n) * INNER + unit, kept[p])
                        channel = i64(which) * INNER + unit
                        store(y, t * y_strides.t + n * y_strides.n + channel * y_strides.channel, h)
                        if TRAINING:
                            store(reserve, base.projected + (t * i64(samples) + n) * INNER + unit, h)
            if LAYERS or step + 1 < end:
                tell(counter)
        for p in range(PAIRS):
            unit, n = pair(p)
            if ends[p] >= 0 and end < steps:
                if LSTM:
                    carried[(slot * i64(samples) + n) * H + unit] = cells[p]
            elif ends[p] >= 0:
                if not PROJECTED:
                    store(hn, of * s.hn.layer + n * s.hn.n + unit * s.hn.unit, last[p])
                if LSTM:
                    store(cn, of * s.cn.layer + n * s.cn.n + unit * s.cn.unit, cells[p])
        if PROJECTED:
            for p in range(OF_STATES):
                unit, n = pair_of_h(p)
                if state_ends[p] >= 0:
                    store(hn, of * s.hn.layer + n * s.hn.n + unit * s.hn.unit, kept[p])
    return rnn_persistent
