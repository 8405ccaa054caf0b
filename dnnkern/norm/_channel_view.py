"""An image as images of channels of values, with one step between neighbours of each; and how partial results of it lie in the workspace.

Batch normalisation has one image where pixels of all images are at a constant stride, and merges all images' values into a mean otherwise.
Group normalisation has as many as x. A block or a group of threads takes a *slab* of a channel's values and leaves a pair of numbers, an
*item*: a mean and squared distances to it, or two sums. All items of a statistic lie side by side, slabs fastest, so that whoever merges
them reads in order: (channels, images, slabs) for batch, (images, channels, slabs) for group normalisation.
"""
import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

from ..device import i64
from ..device.index import divisor
from ..device.rows import Dim, merged
from ..engine.programs import NOTHING, Steps, check_access, operand_names, operands_argument
from ..host.launch import Argument
from ._channel_problem import WEIGHT, WHOLE

MOST = 2 ** 31 - 2 ** 20


class StatisticStrides(NamedTuple):
    """Of a mean or a variance[image, group]."""
    image: i64
    group: i64


@functools.cache
def _strides_type(names):
    return NamedTuple("ArrayStrides", [(name, i64) for name in names])


def array_strides(names, strides):
    """Kernel parameter: a stride of each of these arrays."""
    kind = _strides_type(tuple(names))
    return Argument(kind, kind(*strides))


def program_arguments(problem, view):
    """Kernel parameters: the program's operands, and the pixels' extents, see `_channel_program.make_functions`."""
    rows, dims = (1, 1 + len(view.pixels)) if view.pixels else (view.values, 1)
    divisors = tuple(v for size in view.pixels[1:] for v in divisor(size))
    return (operands_argument(problem, view.extras, rows, view.channels, dims),
            Argument(f"uint32x{len(divisors)}", divisors) if divisors else NOTHING)


def statistic_strides(view, *names):
    """Kernel parameters: strides of these statistics."""
    return tuple(Argument(StatisticStrides, StatisticStrides(*view.statistic[name])) for name in names)


@dataclass(frozen=True)
class View:
    """Extents, and element strides by array: (image, channel, value) of arrays like x; of weights by channel; of statistics by
    (image, group).

    Attributes
    ----------
    own : bool
        Each image has means of its own.
    images, channels, values : int
    per : int
        Channels of a group; of batch normalisation, 1.
    whole, weight, statistic : dict
    extras : tuple of Steps
        Of the program's operands: values are rows, channels columns, images the batch.
    pixels : tuple of int
        Extents of the dimensions of values, where the operands do not step evenly through all of them: the batch has strides along these.
    """
    own: bool
    images: int
    channels: int
    values: int
    per: int
    whole: dict
    weight: dict
    statistic: dict
    extras: tuple = ()
    pixels: tuple = ()

    @property
    def groups(self):
        return self.channels // self.per


def _refusal(problem, view):
    """Why kernels of images of channels of values cannot read the program's operands, or None."""
    for name, (_, access), steps in zip(operand_names(problem.program), problem.program.operands, view.extras):
        try:
            check_access(problem.op, name, access, Steps(steps.row or max(steps.batch[1:], default=0), steps.column))
        except ValueError:
            return f"{name} is read by {access}, and varies along the {'channels' if access == 'row' else 'values'} of an image"
    return None


def _merged(dims, extras):
    """[(dimension, its parts), ...]: merged as the arrays lie, and parts that the program's operands, whose `extras` strides are the
    first, step evenly through too."""
    parts, found = list(merged(dims)), []
    for whole in merged([Dim(d.size, d.strides[extras:]) for d in dims]):
        own = []
        while math.prod(d.size for d in own) < whole.size:
            own.append(parts.pop(0))
        found.append((whole, own))
    return found


@functools.lru_cache(maxsize=1024)
def view_of(problem):
    """The `View` of a problem, or why it has none."""
    names, extras = [name for name, t, _ in problem.arrays if t is not None and name != "x"] + ["x"], len(problem.extra_strides)
    kinds = {name: kind for name, _, kind in problem.arrays}
    own = problem.groups is not None
    image, channel, value = [], [], []
    for role, size, axis, steps in problem.roles:
        if role != "g":  # whose steps are those of channels
            strides = problem.steps_of_extras(axis, steps) + tuple(problem.stride(name, role, axis, steps) for name in names)
            dim = Dim(problem.channels if role == "c" else size, strides)
            (channel if role in problem.kept(WEIGHT) else image if role == "n" and own else value).append(dim)
    image, channel, value = (_merged(dims, extras) for dims in (image, channel, value))
    if not own and len(value) == 2:
        image, value = value[:1], value[1:]
    for what, dims in (("images", image), ("channels", channel), ("pixels", value)):
        if len(dims) > 1:
            return f"{what} are {len(dims)} dimensions that do not lie evenly; expected one"
    nothing = Dim(1, (0,) * len(names)), [Dim(1, (0,) * (extras + len(names)))]
    (image, images), (channel, channels), (value, pixels) = (dims[0] if dims else nothing for dims in (image, channel, value))
    for what, parts in (("images", images), ("channels", channels)):
        if len(parts) > 1:
            return f"{what} are {len(parts)} dimensions to the program's operands; expected one that they step evenly through"
    one = len(pixels) == 1
    steps = [Steps(pixels[0].strides[k] if one else 0, channels[0].strides[k],
                   (images[0].strides[k], *(d.strides[k] for d in pixels if not one))) for k in range(extras)]
    view = View(own, image.size, channel.size, value.size, problem.channels // problem.groups if own else 1, {}, {}, {}, tuple(steps),
                () if one else tuple(d.size for d in pixels))
    for k, name in enumerate(names):
        if kinds[name] == WHOLE:
            view.whole[name] = image.strides[k], channel.strides[k], value.strides[k]
        elif kinds[name] == WEIGHT:
            view.weight[name] = channel.strides[k]
        else:
            view.statistic[name] = problem.tensor(name).strides if own else (0, channel.strides[k])
    if max(view.values, view.channels * view.images) >= MOST:
        return f"{view.images} images of {view.channels} channels of {view.values} values; 32-bit numbers count up to {MOST}"
    return extras and _refusal(problem, view) or view


def view_alone(problem):
    """The `View` for kernels whose sums are float32, or why there is none."""
    if problem.dtype not in ("float32", "float16", "bfloat16"):
        return f"{problem.dtype}; sums are float32"
    return view_of(problem) if problem.x.size else "x has no elements"
