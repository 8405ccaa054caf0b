"""Plans of recurrent networks: products over all steps at once, products of one step, and the small kernels between them.

Two directions are one launch everywhere: their states lie after each other, and their matrices the same distance apart.
"""
import functools

from ..device import cuda, i64, jit
from ..device.convert import element
from ..device.index import ceil_div, divide_remainder, divisor
from ..engine.constants import constants
from ..engine.cost import LAUNCH, memory_seconds, overlap
from ..engine.dropout_bits import drawn
from ..engine.embed import Place, fastest_seconds
from ..engine.moves import cast_launches, cast_seconds, fill_launches, fill_seconds
from ..engine.plan import alignment_at, collapsed
from ..host.launch import Argument, Launch
from ..host.tensor import Tensor
from ._cells import TYPES
from ._network import numbers, numbers_bytes, pointer
from ._parameters import kind_of, line_strides, offsets
from ._problem import LIMIT, OPS
from ._spec import GATES, SLOTS

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


def least_step_seconds(problem, device):
    """What a step takes at least: the cells, and their product with R by whatever is fastest."""
    p, spec = problem, problem.spec
    gates, lines = spec.gates * spec.hidden_size, spec.directions * p.samples
    elements, k = (gates, spec.state_size) if p.op == OPS[0] else (spec.state_size, gates)
    nbytes = spec.directions * gates * spec.state_size * p.x.itemsize
    return cells_seconds(p, device) + fastest_seconds(p.dtype, spec.math, lines * elements, k, nbytes, device)


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


# ---- the gradient of a layer's input

@functools.cache
def input_gradient_kernel(kind, dtype):
    """Of the first layer with "skip": the sum of all gates' gradients."""
    e, T, store = element(kind.dtype), TYPES[kind.compute], element(dtype).store
    load, GATES_OF, SLOTS_OF = e.load, GATES[kind.cell], SLOTS[kind.cell]

    @jit(launch_bounds=THREADS)
    def rnn_skipped_back(reserve, dx, elements, units, samples, directions, dx_strides, offsets):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < elements:
            line, j = divide_remainder(i, units)
            t, n = divide_remainder(line, samples)
            total = T(0)
            for which in range(directions):
                at = (offsets.backwards.gates if which else offsets.forwards.gates) + i64(line) * SLOTS_OF * units[0] + j
                for g in range(GATES_OF):
                    total += load(reserve, at + g * i64(units[0]))
            store(dx, t * dx_strides.t + n * dx_strides.n + j * dx_strides.channel, total)
    return rnn_skipped_back


@functools.cache
def kept_kernel(dtype, compute):
    """dx *= factor where an element was kept, else 0."""
    load, T = element(dtype).load, TYPES[compute]

    @jit(launch_bounds=THREADS)
    def rnn_dropped_back(dx, kept, elements, factor):
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < elements:
            dx[i] = dx[i] * factor if load(kept, i) > T(0) else T(0)
    return rnn_dropped_back


def gates_tensor(p, layer, direction, first, count):
    """(Tensor (T * N, columns), Place) of gates' gradients in the reserve, some slots of them."""
    spec, size = p.spec, p.x.itemsize
    offset = p.region("gates", layer, direction) + first * spec.hidden_size * size
    width = spec.slots * spec.hidden_size
    return (Tensor((p.steps * p.samples, count * spec.hidden_size), (width, 1), p.dtype,
                   alignment_at(p.reserve.alignment, offset, width * size)), Place("reserve", offset))


def half_part(plan, p):
    """Where the gradient of an input by one direction waits for the other's; None with one direction."""
    spec = p.spec
    if not spec.bidirectional:
        return None
    most = max((spec.layer_input(n) for n in range(spec.num_layers) if spec.matrix("w_ih", n, 0)), default=0)
    return plan.part(numbers_bytes(p, p.steps * p.samples * most))


def input_gradients(plan, p, layer, to, half):
    """The gradient of a layer's input: products of both directions' gates, added up; 0 where elements were dropped."""
    spec, inputs = p.spec, p.spec.layer_input(layer)
    elements, dtype = p.steps * p.samples * inputs, p.dtype if layer == 0 else p.compute
    if not spec.matrix("w_ih", layer, 0):
        def skipped():
            arguments = (pointer(Place("reserve"), p.dtype), to.pointer(dtype), Argument("int32", elements),
                         Argument("uint32x3", divisor(inputs)), Argument("uint32x3", divisor(p.samples)),
                         Argument("int32", spec.directions), line_strides(to.strides), offsets(p, layer, (), ("gates",)))
            return (Launch(input_gradient_kernel(kind_of(p, layer), dtype), blocks(elements), (THREADS, 1, 1), arguments),)
        plan.add(small_seconds(elements, 20 * elements, plan.device), skipped)
        return
    rows = Rows(p, to, inputs)
    by_steps = rows.is_matrix and rows.order == (p.samples, 1)
    shape, strides = ((p.steps * p.samples, inputs), (rows.strides[0], rows.channel)) if by_steps else \
        ((p.steps, p.samples, inputs), to.strides)
    alignment = alignment_at(p.dx.alignment, *(abs(s) * p.x.itemsize for s in strides[:-1])) if layer == 0 else 16
    target = Tensor(shape, strides, dtype, alignment)
    matrices = matrix_tensor(p, "w_ih", layer, False)
    for d, (w, place) in enumerate(matrices):
        gates, at = gates_tensor(p, layer, d, 0, spec.gates)
        if not by_steps:
            gates = Tensor((p.steps, p.samples, gates.shape[1]), (p.samples * gates.strides[0], *gates.strides), p.dtype, gates.alignment)
        more, operands = {}, {}
        is_last = d + 1 == len(matrices)
        if d:
            more, operands = {"c": half}, {"c": Tensor.packed(shape, p.compute)}
        y, y_at = (target, to.place) if is_last else (Tensor.packed(shape, p.compute), half)
        plan.product({"a": at, "b": place, "y": y_at, **more}, a=gates, b=w, y=y, **operands)
    kept = p.region("kept", layer - 1) if layer else None
    if kept is not None:
        def dropped():
            arguments = (numbers(to.place, p), pointer(Place("reserve", kept), p.dtype), Argument("int32", elements),
                         Argument(p.compute, drawn(spec.dropout)[1]))
            return (Launch(kept_kernel(p.dtype, p.compute), blocks(elements), (THREADS, 1, 1), arguments),)
        plan.add(small_seconds(elements, 12 * elements, plan.device), dropped)
