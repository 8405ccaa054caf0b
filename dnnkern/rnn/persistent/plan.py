"""Which shapes a persistent layer can have, what they cost, the launches round it, and the algorithms: ways for blocks to meet."""
import functools
import itertools
import math
from typing import NamedTuple

from ...device.index import ceil_div
from ...dispatch import Algorithm, NotSupported
from ...engine.constants import constants
from ...engine.cost import LANES, Cost, deferred
from ...engine.embed import Place
from ...engine.plan import Plan, alignment_at, planned
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from ...host.memo import kept
from ...host.tensor import Tensor
from .._network import Layer, Lines, drop_launch, forward_layers, numbers, numbers_bytes, outputs_of, packed_lines, pointer
from .._parameters import PARTS, SlotOffsets, SumStrides, kind_of, line_strides, offsets, optional, state_strides
from .._plan import (Rows, alignment_of, fill, half_part, input_gradients, matrix_tensor, move_states, small_seconds,
                     too_many)
from .._problem import OPS
from .._spec import GATES
from .backward import backward_kernel
from .config import COPY, Config
from .forward import forward_kernel

COST = constants("rnn/persistent")

REGISTERS, MOST_REGISTERS, STATIC, MOST_THREADS, KEPT = 65536, 255, 48 << 10, 1024, 8
ALL, CLUSTERS, SINGLE, LAYERS = "all", "clusters", "single", "layers"
SIZES = (1, 2, 4, 8, 16)  # of clusters
MMA, TF32, SIMT = constants("rnn/persistent_mma"), constants("rnn/persistent_tf32"), constants("rnn/persistent_simt")


def refusal(problem, how):
    """What no configuration can do."""
    p, spec = problem, problem.spec
    if spec.proj_size and how == SINGLE:
        return f"a projection of {spec.proj_size}; expected none: a step is two products"
    if how == LAYERS:
        if spec.num_layers == 1 or spec.bidirectional or spec.proj_size or spec.input_mode == "skip" or p.training and spec.dropout:
            return f"{spec}; expected several layers of one direction, nothing but their states between them"
        if p.training and p.reserve.alignment < COPY:
            return f"a reserve aligned to {p.reserve.alignment} bytes; expected {COPY}"
    for size in (spec.hidden_size, spec.state_size):
        if size * p.x.itemsize % COPY:
            return f"states of {size * p.x.itemsize} bytes; expected a multiple of {COPY}"
    if p.x.itemsize == 2 and p.weights.alignment < COPY:
        return f"weights aligned to {p.weights.alignment} bytes; expected {COPY}"
    return too_many(p)


class Sizes(NamedTuple):
    """What configurations depend on: they are the same for sequences of any length."""
    op: str
    spec: object
    samples: int
    tf32: bool

    @property
    def dtype(self):
        return self.spec.dtype


def sizes_of(problem):
    """Of a problem. TF32 needs weights that can be copied by 16 bytes."""
    p = problem
    return Sizes(p.op, p.spec, p.samples, p.spec.math == "tf32" and p.weights.alignment >= COPY)


def shapes(sizes, layers=0):
    """Configurations that a block could have, whatever they cost, for `Sizes`; with so many layers side by side."""
    spec, back = sizes.spec, sizes.op == OPS[1]
    inner = spec.hidden_size * spec.gates if back else spec.state_size
    for mma in (True,) if ITEMSIZE[sizes.dtype] == 2 else (True, False) if sizes.tf32 else (False,):
        one = Config(spec.cell, sizes.dtype, mma, back, inner * (2 if layers else 1), 1, 1, 1, 1, 1, layers=layers)
        yield from _shapes_like(one, sizes, inner)


def _shapes_like(one, sizes, inner):
    """Those on tensor cores, or on CUDA cores, as `one` is."""
    p, spec, back, mma = sizes, sizes.spec, one.back, one.mma
    units = [1 << k for k in range(7) if 1 << k < 2 * spec.hidden_size]
    samples = (8, 16, 32, 64) if mma else (4, 8, 16, 32, 64)
    least = one.vector if mma and back else 1  # units of a copy
    for u, n in itertools.product(units, samples):
        if n >= 2 * max(p.samples, samples[0]) or u < least:
            continue
        ways = [(16, q) for q in (1, 2, 4, 8, 16)] if mma else [(q, 1) for q in (16, 8, 4, 2, 1)]
        parts = [n // q for q in (1, 2, 4, 8) if n // q >= samples[0]]
        if not spec.proj_size:
            whole = [one.having(units=u, samples=n, lines=lines, splits=splits) for lines, splits in ways]
            whole = [config for config in whole if config.threads <= MOST_THREADS]
            yield from (config.having(part=part) for part in parts for config in whole)
            continue
        for part in parts:
            for lines, splits in ways:
                share = 1 << (ceil_div(spec.proj_size, ceil_div(spec.hidden_size, u)) - 1).bit_length()
                if back:  # the gates' gradients are multiplied to those of h, which are multiplied to those of its hidden units
                    share = max(share, least)
                    config = Config(spec.cell, p.dtype, mma, back, inner, share, n, part, lines, splits).beside(back, spec.proj_size, u)
                else:
                    config = Config(spec.cell, p.dtype, mma, back, inner, u, n, part, lines, splits).beside(back, spec.hidden_size, share)
                if config:
                    yield config


def holds(config, device):
    """Whether a multiprocessor has what a block needs."""
    threads = config.threads
    if threads > MOST_THREADS or config.registers_needed > min(MOST_REGISTERS, REGISTERS // threads):
        return False
    static = config.sums * (8 if config.dtype == "float64" else 4)
    return static <= STATIC and config.shared_bytes + static + 1024 <= device.shared_per_block


def blocks(sizes, config):
    """Grid of a launch, for `Sizes` or a problem: blocks that share sequences, groups of sequences, directions or layers."""
    across, groups = ceil_div(sizes.spec.hidden_size, config.cells.units), ceil_div(sizes.samples, config.samples)
    return across, groups, config.layers or sizes.spec.directions


@kept(256)
def _held(sizes, device, layers):
    """The shapes for which a multiprocessor has what a block needs."""
    return tuple(config for config in shapes(sizes, layers) if holds(config, device))


def configs_of(problem, device, how):
    """The configurations of least estimate that fit the device: of `ALL` blocks at once, of those of a group in a cluster (`CLUSTERS`), or
    of any number, for a step a launch (`SINGLE`)."""
    return _configs(sizes_of(problem), device, how)


@kept(256)
def _configs(sizes, device, how):
    found = []
    for config in _held(sizes, device, sizes.spec.num_layers if how == LAYERS else 0):
        across, groups, directions = blocks(sizes, config)
        if how == CLUSTERS:
            if across in SIZES:
                found.append(config.having(cluster=across))
        elif how == SINGLE:
            found.append(config.having(single=True))
        elif across * groups * directions <= device.sms:
            found.append(config)
    return tuple(sorted(found, key=lambda c: step_seconds(sizes, device, c))[:KEPT])


def fits(problem, device, how):
    """None, or the numbers that do not fit."""
    if configs_of(problem, device, how):
        return None
    spec = problem.spec
    rows = GATES[spec.cell] * spec.hidden_size * (spec.num_layers if how == LAYERS else spec.directions)
    if how == SINGLE:
        return f"lines of {spec.hidden_size} hidden units; a block holds no few rows of their matrix"
    if how == CLUSTERS:
        return f"{rows} rows of {spec.hidden_size} weights; a cluster of {SIZES[-1]} blocks cannot hold a direction's"
    inner = spec.state_size * (2 if how == LAYERS else 1)
    return (f"{rows} rows of {inner} weights for {problem.samples} sequences; {device.sms} multiprocessors of {REGISTERS} registers cannot "
            "hold them, and the lines of sequences, at once")


def step_seconds(sizes, device, config):
    """Predicted time of a step."""
    across, groups, directions = blocks(sizes, config)
    total, cost = across * groups * directions, _constants(config)
    meet = cost.alone if across == 1 else cost.cluster if config.cluster else cost.meet
    if config.single:
        meet = COST.launch + fetch_seconds(sizes, device, config)

    def product(c):
        parts = c.samples // c.part
        seconds = _math_seconds(c, config, device) + c.steps * parts * cost.chain
        pair = cost.pair + c.back * cost.back if c is config.cells else cost.pair / 2  # a store or two, nothing to wait for
        return waves * (meet + seconds + (parts - 1) * cost.part + c.splits * cost.split + c.pairs * pair) + _copy_seconds(c, config, total)
    waves = _waves(config, total, device)
    return sum(product(c) for c in (config, config.second) if c)


def _waves(config, total, device):
    """Of so many blocks."""
    return ceil_div(total, device.sms if not config.cluster else device.clusters(config.cluster) * config.cluster)


def _constants(config):
    """Of products on tensor cores, of 16 bits or in TF32, or on CUDA cores."""
    return (TF32 if config.dtype == "float32" else MMA) if config.mma else SIMT


def _math_seconds(c, config, device):
    """Predicted time of a block's multiply-adds in a step."""
    rate = 2048 // ITEMSIZE[config.dtype] if config.mma else LANES if config.dtype == "float32" else LANES / 2
    return c.rows * c.samples * c.inner / (rate * device.clock_hz) * _constants(config).product


def _copy_seconds(c, config, total):
    """Predicted time until the lines of a step have come from the L2."""
    return 2 * total * c.samples * c.inner * (ITEMSIZE[c.dtype] if c.mma else 4) / COST.l2 * _constants(config).copies


def fetch_seconds(sizes, device, config):
    """Predicted time until R has come to the registers: from memory, or as a step of many from the L2. CUDA cores go through columns
    of R, whose neighbours are in other lanes' lines."""
    across, groups, directions = blocks(sizes, config)
    rows = sum(c.rows_a_unit * c.units * c.inner for c in (config, config.second) if c)
    matrix = rows * across * ITEMSIZE[sizes.dtype] * directions
    from_l2 = matrix * groups / COST.l2 * (COST.columns if config.back and not config.mma else 1.0)
    return COST.fetch + (from_l2 if config.single else max(from_l2, matrix / device.bandwidth))


def _terms(problem, device, config, seconds, turns):
    """What a launch of a layer takes: products, copies of lines, R, and the rest, in which blocks wait for each other."""
    sizes, total = sizes_of(problem), math.prod(blocks(problem, config))
    waves, steps = _waves(config, total, device), 1 if config.single else turns + max(0, config.layers - 1)
    launches = waves * (1 + bool(config.second)) if config.single else 1
    found = {"launch": launches * COST.launch, "memory": launches * fetch_seconds(sizes, device, config),
             "math": steps * waves * sum(_math_seconds(c, config, device) for c in (config, config.second) if c),
             "l2": steps * sum(_copy_seconds(c, config, total) for c in (config, config.second) if c)}
    return Cost(**found, waits=seconds - sum(found.values()))


def layer_seconds(problem, device, config, turns):
    """Predicted time of a layer's launch, or of one for each turn."""
    sizes = sizes_of(problem)
    seconds = step_seconds(sizes, device, config)
    if config.single:
        return turns * seconds
    return COST.launch + fetch_seconds(sizes, device, config) + (turns + max(0, config.layers - 1)) * seconds


def _layer(plan, p, config, turns, kernel_of, arguments_of):
    """Add the launch of a layer, or one for each turn; never one whose blocks would wait for some that cannot start."""
    grid, device, cooperative = blocks(p, config), plan.device, not config.cluster and not config.single
    if cooperative and math.prod(grid) > device.sms:
        raise NotSupported(f"{p}: {' x '.join(map(str, grid))} blocks wait for each other; {device.name} runs {device.sms} at once")
    made = functools.cache(lambda: (kernel_of(), arguments_of()))

    def launch(begin, end):
        kernel, arguments = made()
        return (Launch(kernel, grid, (config.threads, 1, 1), (*arguments, Argument("int32", begin), Argument("int32", end)),
                       shared=config.shared_bytes, cluster=(config.cluster or 1, 1, 1), cooperative=cooperative),)
    if config.single:
        seconds = step_seconds(sizes_of(p), device, config)
        cost = deferred(seconds, lambda: _terms(p, device, config, seconds, turns))
        plan.repeat(range(turns), lambda plan, k: plan.add(cost, lambda: launch(k, k + 1)))
    else:
        seconds = layer_seconds(p, device, config, turns)
        plan.add(deferred(seconds, lambda: _terms(p, device, config, seconds, turns)), lambda: launch(0, turns))


def forward_plan(problem, device, config):
    """The plan of a forward pass."""
    p, spec, plan = problem, problem.spec, Plan(device, problem.spec.math)
    size, directions, rows = p.x.itemsize, spec.directions, spec.gates * spec.hidden_size
    across, groups, slots = blocks(p, config)
    between, apart = Place("hn"), (0, 0, 0)
    if config.layers:  # one launch for all, whose layers lie equally far apart from the second on
        layers = [Layer(0, Lines(Place("x"), p.strides_of(p.x)), Lines(Place("y"), p.strides_of(p.y)), None)]
        kept = (p.region("gates", 1) - p.region("gates", 0)) // size if p.training else p.steps * p.samples * spec.hidden_size
        between = Place("reserve", p.region("outputs", 0)) if p.training else plan.part((spec.num_layers - 1) * kept * size)
        last, before = (spec.matrix("w_hh", n, 0).first for n in (spec.num_layers - 1, max(1, spec.num_layers - 2)))
        apart = last - before, kept, kept
    else:
        layers = forward_layers(p, plan)
    sums = plan.part(numbers_bytes(p, directions * p.steps * p.samples * rows))
    states = plan.part(2 * slots * p.samples * spec.state_size * size)
    hidden = plan.part(directions * p.samples * spec.hidden_size * size) if spec.proj_size else states
    came = plan.part(4 * slots * groups)
    carried = plan.part(numbers_bytes(p, slots * p.samples * spec.hidden_size))

    def arguments(layer, order):
        slots_of = offsets(p, layer.number, PARTS[1:]).value
        if config.layers:
            slots_of = slots_of.forwards, offsets(p, 1, PARTS[1:]).value.forwards
        return (numbers(sums, p), layer.input.pointer(p.dtype), pointer(Place("weights"), p.dtype), optional(p, "h0", p.dtype, "weights"),
                optional(p, "c0", p.dtype, "weights"), Argument("int32*", "lengths" if p.lengths else "weights"), pointer(states, p.dtype),
                pointer(hidden, p.dtype), Argument("uint32*", came.name, came.offset), numbers(carried, p), pointer(between, p.dtype),
                layer.output.pointer(p.dtype), pointer(Place("hn"), p.dtype), optional(p, "cn", p.dtype, "hn"),
                optional(p, "reserve", p.dtype, "hn"),
                *(Argument("int32", v) for v in (p.steps, p.samples, spec.hidden_size, spec.state_size, layer.number * directions, across)),
                Argument(SumStrides, SumStrides(p.steps * p.samples * rows, order[0] * rows, order[1] * rows)),
                line_strides(layer.input.strides), line_strides(layer.output.strides), state_strides(p, "h0", "c0", "hn", "cn"),
                Argument(SlotOffsets, SlotOffsets(*slots_of, *apart)))
    for layer in layers:
        number = layer.number
        of = Rows(p, layer.input, spec.layer_input(number))
        alignment = alignment_at(alignment_of(p, of.place), *(s * size for s in of.strides))
        if spec.matrix("w_ih", number, 0):
            for d, (w, place) in enumerate(matrix_tensor(p, "w_ih", number, False)):
                to = Place(sums.name, sums.offset + d * numbers_bytes(p, p.steps * p.samples * rows))
                plan.product({"a": of.place, "b": place, "y": to}, a=of.tensor(p.dtype, alignment), b=w, transpose_b=True,
                             y=of.packed(rows, p.compute))
        move_states(plan, p, number, spec.state_size, ("h0", p.h0), (states, p.dtype), config.layers or 1)
        fill(plan, came, Tensor.packed((slots * groups,), "float32"), 0.0)  # whose bits are those of the integer 0
        _layer(plan, p, config, _turns(p), functools.partial(forward_kernel, config, kind_of(p, number)),
               functools.partial(arguments, layer, of.order))
        if layer.dropped:
            elements = p.steps * p.samples * spec.output_size
            plan.add(small_seconds(elements, 3 * elements * size, device), lambda layer=layer: (drop_launch(p, layer),))
    return plan


def data_plan(problem, device, config):
    """The plan of the gradients by inputs and first states."""
    p, spec, plan, dtype = problem, problem.spec, Plan(device, problem.spec.math), problem.dtype
    across, groups, directions = blocks(p, config)
    turned = plan.part(2 * directions * p.samples * spec.gates * spec.hidden_size * p.x.itemsize)
    small = plan.part(directions * p.samples * spec.proj_size * p.x.itemsize) if spec.proj_size else turned
    came = plan.part(4 * directions * groups)
    carried = plan.part(2 * numbers_bytes(p, directions * p.samples * spec.hidden_size))
    inner = [plan.part(numbers_bytes(p, p.steps * p.samples * spec.output_size)) for _ in range(min(2, spec.num_layers - 1))]
    half, given = half_part(plan, p), Lines(Place("dy"), p.strides_of(p.dy))

    def arguments(layer, given, y, is_inner):
        return (given.pointer(p.compute if is_inner else dtype), y.pointer(dtype), pointer(Place("weights"), dtype),
                *(optional(p, name, dtype, "weights") for name in ("h0", "c0", "dhn", "dcn")),
                Argument("int32*", "lengths" if p.lengths else "weights"), pointer(turned, dtype), pointer(small, dtype),
                Argument("uint32*", came.name, came.offset), numbers(carried, p), pointer(Place("reserve"), dtype),
                pointer(Place("dh0"), dtype), optional(p, "dc0", dtype, "dh0"),
                *(Argument("int32", v) for v in (p.steps, p.samples, spec.hidden_size, spec.state_size, layer * directions, across)),
                line_strides(given.strides), line_strides(y.strides), state_strides(p, "h0", "c0", "dhn", "dcn", "dh0", "dc0"),
                offsets(p, layer, ("w_hh", "w_hr")))
    for layer in reversed(range(spec.num_layers)):
        is_inner, y = layer + 1 < spec.num_layers, outputs_of(p, layer)
        fill(plan, came, Tensor.packed((directions * groups,), "float32"), 0.0)
        _layer(plan, p, config, _turns(p), functools.partial(backward_kernel, config, kind_of(p, layer), is_inner),
               functools.partial(arguments, layer, given, y, is_inner))
        to = Lines(Place("dx"), p.strides_of(p.dx)) if layer == 0 else packed_lines(p, inner[layer % len(inner)], spec.layer_input(layer))
        input_gradients(plan, p, layer, to, half)
        given = to
    return plan


PLANS = {OPS[0]: forward_plan, OPS[1]: data_plan}


def _plan(problem, device, config):
    return planned(PLANS[problem.op], problem, device, config)


def workspace(problem, device, config):
    """The input's sums of all steps, two sets of states or gradients, counters."""
    return _plan(problem, device, config).bytes


def estimate(problem, device, config):
    """The products over all steps, and the chain of steps."""
    return _plan(problem, device, config).cost


def _turns(problem):
    """Steps of a layer's kernel: backward one more, for the first states."""
    return problem.steps + (problem.op == OPS[1])


def config_bound(problem, device, config):
    """The chain of steps of all layers."""
    return (1 if config.layers else problem.spec.num_layers) * layer_seconds(problem, device, config, _turns(problem))


def bound(problem, device, how):
    """Of the best configuration."""
    return min(config_bound(problem, device, config) for config in configs_of(problem, device, how))


def build(problem, device, config):
    """A few launches per layer, or one a step."""
    return _plan(problem, device, config).launches()


def algorithms(name, how, arch, ops=tuple(PLANS)):
    """Both directions, or one, for blocks that meet in one of the ways of `configs_of`."""
    supports, fits_so, configs, least = (functools.partial(f, how=how) for f in (refusal, fits, configs_of, bound))
    return tuple(Algorithm(op=op, name=name, supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs,
                           fits=fits_so, bound=least, config_bound=config_bound, arch=arch) for op in ops)
