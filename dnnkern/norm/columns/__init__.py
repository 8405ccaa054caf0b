"""Channels side by side: blocks take moments of pieces of all channels, a small launch merges them, and an elementwise pass uses them.

Channels last, an image is a matrix of values by channels. A block has neighbouring channels, 16 bytes per thread, and its rows of threads
divide the values. It takes every so many-th tile of them, so that all blocks move through x together, and leaves a mean and squared
distances for each channel: two levels, what a thread has in flight, then Chan's merge. Few numbers are left to a second launch, which makes
the statistics. A third reads x from its end, which the cache still has, and writes y. Group normalisation merges the channels of a group
as well. Inference is the elementwise pass alone. x is read twice: where an image, or all of them, fits shared memory, once would do.
"""
import math

from ...device.groups import access_words
from ...device.index import ceil_div, divisor
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import LAUNCH, Cost, memory_seconds, tail
from ...host.launch import Argument, Launch
from .._channel_totals import Items, averages_launches, given_averages_launch, slabs_of, statistics_launch
from .._channel_view import View, array_strides, program_arguments, statistic_strides, view_of
from .._program_vectors import lacks_bits
from .._channel_vectors import vectors_of
from .backward import Gradient, gradient_kernel, sums_kernel
from .forward import BLOCKS, THREADS, Apply, Columns, apply_kernel, moments_kernel

COST = constants("norm/columns")

ACROSS = (32, 16, 8, 4, 2, 1)
BATCHES = 4
APPLY = "batch_norm_bwd_apply"


def supports(problem):
    """Channels that lie side by side in all images."""
    if not problem.x.size:
        return "x has no elements"
    view = view_of(problem)
    if not isinstance(view, View):
        return view
    for name, (_, channel, _) in view.whole.items():
        if channel != 1 and view.channels > 1:
            return f"channels are {channel} elements apart in {name}; expected them side by side"
    if view.values >= 2 ** 30:
        return f"{view.values} values of a channel and image; expected fewer than 2**30"
    if lacks_bits(problem.program, vectors_of(problem, view, _vector(problem, view))):
        return f"the program stores bits; expected all elements of a byte among the {_vector(problem, view)} channels of a thread"
    return None


def _vector(problem, view):
    """Channels of a thread."""
    return math.gcd(16 // problem.x.itemsize, view.channels)


def _words(problem, view, vector, name):
    """32-bit words of an access to an array."""
    image, _, value = view.whole[name]
    return access_words(problem.tensor(name), vector, (image * (view.images > 1), value * (view.values > 1)))


def columns_of(problem, device):
    """The configuration: as wide as channels fill."""
    view = view_of(problem)
    vector = _vector(problem, view)
    words = min(_words(problem, view, vector, name) for name in view.whole if not (problem.result and name == "y"))
    units = view.channels // vector

    def filled(across):
        return units / (ceil_div(units, across) * across)
    across = next((a for a in ACROSS if filled(a) >= 0.9), 1)
    across = max(across, 1 << (min(units, 4) - 1).bit_length())
    return Columns(problem.dtype, vector, words, across, device.capability >= (9, 0))


def configs(problem, device):
    """One."""
    return [columns_of(problem, device)]


def gradient_of(problem, columns):
    """What the kernels of gradients are compiled for."""
    return Gradient(columns, problem.dtype_of("gamma"), problem.tensor("dresidual") is not None, problem.activation, BATCHES,
                    problem.dtype_of("beta"), problem.frozen, problem.program, len(view_of(problem).pixels),
                    vectors_of(problem, view_of(problem), columns.vector))


def items_of(problem, device, columns):
    """How the values of a channel are cut: so that all blocks are there at once."""
    view, gradient = view_of(problem), gradient_of(problem, columns)
    tile, blocks = (gradient.tile, gradient.blocks) if problem.op.endswith("bwd") else (columns.tile, BLOCKS)
    others = view.images * ceil_div(view.channels, columns.span)
    slabs = slabs_of(ceil_div(view.values, tile), blocks * device.sms // others)
    return Items(view.own, view.images, view.channels, view.per, slabs, view.values, tile, problem.compute)


def workspace(problem, device, config):
    """Items of the slabs."""
    return 0 if problem.op == "batch_norm_infer" else items_of(problem, device, config).bytes


def estimate(problem, device, config):
    """Bytes, x twice where statistics are taken, at a rate that narrow accesses and few blocks lower; launches."""
    view = view_of(problem)
    strips = ceil_div(view.channels, config.span)
    narrow = {4: 1.0, 2: COST.words_2, 1: COST.words_1, 0: COST.element * problem.x.itemsize / 2}[config.words]
    narrow *= view.channels / (strips * config.span)
    blocks = view.images * strips * ceil_div(view.values, config.height * 4 * BATCHES)
    cost = LAUNCH + Cost(memory=memory_seconds(problem.bytes, device) / (COST.rate * narrow)).slowed(
        idle=1 / min(1.0, COST.enough * blocks / device.sms), tail=tail(blocks, COST.blocks, device))
    if problem.op in ("batch_norm_infer", APPLY):
        return cost + LAUNCH * (problem.op == APPLY)
    items = items_of(problem, device, config)
    twice = problem.x.nbytes * (1 if problem.op.endswith("fwd") else 2)
    memory = Cost(memory=memory_seconds(twice, device) / (COST.sums_rate * narrow))
    return cost + 2 * LAUNCH + Cost(launch=COST.between) + memory.slowed(
        idle=1 / min(1.0, COST.enough * items.slabs * view.images * strips / device.sms))


def moments_launch(problem, view, items, columns):
    """The launch that reads x for its moments."""
    strips = ceil_div(view.channels, columns.span)
    image, _, step = view.whole["x"]
    first, second, _, _ = items.pointers()
    arguments = (problem.pointer("x"), first, second, Argument("int32", view.values), Argument("int32", view.channels),
                 Argument("int64", image), Argument("int64", step), Argument("int32", ceil_div(view.values, columns.tile)),
                 Argument("uint32x3", divisor(items.slabs)), Argument("uint32x3", divisor(strips)),
                 *(Argument("int64", s) for s in items.steps))
    return Launch(moments_kernel(columns), (strips * items.slabs * view.images, 1, 1), (THREADS, 1, 1), arguments)


def apply_launch(problem, view, columns):
    """The launch that writes y."""
    variance = problem.op == "batch_norm_infer"
    deviation = "var" if variance else "rstd"
    config = Apply(columns, *(problem.dtype_of(name) for name in ("gamma", "beta", "mean", deviation)), variance,
                   problem.tensor("residual") is not None, problem.activation, BATCHES, problem.result,
                   _words(problem, view, columns.vector, "y") if problem.result else 0, problem.program, len(view.pixels),
                   vectors_of(problem, view, columns.vector))
    strips, parts = ceil_div(view.channels, columns.span), ceil_div(view.values, config.rows)
    names = ("x", "residual", "y")
    images, _, values = zip(*(view.whole.get(name, (0, 0, 0)) for name in names))
    pointers = [problem.pointer(name) for name in ("x", "residual", "y", "gamma", "beta", "mean", deviation)]
    arguments = (*pointers, Argument(problem.compute, "eps"), Argument("int32", view.values), Argument("int32", view.channels),
                 Argument("uint32x3", divisor(parts)), Argument("uint32x3", divisor(strips)), Argument("uint32x3", divisor(view.per)),
                 array_strides(names, images), array_strides(names, values),
                 *(Argument("int64", view.weight.get(name, 0)) for name in ("gamma", "beta")),
                 *statistic_strides(view, "mean", deviation), *program_arguments(problem, view))
    return Launch(apply_kernel(config), (strips * parts * view.images, 1, 1), (THREADS, 1, 1), arguments,
                  dependent=columns.dependent and not variance)


def sums_launch(problem, view, items, gradient):
    """The launch that reads dy and x for their sums."""
    strips = ceil_div(view.channels, gradient.columns.span)
    names = ("dy", "x", "y")
    images, _, values = zip(*(view.whole.get(name, (0, 0, 0)) for name in names))
    pointers = [problem.pointer(name) for name in ("dy", "x", "y", "mean", "rstd")]
    arguments = (*pointers, *items.pointers()[:2], Argument("int32", view.values), Argument("int32", view.channels),
                 array_strides(names, images), array_strides(names, values),
                 *statistic_strides(view, "mean", "rstd"),
                 Argument("int32", ceil_div(view.values, gradient.tile)), Argument("uint32x3", divisor(items.slabs)),
                 Argument("uint32x3", divisor(strips)), Argument("uint32x3", divisor(view.per)),
                 *(Argument("int64", s) for s in items.steps), problem.pointer("gamma"), problem.pointer("beta"),
                 *(Argument("int64", view.weight.get(name, 0)) for name in ("gamma", "beta")), *program_arguments(problem, view))
    return Launch(sums_kernel(gradient), (strips * items.slabs * view.images, 1, 1), (THREADS, 1, 1), arguments)


def gradient_launch(problem, view, items, gradient):
    """The launch that writes dx."""
    strips, parts = ceil_div(view.channels, gradient.columns.span), ceil_div(view.values, gradient.rows)
    names = ("dy", "x", "y", "dx", "dresidual")
    images, _, values = zip(*(view.whole.get(name, (0, 0, 0)) for name in names))
    pointers = [problem.pointer(name) for name in ("dy", "x", "y", "dx", "dresidual", "gamma", "mean", "rstd")]
    arguments = (*pointers, *items.pointers()[2:], Argument("int32", view.values), Argument("int32", view.channels),
                 Argument("uint32x3", divisor(parts)), Argument("uint32x3", divisor(strips)), Argument("uint32x3", divisor(view.per)),
                 Argument("int32", view.channels // view.per if view.own else 0), array_strides(names, images),
                 array_strides(names, values),
                 Argument("int64", view.weight.get("gamma", 0)),
                 *statistic_strides(view, "mean", "rstd"), problem.pointer("beta"),
                 Argument("int64", view.weight.get("beta", 0)), *program_arguments(problem, view))
    return Launch(gradient_kernel(gradient), (strips * parts * view.images, 1, 1), (THREADS, 1, 1), arguments,
                  dependent=gradient.columns.dependent)


def build(problem, device, config):
    """Three launches, one for inference, four for gradients where images have statistics of their own; the last writes y or dx, which may
    be missing."""
    view = view_of(problem)
    if problem.op == "batch_norm_infer":
        return (apply_launch(problem, view, config),)
    items = items_of(problem, device, config)
    if problem.op == APPLY:
        return given_averages_launch(problem, view, items), gradient_launch(problem, view, items, gradient_of(problem, config))
    if problem.op.endswith("bwd"):
        gradient = gradient_of(problem, config)
        launches = (sums_launch(problem, view, items, gradient), *averages_launches(problem, view, items, config.dependent))
        return launches if problem.dx is None else (*launches, gradient_launch(problem, view, items, gradient))
    launches = moments_launch(problem, view, items, config), statistics_launch(problem, view, items, config.dependent)
    return launches if problem.y is None else (*launches, apply_launch(problem, view, config))


ALGORITHMS = tuple(Algorithm(op=op, name="columns", supports=supports, workspace=workspace, estimate=estimate, build=build, configs=configs,
                             programs=op != APPLY, bits=("loads", "stores"))
                   for op in ("batch_norm_train_fwd", "batch_norm_infer", "batch_norm_bwd", "batch_norm_bwd_apply", "group_norm_fwd",
                              "group_norm_bwd"))
