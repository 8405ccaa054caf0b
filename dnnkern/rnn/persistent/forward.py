"""Forward: states go round; with a projection what they are of too, in the middle of a step. Layers side by side wait for the one below."""
import functools

from ...device import cuda, i32, i64, jit, u32
from ...device.convert import element
from ...device.vec import advance
from .._cells import TYPES, make_cell
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
        in_weights, in_reserve = more * offsets[16], more * offsets[17]
        w_hh, w_hr = (offsets[8] + in_weights, offsets[11] + in_weights) if slot else (offsets[0], offsets[3])
        b_ih, b_hh = (offsets[9] + in_weights, offsets[10] + in_weights) if slot else (offsets[1], offsets[2])
        gates_at, cells_at = (offsets[12] + in_reserve, offsets[13] + in_reserve) if slot else (offsets[4], offsets[5])
        hidden_at, projected_at = (offsets[14], offsets[15]) if slot else (offsets[6], offsets[7])
        H, of = i64(units), layer + i64(slot)
        fetch(held, tile, weights, w_hh, units, first, 2 * INNER if LAYERS and slot else INNER)
        if PROJECTED:
            fetch_w(projection, tile, weights, w_hr, size, i32(i32(cuda.blockIdx.x) * STATE_UNITS), units)
        clear(tile)
        counter = advance(came, slot * i64(cuda.gridDim.y) + group)
        mine, parity = advance(states, slot * i64(samples) * INNER), cuda.gridDim.z * i64(samples) * INNER
        counter_below = advance(came, more * cuda.gridDim.y + group)
        below, above = advance(between, more * offsets[18]), advance(between, slot * offsets[18])
        ends_of(ends, lengths, steps, samples, units)
        for p in range(PAIRS):
            unit, n = pair(p)
            cells[p], last[p] = T(0), T(0)
            if ends[p] >= 0:
                own = (slot * i64(samples) + n) * H + unit
                if begin > 0:
                    last[p] = T(load(states, (begin & 1) * parity + own))
                    if LSTM:
                        cells[p] = carried[own]
                elif H0 and not PROJECTED:
                    last[p] = T(load(h0, of * s[0] + n * s[1] + unit * s[2]))
                if C0 and begin == 0:
                    cells[p] = T(load(c0, of * s[3] + n * s[4] + unit * s[5]))
        if PROJECTED:
            ends_of_h(state_ends, lengths, steps, samples, size)
            for p in range(OF_STATES):
                unit, n = pair_of_h(p)
                kept[p] = T(0)
                if H0 and state_ends[p] >= 0:
                    kept[p] = T(load(h0, i64(of * s[0] + i64(n) * s[1] + i64(unit) * s[2])))
        for step in range(begin, end):
            # what this step adds from the input is under way while the others finish
            for p in range(PAIRS):
                unit, n = pair(p)
                if step < ends[p]:
                    t = ends[p] - 1 - step if which else step
                    at = which * sums_strides[0] + t * sums_strides[1] + n * sums_strides[2] + unit
                    for g in range(GATES_OF):
                        value = T(0)
                        if LINEAR and not (LAYERS and slot):
                            value = sums[at + g * H]
                        if SKIP:
                            value = T(load(x, t * x_strides[0] + n * x_strides[1] + unit * x_strides[2]))
                        if FIRST_BIAS:
                            value = T(value + T(load(weights, b_ih + g * H + unit)))
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
                    to = t * y_strides[0] + n * y_strides[1] + (which * H + unit) * y_strides[2]
                    h = T(0)
                    for g in range(SLOTS_OF):
                        slots[g] = T(0)
                    state = T(0)
                    if has:
                        for g in range(GATES_OF):
                            half, below_n = T(0), T(0)
                            for q in range(SPLITS):
                                row = q * ROWS + g * UNITS + unit_here
                                if SPLIT_N and g == 2:
                                    below_n = T(below_n + products[row * PITCH + sample])
                                    row = row + UNITS
                                half = T(half + products[row * PITCH + sample])
                            if SECOND_BIAS:
                                half = T(half + T(load(weights, b_hh + g * H + unit)))
                            if GRU and g == 2:
                                slots[2] = T(inputs[p * GATES_OF + 2] + below_n)
                                slots[3] = half
                            else:
                                slots[g] = T(inputs[p * GATES_OF + g] + half)
                        state, h = forward(slots, cells[p] if LSTM else last[p])
                        if LSTM:
                            cells[p] = state
                    if PROJECTED:
                        store(hidden, i64(i64(i64(which) * i64(samples) + i64(n)) * H + i64(unit)), h)
                        if TRAINING:
                            store(reserve, i64(hidden_at + line * H + i64(unit)), h)
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
                    bring_hidden(tile, advance(hidden, i64(i64(which) * i64(samples) * H)), i32(n0 + q), samples)
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
                                h = T(h + products[i32(row * PITCH + i32(n - n0))])
                            kept[p] = T(widen(narrow(h)))
                        store(target, i64(i64(n) * INNER + i64(unit)), kept[p])
                        channel = i64(i64(which) * INNER + i64(unit))
                        store(y, i64(i64(t) * y_strides[0] + i64(n) * y_strides[1] + channel * y_strides[2]), h)
                        if TRAINING:
                            store(reserve, i64(projected_at + i64(i64(t) * i64(samples) + i64(n)) * INNER + i64(unit)), h)
            if LAYERS or step + 1 < end:
                tell(counter)
        for p in range(PAIRS):
            unit, n = pair(p)
            if ends[p] >= 0 and end < steps:
                if LSTM:
                    carried[(slot * i64(samples) + n) * H + unit] = cells[p]
            elif ends[p] >= 0:
                if not PROJECTED:
                    store(hn, of * s[6] + n * s[7] + unit * s[8], last[p])
                if LSTM:
                    store(cn, of * s[9] + n * s[10] + unit * s[11], cells[p])
        if PROJECTED:
            for p in range(OF_STATES):
                unit, n = pair_of_h(p)
                if state_ends[p] >= 0:
                    store(hn, i64(of * s[6] + i64(n) * s[7] + i64(unit) * s[8]), kept[p])
    return rnn_persistent
