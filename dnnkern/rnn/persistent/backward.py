"""Backward: gradients before the gates' functions are exchanged; what a step hands to the one before is their product with R. With a
projection that is the gradient of its result, which is exchanged too, and its product with W_hr comes to the cells."""
import functools

from ...device import cuda, i32, i64, jit, u32
from ...device.convert import element
from ...device.vec import advance
from .._cells import NEW, NEW_RECURRENT, TYPES, make_cell
from .._spec import GATES, SLOTS
from .layer import make_copy, make_meeting, make_pairs, make_product


@functools.cache
def backward_kernel(config, kind, inner):
    """Turns `begin` to `end` of a layer, the last step first, and one for what is left for the first states: all of them, or one, and then
    gradients of states pass through `carried`. `inner`: the gradient of the layer's result lies in the workspace."""
    e, T, cell = element(kind.dtype), TYPES[kind.compute], make_cell(kind.cell, kind.compute, kind.clip)
    load, store, backward, load_dy = e.load, e.store, cell.backward, element(kind.compute if inner else kind.dtype).load
    LSTM, GRU = kind.cell == "lstm", kind.cell == "gru"
    GATES_OF, SLOTS_OF = GATES[kind.cell], SLOTS[kind.cell]
    H0, C0, DHN, DCN, LENGTHS = (name in kind.present for name in ("h0", "c0", "dhn", "dcn", "lengths"))
    (fetch, multiply), (clear, _, bring), (tell, meet) = make_product(config), make_copy(config), make_meeting(config)
    THREADS, SAMPLES, PART, PITCH, SUMS, INNER = config.threads, config.samples, config.part, config.pitch, config.sums, config.inner
    HELD, HELD_TYPE, SPLITS, ROWS = config.held, u32 if config.mma else T, config.splits, config.rows
    # before a projection a thread's pairs are of h, and its cells' sums those of the second product
    PROJECTED, MEETINGS, after = kind.projected, 1 + kind.projected, config.second or config
    (fetch_w, unproject), bring_small, (pair_of_h, ends_of_h) = make_product(after), make_copy(after)[2], make_pairs(config, LENGTHS)
    pair, ends_of = make_pairs(after, LENGTHS)
    UNITS, PAIRS, CELL_SPLITS, CELL_ROWS, W_HELD = after.units, after.pairs, after.splits, after.rows, after.held
    STATE_UNITS, OF_STATES, KEPT = config.units, config.pairs, after.pairs * SLOTS_OF

    @jit(launch_bounds=(THREADS, 1))
    def rnn_persistent_back(dy, y, weights, h0, c0, dhn, dcn, lengths, turned, small, came, carried, reserve, dh0, dc0, steps,
                            samples, units, size, layer, blocks, dy_strides, y_strides, s, offsets, begin, end):
        tile, products = cuda.shared.array(0, HELD_TYPE, alignment=16), cuda.shared.array(SUMS, T)
        held = cuda.local.array(HELD, HELD_TYPE)
        cells, now, past = cuda.local.array(PAIRS, T), cuda.local.array(PAIRS, T), cuda.local.array(PAIRS, T)
        kept, slots, ends = cuda.local.array(KEPT, T), cuda.local.array(SLOTS_OF, T), cuda.local.array(PAIRS, i32)
        rests, given, dh = cuda.local.array(OF_STATES, T), cuda.local.array(OF_STATES, T), cuda.local.array(OF_STATES, T)
        projection, state_ends = cuda.local.array(W_HELD, HELD_TYPE), cuda.local.array(OF_STATES, i32)
        group, which = cuda.blockIdx.y, cuda.blockIdx.z
        first, n0 = cuda.blockIdx.x * UNITS, group * SAMPLES
        first_state = cuda.blockIdx.x * STATE_UNITS
        base = offsets.backwards if which else offsets.forwards
        H, S, of = i64(units), i64(size), layer + i64(which)
        fetch(held, tile, weights, base.w_hh, size, first_state, INNER)
        if PROJECTED:
            fetch_w(projection, tile, weights, base.w_hr, units, first, size)
        clear(tile)
        beyond = cuda.gridDim.z * i64(samples) * H  # cells are carried after the states
        counter = advance(came, which * i64(cuda.gridDim.y) + group)
        mine, parity = advance(turned, which * i64(samples) * INNER), cuda.gridDim.z * i64(samples) * INNER
        ends_of(ends, lengths, steps, samples, units)
        ends_of_h(state_ends, lengths, steps, samples, size)
        for p in range(OF_STATES):
            unit, n = pair_of_h(p)
            rests[p] = T(0)
            if state_ends[p] >= 0:
                if begin > 0:
                    rests[p] = carried[(which * i64(samples) + n) * S + unit]
                elif DHN:
                    rests[p] = load(dhn, of * s.dhn.layer + n * s.dhn.n + unit * s.dhn.unit)
        for p in range(PAIRS):
            unit, n = pair(p)
            cells[p] = T(0)
            if LSTM and ends[p] >= 0:
                if begin > 0:
                    cells[p] = carried[beyond + (which * i64(samples) + n) * H + unit]
                elif DCN:
                    cells[p] = load(dcn, of * s.dcn.layer + n * s.dcn.n + unit * s.dcn.unit)
        for turn in range(begin, end):
            k = steps - 1 - turn
            # what this turn needs of the forward pass is in flight while the others finish
            for p in range(OF_STATES):
                unit, n = pair_of_h(p)
                if k >= 0 and k < state_ends[p]:
                    t = state_ends[p] - 1 - k if which else k
                    channel = which * S + unit
                    given[p] = load_dy(dy, t * dy_strides.t + n * dy_strides.n + channel * dy_strides.channel)
            for p in range(PAIRS):
                unit, n = pair(p)
                if k >= 0 and k < ends[p]:
                    t = ends[p] - 1 - k if which else k
                    before = t + 1 if which else t - 1
                    line, channel = t * i64(samples) + n, which * H + unit
                    line_before = before * i64(samples) + n
                    at = base.gates + line * SLOTS_OF * H + unit
                    for g in range(SLOTS_OF):
                        kept[p * SLOTS_OF + g] = load(reserve, at + g * H)
                    old = T(0)
                    if LSTM:
                        now[p] = load(reserve, base.cells + line * H + unit)
                        if k > 0:
                            old = load(reserve, base.cells + line_before * H + unit)
                        elif C0:
                            old = load(c0, of * s.c0.layer + n * s.c0.n + unit * s.c0.unit)
                    if GRU:
                        if k > 0:
                            old = load(y, before * y_strides.t + n * y_strides.n + channel * y_strides.channel)
                        elif H0:
                            old = load(h0, of * s.h0.layer + n * s.h0.n + unit * s.h0.unit)
                    past[p] = old
            if turn > begin:
                meet(counter, u32(turn * MEETINGS * blocks))
            if turn > 0:
                for q in range(0, SAMPLES, PART):
                    bring(tile, advance(mine, ((turn - 1) & 1) * parity), n0 + q, samples)
                    multiply(held, tile, products, q)
                    cuda.syncthreads()
            for p in range(OF_STATES):
                unit, n = pair_of_h(p)
                dh[p] = T(0)
                if state_ends[p] >= 0:
                    if turn > 0:
                        for q in range(SPLITS):
                            rests[p] += products[(q * ROWS + unit - first_state) * PITCH + (n - n0)]
                    if k >= 0 and k < state_ends[p]:
                        dh[p], rests[p] = rests[p] + given[p], T(0)
                        if PROJECTED:
                            t = i32(state_ends[p] - 1 - k) if which else i32(k)
                            store(reserve, base.projected + (t * i64(samples) + n) * S + unit, dh[p])
                    if PROJECTED:
                        store(small, (which * i64(samples) + n) * S + unit, dh[p])
            if PROJECTED and k >= 0:
                tell(counter)
                meet(counter, u32(i32(2 * turn + 1) * blocks))
                for q in range(i32(0), i32(SAMPLES), i32(PART)):
                    bring_small(tile, advance(small, which * i64(samples) * S), i32(n0 + q), samples)
                    unproject(projection, tile, products, q)
                    cuda.syncthreads()
            for p in range(PAIRS):
                unit, n = pair(p)
                if k >= 0 and ends[p] >= 0:
                    for g in range(SLOTS_OF):
                        slots[g] = T(0)
                    if k < ends[p]:
                        total = T(0)
                        if PROJECTED:
                            for q in range(CELL_SPLITS):
                                total += products[i32(i32(q * CELL_ROWS + unit - first) * PITCH + i32(n - n0))]
                        else:
                            total = dh[p]
                        t = ends[p] - 1 - k if which else k
                        at = base.gates + (t * i64(samples) + n) * SLOTS_OF * H + unit
                        for g in range(SLOTS_OF):
                            slots[g] = kept[p * SLOTS_OF + g]
                        rest = backward(slots, now[p], past[p], total, cells[p])
                        if LSTM:
                            cells[p] = rest
                        if GRU:
                            rests[p] = rest
                        for g in range(SLOTS_OF):
                            store(reserve, at + g * H, slots[g])
                    to = (turn & 1) * parity + i64(n) * INNER + unit
                    for g in range(GATES_OF):
                        store(mine, to + g * H, slots[NEW_RECURRENT] if GRU and g == NEW else slots[g])
            if turn + 1 < end:
                tell(counter)
        for p in range(OF_STATES):
            unit, n = pair_of_h(p)
            if state_ends[p] >= 0:
                if end <= steps:
                    carried[(which * i64(samples) + n) * S + unit] = rests[p]
                else:
                    store(dh0, of * s.dh0.layer + n * s.dh0.n + unit * s.dh0.unit, rests[p])
        for p in range(PAIRS):
            unit, n = pair(p)
            if LSTM and ends[p] >= 0:
                if end <= steps:
                    carried[beyond + (which * i64(samples) + n) * H + unit] = cells[p]
                else:
                    store(dc0, of * s.dc0.layer + n * s.dc0.n + unit * s.dc0.unit, cells[p])
    return rnn_persistent_back
