"""Pixels side by side: groups of threads take moments of planes, a small launch merges them, and an elementwise pass uses them.

Channels first, an image's channel is a plane of neighbouring elements. A part of a warp, a warp or a block holds a plane, or a piece of a
large one, in registers: its mean, then the squared distances to that, two numbers a piece. A second launch merges those of all images, or
of a group's channels, and makes the statistics; a third reads x again, its end first, which the cache still has. Planes may begin anywhere,
as those of 7 x 7 do, as long as all arrays' do so alike. Small planes keep few bytes in flight: channels last are read better then.
"""
from ...device.index import ceil_div, divisor
from ...device.rows import Dim, RowForm, row_vector
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, flight_rate, memory_seconds, narrow_rate, occupied, tail
from ...host.launch import Argument, Launch
from .._channel_totals import Items, averages_launches, given_averages_launch, statistics_launch
from .._channel_view import MOST, View, array_strides, program_arguments, statistic_strides, view_of
from .kernel import Apply, Gradient, Planes, apply_kernel, gradient_kernel, moments_kernel, sums_kernel

COST = constants("norm/planes")

LANES = (8, 16, 32, 64, 128, 256)
INFER, APPLY = "batch_norm_infer", "batch_norm_bwd_apply"


def supports(problem):
    """Pixels that lie side by side in all images."""
    if not problem.x.size:
        return "x has no elements"
    view = view_of(problem)
    if not isinstance(view, View):
        return view
    for name, (_, _, value) in view.whole.items():
        if value != 1 and view.values > 1:
            return f"values of a channel are {value} elements apart in {name}; expected them side by side"
    if view.values >= 2 ** 28 or view.images * view.channels * ceil_div(view.values, 1024) >= MOST:
        return f"{view.images} images of {view.channels} channels of {view.values} values; expected planes below 2**28, 2**31 pieces"
    return None


def _unit(problem):
    """(bytes of a vector, whether planes have unaligned edges)."""
    view = view_of(problem)
    names = sorted(view.whole, key=lambda name: name != "x")
    wholes = [view.whole[name] for name in names]
    form = RowForm((Dim(view.values, tuple(1 for _ in wholes)),),
                   tuple(Dim(n, tuple(s[k] for s in wholes)) for k, n in ((0, view.images), (1, view.channels)) if n > 1))
    return row_vector(form, [problem.tensor(name) for name in names])


def _most(problem):
    """Vectors of an array that a thread holds."""
    arrays = sum(problem.tensor(name) is not None for name in ("x", "residual", "dy", "y") if name not in problem.result_names)
    return 8 if arrays == 1 else 4


def configs(problem, device):
    """Groups of threads of which not half are idle, the largest for planes beyond."""
    view, (vector_bytes, unaligned), most = view_of(problem), _unit(problem), _most(problem)
    per = vector_bytes // problem.x.itemsize
    vectors = max(1, view.values // per if unaligned else ceil_div(view.values, per))
    pieces = ceil_div(vectors, LANES[-1] * most)
    count = ceil_div(vectors, pieces)
    fitting = [lanes for lanes in LANES if ceil_div(count, lanes) <= most and (lanes == LANES[0] or count > lanes // 2)]
    return [Planes(problem.dtype, vector_bytes, unaligned, lanes, ceil_div(count, lanes), device.capability >= (9, 0), problem.result)
            for lanes in fitting]


def _pieces(problem, config):
    """(pieces of a plane, elements of each but the last)."""
    view, per = view_of(problem), config.layout.elements
    vectors = config.lanes * config.registers
    if (view.values // per if config.unaligned else ceil_div(view.values, per)) <= vectors:
        return 1, view.values
    length = ceil_div(ceil_div(view.values, ceil_div(view.values, vectors * per)), per) * per
    return ceil_div(view.values, length), length


def gradient_of(problem, config):
    """What the kernels of gradients are compiled for."""
    return Gradient(config, problem.dtype_of("gamma"), problem.tensor("dresidual") is not None, problem.activation,
                    problem.dtype_of("beta"), problem.frozen, problem.program, len(view_of(problem).pixels))


def items_of(problem, config):
    """Where the moments or the sums of pieces lie."""
    view, (pieces, length) = view_of(problem), _pieces(problem, config)
    return Items(view.own, view.images, view.channels, view.per, pieces, view.values, length, problem.compute)


def workspace(problem, device, config):
    """Items of the pieces."""
    return 0 if problem.op == INFER else items_of(problem, config).bytes


def estimate(problem, device, config):
    """Bytes, x twice where statistics are taken, at the rate that those in flight sustain; launches."""
    view, (pieces, length) = view_of(problem), _pieces(problem, config)
    backward = problem.op.startswith("batch_norm_bwd") or problem.op.endswith("bwd")
    arrays, size = 2 if backward else 1, problem.x.itemsize
    blocks = ceil_div(view.images * view.channels * pieces, config.groups)
    fill = min(1.0, length * size / (config.lanes * config.registers * config.vector_bytes))
    flight = config.registers * config.vector_bytes * fill * config.threads * max(1, config.blocks // arrays) * arrays
    rate = flight_rate(flight, COST.in_flight) * narrow_rate(config.vector_bytes, size) * (COST.heads if config.unaligned else 1.0)
    share = occupied(blocks * config.threads, COST.enough, device)
    cost = LAUNCH + Cost(memory=memory_seconds(problem.bytes, device) / (COST.rate * rate)).slowed(
        idle=1 / share, tail=tail(blocks, COST.blocks, device))
    if problem.op in (INFER, APPLY):
        return cost + LAUNCH * (problem.op == APPLY)
    merged = items_of(problem, config)
    memory = Cost(memory=memory_seconds(2 * merged.bytes + arrays * problem.x.nbytes, device) / (COST.sums_rate * rate))
    return cost + 2 * LAUNCH + Cost(launch=COST.between, reduction=COST.statistic * merged.statistics) + memory.slowed(idle=1 / share)


def _extents(problem, config):
    """(grid, arguments): rows, divisors of pieces and channels, elements of a piece and of a plane."""
    view, (pieces, length) = view_of(problem), _pieces(problem, config)
    rows = view.images * view.channels * pieces
    return (ceil_div(rows, config.groups), 1, 1), (
        Argument("int32", rows), Argument("uint32x3", divisor(pieces)), Argument("uint32x3", divisor(view.channels)),
        Argument("int32", length), Argument("int32", view.values))


def _strides(view, names):
    """Kernel parameters: strides of images and of channels."""
    images, channels, _ = zip(*(view.whole.get(name, (0, 0, 0)) for name in names))
    return array_strides(names, images), array_strides(names, channels)


def moments_launch(problem, view, items, config):
    """The launch that reads x for its moments."""
    grid, extents = _extents(problem, config)
    image, channel, _ = view.whole["x"]
    arguments = (problem.pointer("x"), *items.pointers()[:2], *extents, Argument("int64", image), Argument("int64", channel),
                 *(Argument("int64", s) for s in items.steps))
    return Launch(moments_kernel(config), grid, (config.threads, 1, 1), arguments)


def apply_launch(problem, view, config):
    """The launch that writes y."""
    deviation = "var" if problem.op == INFER else "rstd"
    grid, extents = _extents(problem, config)
    compiled = Apply(config, *(problem.dtype_of(name) for name in ("gamma", "beta", "mean", deviation)), problem.op == INFER,
                     problem.tensor("residual") is not None, problem.activation, problem.program, len(view.pixels))
    arguments = (*(problem.pointer(name) for name in ("x", "residual", "y", "gamma", "beta", "mean", deviation)),
                 Argument(problem.compute, "eps"), *extents, Argument("uint32x3", divisor(view.per)),
                 *_strides(view, ("x", "residual", "y")), *(Argument("int64", view.weight.get(name, 0)) for name in ("gamma", "beta")),
                 *statistic_strides(view, "mean", deviation), *program_arguments(problem, view))
    return Launch(apply_kernel(compiled), grid, (config.threads, 1, 1), arguments, dependent=config.dependent and problem.op != INFER)


def sums_launch(problem, view, items, compiled):
    """The launch that reads dy and x for their sums."""
    config = compiled.planes
    grid, extents = _extents(problem, config)
    arguments = (*(problem.pointer(name) for name in ("dy", "x", "y", "mean", "rstd")), *items.pointers()[:2], *extents,
                 Argument("uint32x3", divisor(view.per)), *_strides(view, ("dy", "x", "y")), *statistic_strides(view, "mean", "rstd"),
                 *(Argument("int64", s) for s in items.steps), problem.pointer("gamma"), problem.pointer("beta"),
                 *(Argument("int64", view.weight.get(name, 0)) for name in ("gamma", "beta")), *program_arguments(problem, view))
    return Launch(sums_kernel(compiled), grid, (config.threads, 1, 1), arguments)


def gradient_launch(problem, view, items, compiled):
    """The launch that writes dx."""
    config = compiled.planes
    grid, extents = _extents(problem, config)
    arguments = (*(problem.pointer(name) for name in ("dy", "x", "y", "dx", "dresidual", "gamma", "mean", "rstd")),
                 *items.pointers()[2:], *extents, Argument("uint32x3", divisor(view.per)),
                 Argument("int32", view.channels // view.per if view.own else 0), *_strides(view, ("dy", "x", "y", "dx", "dresidual")),
                 Argument("int64", view.weight.get("gamma", 0)), *statistic_strides(view, "mean", "rstd"), problem.pointer("beta"),
                 Argument("int64", view.weight.get("beta", 0)), *program_arguments(problem, view))
    return Launch(gradient_kernel(compiled), grid, (config.threads, 1, 1), arguments, dependent=config.dependent)


def build(problem, device, config):
    """Three launches, one for inference, four for gradients where images have statistics of their own; the last writes y or dx, which may
    be missing."""
    view = view_of(problem)
    if problem.op == INFER:
        return (apply_launch(problem, view, config),)
    items = items_of(problem, config)
    if problem.op == APPLY:
        return given_averages_launch(problem, view, items), gradient_launch(problem, view, items, gradient_of(problem, config))
    if problem.op.endswith("bwd"):
        compiled = gradient_of(problem, config)
        launches = (sums_launch(problem, view, items, compiled), *averages_launches(problem, view, items, config.dependent))
        return launches if problem.dx is None else (*launches, gradient_launch(problem, view, items, compiled))
    launches = moments_launch(problem, view, items, config), statistics_launch(problem, view, items, config.dependent)
    return launches if problem.y is None else (*launches, apply_launch(problem, view, config))


ALGORITHMS = tuple(Algorithm(op=op, name="planes", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs,
                             programs=op != APPLY, bits=("loads",))
                   for op in ("batch_norm_train_fwd", "batch_norm_infer", "batch_norm_bwd", "batch_norm_bwd_apply", "group_norm_fwd",
                              "group_norm_bwd"))
