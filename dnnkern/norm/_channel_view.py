"""An image as images of channels of values, with one step between neighbours of each; and how partial results of it lie in the workspace.

Batch normalisation has one image where pixels of all images are at a constant stride, and merges all images' values into a mean otherwise.
Group normalisation has as many as x. A block or a group of threads takes a *slab* of a channel's values and leaves a pair of numbers, an
*item*: a mean and squared distances to it, or two sums. All items of a statistic lie side by side, slabs fastest, so that whoever merges
them reads in order: (channels, images, slabs) for batch, (images, channels, slabs) for group normalisation.
"""
import functools
from dataclasses import dataclass
from typing import NamedTuple

from ..device import i64
from ..device.rows import Dim, merged
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
    """
    own: bool
    images: int
    channels: int
    values: int
    per: int
    whole: dict
    weight: dict
    statistic: dict

    @property
    def groups(self):
        return self.channels // self.per


@functools.lru_cache(maxsize=1024)
def view_of(problem):
    """The `View` of a problem, or why it has none."""
    names = [name for name, t, _ in problem.arrays if t is not None and name != "x"] + ["x"]
    kinds = {name: kind for name, _, kind in problem.arrays}
    own = problem.groups is not None
    image, channel, value = [], [], []
    for role, size, axis, steps in problem.roles:
        if role != "g":  # whose steps are those of channels
            dim = Dim(problem.channels if role == "c" else size, tuple(problem.stride(name, role, axis, steps) for name in names))
            (channel if role in problem.kept(WEIGHT) else image if role == "n" and own else value).append(dim)
    image, channel, value = merged(image), merged(channel), merged(value)
    if not own and len(value) == 2:
        image, value = value[:1], value[1:]
    for what, dims in (("images", image), ("channels", channel), ("pixels", value)):
        if len(dims) > 1:
            return f"{what} are {len(dims)} dimensions that do not lie evenly; expected one"
    nothing = Dim(1, (0,) * len(names))
    image, channel, value = (dims[0] if dims else nothing for dims in (image, channel, value))
    view = View(own, image.size, channel.size, value.size, problem.channels // problem.groups if own else 1, {}, {}, {})
    for k, name in enumerate(names):
        if kinds[name] == WHOLE:
            view.whole[name] = image.strides[k], channel.strides[k], value.strides[k]
        elif kinds[name] == WEIGHT:
            view.weight[name] = channel.strides[k]
        else:
            view.statistic[name] = problem.tensor(name).strides if own else (0, channel.strides[k])
    if max(view.values, view.channels * view.images) >= MOST:
        return f"{view.images} images of {view.channels} channels of {view.values} values; 32-bit numbers count up to {MOST}"
    return view
