"""Forward: states are exchanged; with a projection what they are of too, in the middle of a step. Layers side by side wait for the one
below."""
import functools
from typing import NamedTuple

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.convert import element
from ...device.vec import advance
from .._cells import NEW, NEW_RECURRENT, TYPES, make_cell
from .._spec import GATES, SLOTS
from .layer import make_copy, make_meeting, make_pairs, make_product, make_to_line


class Block(NamedTuple):
    """A block: its slot (a direction, or a layer), 1 for the direction backward, its first unit and sequence; its layer and direction of
    all, and how many steps, sequences, hidden units there are."""
    slot: i32
    which: i32
    first: i32
    n0: i32
    of: i64
    steps: i32
    samples: i32
    units: i64


class At(NamedTuple):
    """Where the slot's biases begin in the weights, and its kept values in the reserve."""
    b_ih: i64
    b_hh: i64
    gates: i64
    cells: i64
    hidden: i64
    projected: i64


class Arrays(NamedTuple):
    """Arrays of the layer; `s` has the strides of states by name."""
    sums: object
    x: object
    weights: object
    h0: object
    c0: object
    y: object
    hn: object
    cn: object
    reserve: object
    sums_strides: object
    x_strides: object
    y_strides: object
    s: object


class Lines(NamedTuple):
    """What blocks exchange: two sets of states of this slot, `parity` elements apart; the states of the layer below and for the layer
    above, of all steps; hidden units that are projected."""
    states: object
    parity: i64
    below: object
    above: object
    hidden: object


class Cells(NamedTuple):
    """A thread's units and sequences, arrays: how many steps each has, cell states, last states, sums from the input; `slots` is
    scratch. With a projection its states: how many steps each has, and the last ones."""
    ends: object
    cells: object
    last: object
    inputs: object
    slots: object
    state_ends: object
    kept: object


@functools.cache
def forward_kernel(config, kind):
    """Steps `begin` to `end` of a layer: all of them, or one, and then cell states pass through `carried`."""
    e, T, cell = element(kind.dtype), TYPES[kind.compute], make_cell(kind.cell, kind.compute, kind.clip)
    load, store, forward, narrow, widen = e.load, e.store, cell.forward, e.narrow, e.widen
    LSTM, GRU, GATES_OF, SLOTS_OF = kind.cell == "lstm", kind.cell == "gru", GATES[kind.cell], SLOTS[kind.cell]
    H0, C0, LENGTHS, TRAINING = (name in kind.present for name in ("h0", "c0", "lengths", "reserve"))
    UNITS, SAMPLES, PAIRS, PITCH, INNER = config.units, config.samples, config.pairs, config.pitch, config.width
    LAYERS, PROJECTED, after = config.layers, kind.projected, config.second or config
    (pair, ends_of), (pair_of_h, ends_of_h), to_line = make_pairs(config, LENGTHS), make_pairs(after, LENGTHS), make_to_line(config)

    # ---- the first states, the last ones

    OF_STATES = after.pairs

    @device_function
    def begin_cells(own, arrays, block, lines, carried, begin):
        """States before step `begin`."""
        s = arrays.s
        for p in range(PAIRS):
            unit, n = pair(p)
            own.cells[p], own.last[p] = T(0), T(0)
            if own.ends[p] >= 0:
                at = (block.slot * i64(block.samples) + n) * block.units + unit
                if begin > 0:
                    own.last[p] = load(lines.states, (begin & 1) * lines.parity + i64(n) * INNER + unit)
                    if LSTM:
                        own.cells[p] = carried[at]
                elif H0 and not PROJECTED:
                    own.last[p] = load(arrays.h0, block.of * s.h0.layer + n * s.h0.n + unit * s.h0.unit)
                if C0 and begin == 0:
                    own.cells[p] = load(arrays.c0, block.of * s.c0.layer + n * s.c0.n + unit * s.c0.unit)

    @device_function
    def begin_states(own, arrays, block):
        """With a projection: its first results."""
        s = arrays.s
        for p in range(OF_STATES):
            unit, n = pair_of_h(p)
            own.kept[p] = T(0)
            if H0 and own.state_ends[p] >= 0:
                own.kept[p] = load(arrays.h0, block.of * s.h0.layer + n * s.h0.n + unit * s.h0.unit)

    @device_function
    def store_last(own, arrays, block, carried, end):
        """States after step `end`."""
        s = arrays.s
        for p in range(PAIRS):
            unit, n = pair(p)
            if own.ends[p] >= 0 and end < block.steps:
                if LSTM:
                    carried[(block.slot * i64(block.samples) + n) * block.units + unit] = own.cells[p]
            elif own.ends[p] >= 0:
                if not PROJECTED:
                    store(arrays.hn, block.of * s.hn.layer + n * s.hn.n + unit * s.hn.unit, own.last[p])
                if LSTM:
                    store(arrays.cn, block.of * s.cn.layer + n * s.cn.n + unit * s.cn.unit, own.cells[p])
        if PROJECTED:
            for p in range(OF_STATES):
                unit, n = pair_of_h(p)
                if own.state_ends[p] >= 0:
                    store(arrays.hn, block.of * s.hn.layer + n * s.hn.n + unit * s.hn.unit, own.kept[p])

    # ---- a step

    SKIP, LINEAR, FIRST_BIAS, SECOND_BIAS = kind.skip, "w_ih" in kind.given, "b_ih" in kind.given, "b_hh" in kind.given
    ROWS, SPLITS, SPLIT_N, STATE_ROWS, STATE_SPLITS = config.rows, config.splits, config.splits_n, after.rows, after.splits

    @device_function
    def load_inputs(own, arrays, at, block, step):
        """What a step adds from the input."""
        x_strides, sums_strides = arrays.x_strides, arrays.sums_strides
        for p in range(PAIRS):
            unit, n = pair(p)
            if step < own.ends[p]:
                t = own.ends[p] - 1 - step if block.which else step
                first = block.which * sums_strides.direction + t * sums_strides.t + n * sums_strides.n + unit
                for g in range(GATES_OF):
                    value = T(0)
                    if LINEAR and not (LAYERS and block.slot):
                        value = arrays.sums[first + g * block.units]
                    if SKIP:
                        value = load(arrays.x, t * x_strides.t + n * x_strides.n + unit * x_strides.channel)
                    if FIRST_BIAS:
                        value += load(arrays.weights, at.b_ih + g * block.units + unit)
                    own.inputs[p * GATES_OF + g] = value

    @device_function
    def add_products(slots, products, own, arrays, at, block, p, unit, n):
        """The sums of a unit's gates: from the input, and of the splits of the recurrent product."""
        for g in range(GATES_OF):
            half, below_n = T(0), T(0)
            for q in range(SPLITS):
                row = q * ROWS + g * UNITS + (unit - block.first)
                if SPLIT_N and g == NEW:
                    below_n += products[row * PITCH + (n - block.n0)]
                    row = row + UNITS
                half += products[row * PITCH + (n - block.n0)]
            if SECOND_BIAS:
                half += load(arrays.weights, at.b_hh + g * block.units + unit)
            if GRU and g == NEW:
                slots[NEW] = own.inputs[p * GATES_OF + NEW] + below_n
                slots[NEW_RECURRENT] = half
            else:
                slots[g] = own.inputs[p * GATES_OF + g] + half

    @device_function
    def update_cells(own, products, arrays, at, block, lines, target, step):
        """Gates and states of a thread's units, to the result, to the other blocks and to the reserve."""
        slots, y_strides, reserve, H = own.slots, arrays.y_strides, arrays.reserve, block.units
        for p in range(PAIRS):
            unit, n = pair(p)
            if own.ends[p] >= 0:
                has = step < own.ends[p]
                t = own.ends[p] - 1 - step if block.which and has else step
                line = t * i64(block.samples) + n
                h, state = T(0), T(0)
                for g in range(SLOTS_OF):
                    slots[g] = T(0)
                if has:
                    add_products(slots, products, own, arrays, at, block, p, unit, n)
                    state, h = forward(slots, own.cells[p] if LSTM else own.last[p])
                    if LSTM:
                        own.cells[p] = state
                if PROJECTED:
                    store(lines.hidden, i64(n) * H + unit, to_line(h))
                    if TRAINING:
                        store(reserve, at.hidden + line * H + unit, h)
                else:
                    if LAYERS and block.slot < LAYERS - 1:
                        store(lines.above, line * H + unit, h)
                    else:
                        store(arrays.y, t * y_strides.t + n * y_strides.n + (block.which * H + unit) * y_strides.channel, h)
                    if has:
                        own.last[p] = T(widen(narrow(h)))
                    store(target, i64(n) * INNER + unit, to_line(own.last[p]))
                if TRAINING:
                    for g in range(SLOTS_OF):
                        store(reserve, at.gates + (line * SLOTS_OF + g) * H + unit, slots[g])
                    if LSTM:
                        store(reserve, at.cells + line * H + unit, state)

    @device_function
    def update_states(own, products, arrays, at, block, target, first_state, step):
        """With a projection: its results."""
        y_strides = arrays.y_strides
        for p in range(OF_STATES):
            unit, n = pair_of_h(p)
            if own.state_ends[p] >= 0:
                has = step < own.state_ends[p]
                t, h = own.state_ends[p] - 1 - step if block.which and has else step, T(0)
                if has:
                    for q in range(STATE_SPLITS):
                        row = q * STATE_ROWS + (unit - first_state)
                        h += products[row * PITCH + (n - block.n0)]
                    own.kept[p] = T(widen(narrow(h)))
                store(target, i64(n) * INNER + unit, to_line(own.kept[p]))
                channel = i64(block.which) * INNER + unit
                store(arrays.y, t * y_strides.t + n * y_strides.n + channel * y_strides.channel, h)
                if TRAINING:
                    store(arrays.reserve, at.projected + (t * i64(block.samples) + n) * INNER + unit, h)

    # ---- the kernel

    (fetch, multiply), (clear, _, bring), (tell, meet) = make_product(config), make_copy(config), make_meeting(config)
    (fetch_w, project), bring_hidden, start_below = make_product(after), make_copy(after)[2], make_copy(config, 1)[1]
    THREADS, PART, MEETINGS, STATE_UNITS, HELD_TYPE = config.threads, config.part, 1 + PROJECTED, after.units, u32 if config.mma else T
    SUMS, HELD, INPUTS, STATES = config.sums, config.held, PAIRS * GATES_OF, after.held

    @jit(launch_bounds=(THREADS, 1))
    def rnn_persistent(sums, x, weights, h0, c0, lengths, states, hidden, came, carried, between, y, hn, cn, reserve, steps, samples, units,
                       size, layer, blocks, sums_strides, x_strides, y_strides, s, offsets, begin, end):
        tile, products = cuda.shared.array(0, HELD_TYPE, alignment=16), cuda.shared.array(SUMS, T)
        held, projection = cuda.local.array(HELD, HELD_TYPE), cuda.local.array(STATES, HELD_TYPE)
        own = Cells(cuda.local.array(PAIRS, i32), cuda.local.array(PAIRS, T), cuda.local.array(PAIRS, T), cuda.local.array(INPUTS, T),
                    cuda.local.array(SLOTS_OF, T), cuda.local.array(OF_STATES, i32), cuda.local.array(OF_STATES, T))
        group, slot = cuda.blockIdx.y, cuda.blockIdx.z
        more, base = i64(max(slot - 1, 0)), offsets.second if slot else offsets.first
        block = Block(slot, 0 if LAYERS else slot, cuda.blockIdx.x * UNITS, group * SAMPLES, layer + i64(slot), steps, samples, i64(units))
        in_weights, in_reserve = more * offsets.weights_apart, more * offsets.reserve_apart
        at = At(base.b_ih + in_weights, base.b_hh + in_weights, base.gates + in_reserve, base.cells + in_reserve, base.hidden,
                base.projected)
        arrays = Arrays(sums, x, weights, h0, c0, y, hn, cn, reserve, sums_strides, x_strides, y_strides, s)
        lines = Lines(advance(states, slot * i64(samples) * INNER), cuda.gridDim.z * i64(samples) * INNER,
                      advance(between, more * offsets.between_apart), advance(between, slot * offsets.between_apart),
                      advance(hidden, block.which * i64(samples) * block.units))
        first_state = cuda.blockIdx.x * STATE_UNITS
        fetch(held, tile, weights, base.w_hh + in_weights, units, block.first, 2 * INNER if LAYERS and slot else INNER)
        if PROJECTED:
            fetch_w(projection, tile, weights, base.w_hr + in_weights, size, first_state, units)
        clear(tile)
        counter, counter_below = advance(came, slot * i64(cuda.gridDim.y) + group), advance(came, more * cuda.gridDim.y + group)
        ends_of(own.ends, lengths, steps, samples, units)
        begin_cells(own, arrays, block, lines, carried, begin)
        if PROJECTED:
            ends_of_h(own.state_ends, lengths, steps, samples, size)
            begin_states(own, arrays, block)
        for step in range(begin, end):
            load_inputs(own, arrays, at, block, step)  # in flight while the others finish
            if step > begin:
                meet(counter, u32(step * MEETINGS * blocks))
            if LAYERS and slot:
                meet(counter_below, u32((step + 1) * blocks))
            for q in range(0, SAMPLES, PART):
                if LAYERS and slot:
                    start_below(tile, advance(lines.below, step * i64(samples) * block.units), block.n0 + q, samples)
                bring(tile, advance(lines.states, (step & 1) * lines.parity), block.n0 + q, samples)
                multiply(held, tile, products, q)
                cuda.syncthreads()
            target = advance(lines.states, ((step + 1) & 1) * lines.parity)
            update_cells(own, products, arrays, at, block, lines, target, step)
            if PROJECTED:
                tell(counter)
                meet(counter, u32((2 * step + 1) * blocks))
                for q in range(0, SAMPLES, PART):
                    bring_hidden(tile, lines.hidden, block.n0 + q, samples)
                    project(projection, tile, products, q)
                    cuda.syncthreads()
                update_states(own, products, arrays, at, block, target, first_state, step)
            if LAYERS or step + 1 < end:
                tell(counter)
        store_last(own, arrays, block, carried, end)
    return rnn_persistent
