"""Backward: gradients before the gates' functions are exchanged; what a step hands to the one before is their product with R. With a
projection that is the gradient of its result, which is exchanged too, and its product with W_hr comes to the cells."""
import functools
from typing import NamedTuple

from ...device import cuda, device_function, i32, i64, jit, u32
from ...device.convert import element
from ...device.vec import advance
from .._cells import NEW, NEW_RECURRENT, TYPES, make_cell
from .._spec import GATES, SLOTS
from .layer import make_copy, make_meeting, make_pairs, make_product, make_to_line


class Block(NamedTuple):
    """A block: its direction, its first unit of the cells and of the states (with a projection fewer), its first sequence; its layer and
    direction of all, and how many steps, sequences, hidden units and states there are."""
    which: i32
    first: i32
    first_state: i32
    n0: i32
    of: i64
    steps: i32
    samples: i32
    units: i64
    size: i64


class Arrays(NamedTuple):
    """Arrays of the layer, and where its direction's kept values begin in the reserve; `s` has the strides of states by name."""
    dy: object
    y: object
    h0: object
    c0: object
    dhn: object
    dcn: object
    dh0: object
    dc0: object
    reserve: object
    dy_strides: object
    y_strides: object
    s: object
    base: object


class States(NamedTuple):
    """A thread's units and sequences of h, arrays: how many steps each has, the gradient from the step after, from dy, and their sum."""
    ends: object
    rest: object
    dy: object
    dh: object


class Cells(NamedTuple):
    """A thread's units and sequences of the cells, arrays: how many steps each has, gradients of cell states, these states, those of the
    step before, gates; `slots` is scratch. Without a projection they are those of `States`."""
    ends: object
    dc: object
    state: object
    before: object
    kept: object
    slots: object


@functools.cache
def backward_kernel(config, kind, inner):
    """Turns `begin` to `end` of a layer, the last step first, and one for what is left for the first states: all of them, or one, and then
    gradients of states pass through `carried`. `inner`: the gradient of the layer's result lies in the workspace."""
    e, T, cell = element(kind.dtype), TYPES[kind.compute], make_cell(kind.cell, kind.compute, kind.clip)
    load, store, backward, load_dy = e.load, e.store, cell.backward, element(kind.compute if inner else kind.dtype).load
    LSTM, GRU, GATES_OF, SLOTS_OF = kind.cell == "lstm", kind.cell == "gru", GATES[kind.cell], SLOTS[kind.cell]
    H0, C0, DHN, DCN, LENGTHS = (name in kind.present for name in ("h0", "c0", "dhn", "dcn", "lengths"))
    PROJECTED, PITCH, INNER, after = kind.projected, config.pitch, config.inner, config.second or config
    # before a projection a thread's pairs are of h, and its cells' sums those of the second product
    (pair_of_h, ends_of_h), (pair, ends_of), to_line = make_pairs(config, LENGTHS), make_pairs(after, LENGTHS), make_to_line(config)
    PAIRS, OF_STATES = after.pairs, config.pairs

    # ---- the gradients of the last states, those of the first

    @device_function
    def begin_gradients(states, own, arrays, block, carried, beyond, begin):
        """Gradients of the states after a turn's step."""
        s = arrays.s
        for p in range(OF_STATES):
            unit, n = pair_of_h(p)
            states.rest[p] = T(0)
            if states.ends[p] >= 0:
                if begin > 0:
                    states.rest[p] = carried[(block.which * i64(block.samples) + n) * block.size + unit]
                elif DHN:
                    states.rest[p] = load(arrays.dhn, block.of * s.dhn.layer + n * s.dhn.n + unit * s.dhn.unit)
        for p in range(PAIRS):
            unit, n = pair(p)
            own.dc[p] = T(0)
            if LSTM and own.ends[p] >= 0:
                if begin > 0:
                    own.dc[p] = carried[beyond + (block.which * i64(block.samples) + n) * block.units + unit]
                elif DCN:
                    own.dc[p] = load(arrays.dcn, block.of * s.dcn.layer + n * s.dcn.n + unit * s.dcn.unit)

    @device_function
    def store_gradients(states, own, arrays, block, carried, beyond, end):
        """Gradients of the states before them."""
        s = arrays.s
        for p in range(OF_STATES):
            unit, n = pair_of_h(p)
            if states.ends[p] >= 0:
                if end <= block.steps:
                    carried[(block.which * i64(block.samples) + n) * block.size + unit] = states.rest[p]
                else:
                    store(arrays.dh0, block.of * s.dh0.layer + n * s.dh0.n + unit * s.dh0.unit, states.rest[p])
        for p in range(PAIRS):
            unit, n = pair(p)
            if LSTM and own.ends[p] >= 0:
                if end <= block.steps:
                    carried[beyond + (block.which * i64(block.samples) + n) * block.units + unit] = own.dc[p]
                else:
                    store(arrays.dc0, block.of * s.dc0.layer + n * s.dc0.n + unit * s.dc0.unit, own.dc[p])

    # ---- a turn

    SPLITS, ROWS, CELL_SPLITS, CELL_ROWS = config.splits, config.rows, after.splits, after.rows

    @device_function
    def load_kept(states, own, arrays, block, k):
        """What step k needs of the forward pass, and of dy."""
        base, y_strides, s, reserve = arrays.base, arrays.y_strides, arrays.s, arrays.reserve
        for p in range(OF_STATES):
            unit, n = pair_of_h(p)
            if k >= 0 and k < states.ends[p]:
                t = states.ends[p] - 1 - k if block.which else k
                channel = block.which * block.size + unit
                states.dy[p] = load_dy(arrays.dy, t * arrays.dy_strides.t + n * arrays.dy_strides.n + channel * arrays.dy_strides.channel)
        for p in range(PAIRS):
            unit, n = pair(p)
            if k >= 0 and k < own.ends[p]:
                t = own.ends[p] - 1 - k if block.which else k
                before = t + 1 if block.which else t - 1
                line, channel = t * i64(block.samples) + n, block.which * block.units + unit
                line_before = before * i64(block.samples) + n
                at = base.gates + line * SLOTS_OF * block.units + unit
                for g in range(SLOTS_OF):
                    own.kept[p * SLOTS_OF + g] = load(reserve, at + g * block.units)
                old = T(0)
                if LSTM:
                    own.state[p] = load(reserve, base.cells + line * block.units + unit)
                    if k > 0:
                        old = load(reserve, base.cells + line_before * block.units + unit)
                    elif C0:
                        old = load(arrays.c0, block.of * s.c0.layer + n * s.c0.n + unit * s.c0.unit)
                if GRU:
                    if k > 0:
                        old = load(arrays.y, before * y_strides.t + n * y_strides.n + channel * y_strides.channel)
                    elif H0:
                        old = load(arrays.h0, block.of * s.h0.layer + n * s.h0.n + unit * s.h0.unit)
                own.before[p] = old

    @device_function
    def update_states(states, products, arrays, block, small, turn, k):
        """Gradients of h, of the step after and of dy; with a projection to the reserve and to the other blocks."""
        for p in range(OF_STATES):
            unit, n = pair_of_h(p)
            states.dh[p] = T(0)
            if states.ends[p] >= 0:
                if turn > 0:
                    for q in range(SPLITS):
                        states.rest[p] += products[(q * ROWS + unit - block.first_state) * PITCH + (n - block.n0)]
                if k >= 0 and k < states.ends[p]:
                    states.dh[p], states.rest[p] = states.rest[p] + states.dy[p], T(0)
                    if PROJECTED:
                        t = states.ends[p] - 1 - k if block.which else k
                        at = arrays.base.projected + (t * i64(block.samples) + n) * block.size + unit
                        store(arrays.reserve, at, states.dh[p])
                if PROJECTED:
                    store(small, i64(n) * block.size + unit, to_line(states.dh[p]))

    @device_function
    def update_cells(states, own, products, arrays, block, target, k):
        """Gradients before the gates' functions, to the reserve and to the other blocks."""
        for p in range(PAIRS):
            unit, n = pair(p)
            if k >= 0 and own.ends[p] >= 0:
                slots = own.slots
                for g in range(SLOTS_OF):
                    slots[g] = T(0)
                if k < own.ends[p]:
                    dh = T(0)
                    if PROJECTED:
                        for q in range(CELL_SPLITS):
                            dh += products[(q * CELL_ROWS + unit - block.first) * PITCH + (n - block.n0)]
                    else:
                        dh = states.dh[p]
                    t = own.ends[p] - 1 - k if block.which else k
                    at = arrays.base.gates + (t * i64(block.samples) + n) * SLOTS_OF * block.units + unit
                    for g in range(SLOTS_OF):
                        slots[g] = own.kept[p * SLOTS_OF + g]
                    rest = backward(slots, own.state[p], own.before[p], dh, own.dc[p])
                    if LSTM:
                        own.dc[p] = rest
                    if GRU:
                        states.rest[p] = rest
                    for g in range(SLOTS_OF):
                        store(arrays.reserve, at + g * block.units, slots[g])
                to = i64(n) * INNER + unit
                for g in range(GATES_OF):
                    store(target, to + g * block.units, to_line(slots[NEW_RECURRENT] if GRU and g == NEW else slots[g]))

    # ---- the kernel

    (fetch, multiply), (clear, _, bring), (tell, meet) = make_product(config), make_copy(config), make_meeting(config)
    (fetch_w, unproject), bring_small = make_product(after), make_copy(after)[2]
    THREADS, SAMPLES, PART, MEETINGS, HELD_TYPE = config.threads, config.samples, config.part, 1 + PROJECTED, u32 if config.mma else T
    UNITS, STATE_UNITS, SUMS, HELD, W_HELD, KEPT = after.units, config.units, config.sums, config.held, after.held, PAIRS * SLOTS_OF

    @jit(launch_bounds=(THREADS, 1))
    def rnn_persistent_back(dy, y, weights, h0, c0, dhn, dcn, lengths, exchanged, small, came, carried, reserve, dh0, dc0, steps,
                            samples, units, size, layer, blocks, dy_strides, y_strides, s, offsets, begin, end):
        tile, products = cuda.shared.array(0, HELD_TYPE, alignment=16), cuda.shared.array(SUMS, T)
        held, projection = cuda.local.array(HELD, HELD_TYPE), cuda.local.array(W_HELD, HELD_TYPE)
        states = States(cuda.local.array(OF_STATES, i32), cuda.local.array(OF_STATES, T), cuda.local.array(OF_STATES, T),
                        cuda.local.array(OF_STATES, T))
        own = Cells(cuda.local.array(PAIRS, i32), cuda.local.array(PAIRS, T), cuda.local.array(PAIRS, T), cuda.local.array(PAIRS, T),
                    cuda.local.array(KEPT, T), cuda.local.array(SLOTS_OF, T))
        group, which = cuda.blockIdx.y, cuda.blockIdx.z
        base = offsets.backwards if which else offsets.forwards
        block = Block(which, cuda.blockIdx.x * UNITS, cuda.blockIdx.x * STATE_UNITS, group * SAMPLES, layer + i64(which), steps,
                      samples, i64(units), i64(size))
        arrays = Arrays(dy, y, h0, c0, dhn, dcn, dh0, dc0, reserve, dy_strides, y_strides, s, base)
        fetch(held, tile, weights, base.w_hh, size, block.first_state, INNER)
        if PROJECTED:
            fetch_w(projection, tile, weights, base.w_hr, units, block.first, size)
        clear(tile)
        counter = advance(came, which * i64(cuda.gridDim.y) + group)
        mine, parity = advance(exchanged, which * i64(block.samples) * INNER), cuda.gridDim.z * i64(block.samples) * INNER
        mine_small = advance(small, which * i64(block.samples) * block.size)
        beyond = cuda.gridDim.z * i64(block.samples) * block.units  # cells are carried after the states
        ends_of(own.ends, lengths, steps, samples, units)
        ends_of_h(states.ends, lengths, steps, samples, size)
        begin_gradients(states, own, arrays, block, carried, beyond, begin)
        for turn in range(begin, end):
            k = steps - 1 - turn
            load_kept(states, own, arrays, block, k)  # in flight while the others finish
            if turn > begin:
                meet(counter, u32(turn * MEETINGS * blocks))
            if turn > 0:
                for q in range(0, SAMPLES, PART):
                    bring(tile, advance(mine, ((turn - 1) & 1) * parity), block.n0 + q, samples)
                    multiply(held, tile, products, q)
                    cuda.syncthreads()
            update_states(states, products, arrays, block, mine_small, turn, k)
            if PROJECTED and k >= 0:
                tell(counter)
                meet(counter, u32((2 * turn + 1) * blocks))
                for q in range(0, SAMPLES, PART):
                    bring_small(tile, mine_small, block.n0 + q, samples)
                    unproject(projection, tile, products, q)
                    cuda.syncthreads()
            update_cells(states, own, products, arrays, block, advance(mine, (turn & 1) * parity), k)
            if turn + 1 < end:
                tell(counter)
        store_gradients(states, own, arrays, block, carried, beyond, end)
    return rnn_persistent_back
