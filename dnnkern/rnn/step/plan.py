"""Plans of recurrent networks: products over all steps at once, products of one step, and the small kernels between them.

Two directions are one launch everywhere: their states lie after each other, and their matrices the same distance apart.
"""
import functools

from ...device import cuda, jit
from ...device.convert import element
from ...device.index import ceil_div, divide_remainder, divisor
from ...engine.constants import constants
from ...engine.cost import LAUNCH, memory_seconds, overlap
from ...engine.embed import Place
from ...engine.moves import cast_launches, cast_seconds, fill_launches, fill_seconds
from ...engine.plan import alignment_at, collapsed
from ...host.launch import Argument, Launch
from ...host.tensor import Tensor
from .._cells import TYPES
from .._network import Lines, pointer
from .._parameters import StateStrides, line_strides
from .._problem import LIMIT

COST = constants("rnn/small")

THREADS = 256


class Rows:
    """Lines (t, n, channel) as an operand of products: all (t, n), or (n, t), as one dimension where memory has that, else with a batch of
    steps. `order` says where the row of (t, n) is: (step of t, step of n)."""

    def __init__(self, problem, lines, size):
        t, n, channel = lines.strides
        steps, samples = problem.steps, problem.samples
        self.size, self.channel, self.place = size, channel, lines.place
        if (step := collapsed((steps, samples), (t, n))) is not None:
            self.shape, self.strides, self.order = (steps * samples,), (step,), (samples, 1)
        elif (step := collapsed((samples, steps), (n, t))) is not None:
            self.shape, self.strides, self.order = (steps * samples,), (step,), (1, steps)
        else:
            self.shape, self.strides, self.order = (steps, samples), (t, n), (samples, 1)

    @property
    def is_matrix(self):
        """Whether there is no batch."""
        return len(self.shape) == 1

    def tensor(self, dtype, alignment):
        """The operand (..., rows, channels)."""
        return Tensor((*self.shape, self.size), (*self.strides, self.channel), dtype, alignment)

    def packed(self, size, dtype):
        """A packed array of as many rows, in the same order."""
        return Tensor.packed((*self.shape, size), dtype)


def alignment_of(problem, place):
    """What a place's address is a multiple of, in bytes, up to 16. A reserve's arrays follow each other without gaps."""
    return alignment_at(16 if place.name == "workspace" else getattr(problem, place.name).alignment, place.offset)


def matrix_tensor(problem, name, layer, together):
    """(Tensor, Place) of a matrix of a layer; `together` both directions as a batch."""
    p, spec = problem, problem.spec
    m, size = spec.matrix(name, layer, 0), p.x.itemsize
    apart = spec.matrix(name, layer, 1).first - m.first if spec.bidirectional else 0
    source = p.weights
    alignment = alignment_at(source.alignment, m.first * size, apart * size)
    if not together:
        return [(Tensor(m.shape, (m.shape[1], 1) if len(m.shape) == 2 else (1,), p.dtype, alignment),
                 Place("weights", spec.matrix(name, layer, d).first * size)) for d in range(spec.directions)]
    return Tensor((spec.directions, *m.shape), (apart, m.shape[1], 1), p.dtype, alignment), Place("weights", m.first * size)


def too_many(problem):
    """Why 32-bit counters do not do; None if they do."""
    p, spec = problem, problem.spec
    if not p.steps or not p.samples:
        return f"{p.steps} steps of {p.samples} sequences: there is nothing to multiply"
    if p.steps * p.samples * spec.directions * max(4 * spec.hidden_size, spec.layer_input(0), spec.output_size) >= LIMIT:
        return f"{p.steps} steps of {p.samples} sequences, {spec.hidden_size} hidden units; expected a product below {LIMIT}"
    return None


def small_seconds(elements, nbytes, device):
    """Predicted time of a kernel over so many elements and bytes."""
    return LAUNCH + overlap(memory=memory_seconds(nbytes, device), issue=COST.element * elements / (device.sms * COST.resident))


def cells_seconds(problem, device):
    """Predicted time of the kernel of a step's cells."""
    units = problem.spec.directions * problem.samples * problem.spec.hidden_size
    return small_seconds(units, 40 * units, device)


def blocks(elements):
    """Grid of a kernel with one thread per element."""
    return ceil_div(elements, THREADS), 1, 1


# ---- constants, and states in and out

def fill(plan, place, y, value):
    """Add a step that fills an array."""
    plan.add(fill_seconds(y, plan.device), lambda: fill_launches(y, value, plan.device, tuple(place)))


def move_states(plan, problem, layer, size, source, target, layers=1):
    """Add a step that copies the states of some layers, zeros from None; source and target are (name or place, Tensor or dtype)."""
    directions, device = problem.spec.directions, plan.device
    shape = (directions * layers, problem.samples, size)

    def side(where, t):
        if not isinstance(t, Tensor):
            return where, Tensor.packed(shape, t)
        offset = layer * directions * t.strides[0] * t.itemsize
        return Place(where, offset), Tensor(shape, t.strides, t.dtype, alignment_at(t.alignment, offset))
    to, y = side(*target)
    if source[1] is None:
        fill(plan, to, y, 0.0)
    else:
        at, x = side(*source)
        plan.add(cast_seconds(x, y, device), lambda: cast_launches(x, y, device, tuple(at), tuple(to)))


# ---- inputs without what lies after the ends of sequences, and after dropout

@functools.cache
def inputs_kernel(dtype, dropped, lengths_given):
    """A packed copy of lines, 0 after the end of a sequence and where an element was dropped."""
    load, store, T = element(dtype).load, element(dtype).store, TYPES[element(dtype).compute]

    @jit(launch_bounds=THREADS)
    def rnn_inputs(x, kept, lengths, y, elements, size, samples, strides, factor):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < elements:
            row, c = divide_remainder(i, size)
            t, n = divide_remainder(row, samples)
            value = T(0)
            if not lengths_given or t < lengths[n]:
                value = load(x, t * strides.t + n * strides.n + c * strides.channel)
            if dropped:
                value = value * factor if load(kept, i) > T(0) else T(0)
            store(y, i, value)
    return rnn_inputs


def clean_inputs(plan, problem, lines, size, kept, factor):
    """Lines that products over all steps may read: themselves, or a copy in the workspace."""
    p = problem
    rows = Rows(p, lines, size)
    if kept is None and p.lengths is None and rows.is_matrix and rows.order == (p.samples, 1):
        return lines
    elements = p.steps * p.samples * size
    to = plan.part(elements * p.x.itemsize)

    def launches():
        arguments = (lines.pointer(p.dtype), pointer(Place("reserve", kept or 0), p.dtype),
                     Argument("int32*", "lengths" if p.lengths else lines.place.name), pointer(to, p.dtype), Argument("int32", elements),
                     Argument("uint32x3", divisor(size)), Argument("uint32x3", divisor(p.samples)), line_strides(lines.strides),
                     Argument(p.compute, factor))
        return (Launch(inputs_kernel(p.dtype, kept is not None, p.lengths is not None), blocks(elements), (THREADS, 1, 1), arguments),)
    plan.add(small_seconds(elements, 2 * elements * p.x.itemsize, plan.device), launches)
    return Lines(to, (p.samples * size, size, 1))


# ---- states one step before

@functools.cache
def before_kernel(dtype, lengths_given, h0_given):
    """The state before each step, packed, of one direction; 0 after the end of a sequence."""
    load, store, T = element(dtype).load, element(dtype).store, TYPES[element(dtype).compute]

    @jit(launch_bounds=THREADS)
    def rnn_states_before(y, h0, lengths, out, elements, size, samples, steps, backwards, strides, h0_strides):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < elements:
            row, c = divide_remainder(i, size)
            t, n = divide_remainder(row, samples)
            length = steps
            if lengths_given:
                length = min(lengths[n], length)
            value, before = T(0), t + 1 if backwards else t - 1
            if t < length:
                if before >= 0 and before < length:
                    value = load(y, before * strides.t + n * strides.n + c * strides.channel)
                elif h0_given:
                    value = load(h0, n * h0_strides.n + c * h0_strides.unit)
            store(out, i, value)
    return rnn_states_before


def states_before(plan, problem, lines, layer, direction):
    """Add a step that writes them; the place of (T, N, state)."""
    p, size = problem, problem.spec.state_size
    elements = p.steps * p.samples * size
    to = plan.part(elements * p.x.itemsize)
    which = layer * p.spec.directions + direction
    h0 = Place("h0", which * p.h0.strides[0] * p.x.itemsize) if p.h0 is not None else lines.place

    def launches():
        arguments = (lines.pointer(p.dtype), pointer(h0, p.dtype), Argument("int32*", "lengths" if p.lengths else lines.place.name),
                     pointer(to, p.dtype), Argument("int32", elements), Argument("uint32x3", divisor(size)),
                     Argument("uint32x3", divisor(p.samples)), Argument("int32", p.steps), Argument("int32", direction),
                     line_strides(lines.strides),
                     Argument(StateStrides, StateStrides(*(p.h0.strides if p.h0 is not None else (0, 0, 0)))))
        return (Launch(before_kernel(p.dtype, p.lengths is not None, p.h0 is not None), blocks(elements), (THREADS, 1, 1), arguments),)
    plan.add(small_seconds(elements, 2 * elements * p.x.itemsize, plan.device), launches)
    return to
