"""Plans of convolutions by im2col and GEMM: their matrices in memory, and the launches that compute and multiply them.

Every array has five dimensions (n, channel, d, h, w), and is an operand of a product where some of them are one dimension in memory
(`collapsed`). Otherwise it is packed into the workspace first.
"""
import math

from ...engine.constants import constants
from ...engine.cost import SECTOR, Cost
from ...engine.embed import Place
from ...engine.moves import im2col_launches, im2col_seconds, transpose_launches, transpose_seconds
from ...engine.plan import Plan as _Plan
from ...engine.plan import alignment_at, collapsed
from ...host.canonical import MOST_DIMENSIONS
from ...host.memo import remembered
from ...host.products import check_addend
from ...host.tensor import Tensor
from .col2im import col2im_launch, config_of
from .col2im import seconds as col2im_seconds


COST = constants("conv/im2col_gemm")

ROWS = 8  # of a product that reads every column by itself


class Plan(_Plan):
    """The launches of one convolution."""

    def __init__(self, problem, device, config):
        super().__init__(device, problem.math, config.product)
        self.problem, self.config = problem, config

    # ---- steps

    def chosen(self, places, scalars=(), **operands):
        """A product. One of few rows, and of few products a sum, takes its time for columns, whose blocks have little else to do."""
        cost, step = super().chosen(places, scalars, **operands)
        y = operands["y"]
        return (cost + Cost(issue=COST.column * y.size / y.shape[-2]) if y.shape[-2] <= ROWS else cost), step

    def packed(self, tensor, place) -> Place:
        """A copy of a tensor without gaps, in the order of its dimensions."""
        target = Tensor.packed(tensor.shape, tensor.dtype)
        to = self.part(target.nbytes)
        axes = tuple(range(tensor.ndim))
        self.add(transpose_seconds(tensor, target, axes, self.device),
                 lambda: transpose_launches(tensor, target, axes, self.device, source=tuple(place), target=tuple(to)))
        return to

    def columns(self, x, x_place, columns, place, layout):
        """im2col of some images."""
        p = self.problem
        window = p.filter, p.strides, p.pads, p.dilations, layout
        seconds = im2col_seconds(x, columns, *window, self.device)
        if layout == "NCHW" and x.strides[1] == 1 < x.strides[-1]:
            seconds += self._sectors_seconds(x, columns)
        self.add(seconds, lambda: im2col_launches(x, columns, *window, self.device, source=tuple(x_place), target=tuple(place)))

    def _sectors_seconds(self, x, columns):
        """Of pixels that lie apart: each that a thread loads is a sector of its own. A row of the image serves several outputs."""
        p = self.problem
        taps, stride, dilation, width = p.filter[2], p.strides[2], p.dilations[2], p.out[2]
        outputs = min(16 // x.itemsize, width & -width)
        loads = columns.size / (outputs * taps) * min((outputs - 1) * stride + (taps - 1) * dilation + 1, outputs * taps)
        return Cost(l2=loads * min(SECTOR, x.strides[-1] * x.itemsize) / (COST.sectors * self.device.bandwidth))

    def patches(self, place, strides, first, count):
        """The pixels of some images from their columns, where windows are those of `is_of_patches`."""
        p, sizes, read, written = self.problem, *_patch_dims(self.problem, strides, count)
        offset = first * p.x_strides[0] * p.x.itemsize
        columns = Tensor(sizes, read, p.x.dtype)
        image = Tensor(sizes, written, p.x.dtype, alignment_at(p.x.alignment, offset))
        axes = tuple(range(len(sizes)))
        self.add(transpose_seconds(columns, image, axes, self.device),
                 lambda: transpose_launches(columns, image, axes, self.device, source=tuple(place), target=("x", offset)))

    def last_pass(self, sums, target, place, first=0):
        """Sums of columns, with the convolution's epilogue."""
        p = self.problem
        config = config_of(p, sums, target, _reach(sums, target) >= 2 ** 31)
        self.add(col2im_seconds(p, sums, target, config, self.device),
                 lambda: (col2im_launch(p, sums, target, config, place, first),))


def _reach(sums, target):
    """The most elements that the columns of one channel span."""
    positions = math.prod(sums.window.positions or target.extents)
    return positions * abs(sums.strides.position) + math.prod(sums.window.taps) * abs(sums.strides.tap)


# ---- windows that do not overlap

@remembered
def is_of_patches(problem):
    """Whether each pixel of dx is in one window, and is its column: windows as large as their stride that cover the image, no epilogue."""
    p = problem
    plain = not (p.beta or p.scaled or p.residual or p.bias or p.program) and p.activation.mode == "identity"
    cover = all(r == s and n == o * s and (r == 1 or d == 1) for r, s, n, o, d in zip(p.filter, p.strides, p.image, p.out, p.dilations))
    return plain and cover and not any(p.pads_before) and p.output.dtype in (p.dtype, p.compute) and (
        len(_patch_dims(p, (1,) * 5, p.n)[0]) <= MOST_DIMENSIONS)


def _patch_dims(p, strides, count):
    """(extents, element strides in the columns, in dx) of the pixels of some images; `strides` are `ColumnStrides`."""
    outer, group, channel, tap, position = strides
    n, c, *spatial = p.x_strides
    dims = [(count, outer, n), (p.groups, group, p.c_group * c), (p.c_group, channel, c)]
    for k, (taps, out, step) in enumerate(zip(p.filter, p.out, spatial)):
        dims += [(out, position * math.prod(p.out[k + 1:]), taps * step), (taps, tap * math.prod(p.filter[k + 1:]), step)]
    return tuple(zip(*(d for d in dims if d[0] > 1))) or ((1,), (1,), (1,))


def patches_matrix(problem, last):
    """Elements from one window to the next where windows are rows of a matrix that dx is, with `last` columns; else None."""
    p = problem
    n, c, *spatial = p.x_strides
    rows = collapsed((p.n, *p.out), (n, *(r * s for r, s in zip(p.filter, spatial))))
    return rows if last and p.groups == 1 and collapsed((*p.filter, p.c), (*spatial, c)) == 1 else None


# ---- operands

def filter_matrix(plan):
    """(Tensor, Place) of the filter as (1, group, k, channels and taps in the columns' order)."""
    p = plan.problem
    k, c, *taps = p.w_strides
    place = Place("w")
    if p.flip and p.taps > 1:
        place = Place("w", sum((n - 1) * s for n, s in zip(p.filter, taps)) * p.w.itemsize)
        taps = [-s for s in taps]
    sizes, strides = ((*p.filter, p.c_group), (*taps, c)) if plan.config.last else ((p.c_group, *p.filter), (c, *taps))
    step, length = collapsed(sizes, strides), math.prod(sizes)
    shape = 1, p.groups, p.k_group, length
    if step is None or p.flip and p.taps > 1:
        tensor = Tensor((p.k, *sizes), (k, *strides), p.w.dtype, alignment_at(p.w.alignment, place.offset))
        return Tensor.packed(shape, p.w.dtype), plan.packed(tensor, place)
    return Tensor(shape, (0, k * p.k_group, k, step), p.w.dtype, p.w.alignment), place


class Pixels:
    """An array of images, pixels and channels as an operand or result of products: one of x, y and the residual, or packed sums."""

    def __init__(self, name, tensor, n, channels, extents, strides, groups):
        """`strides` along (n, channel, d, h, w)."""
        self.name, self.tensor, self.n, self.groups, self.each = name, tensor, n, groups, channels // groups
        self.outer, self.channel, self.extents = strides[0], strides[1], extents
        self.spatial = strides[2:]
        self.pixels = math.prod(extents)
        self.pixel = collapsed(extents, self.spatial)

    @classmethod
    def of(cls, problem, role):
        """x or y, or what has its shape."""
        name = problem.output_name if role == "residual" else role
        channels, extents = (problem.c, problem.image) if name == "x" else (problem.k, problem.out)
        strides = problem.residual_strides if role == "residual" else problem.x_strides if role == "x" else problem.y_strides
        return cls(role, getattr(problem, role), problem.n, channels, extents, strides, problem.groups)

    @property
    def is_matrix(self):
        """Whether the pixels of an image are one dimension in memory."""
        return self.pixel is not None

    def step_of(self, images):
        """The stride along all pixels of so many images, or None."""
        return collapsed((images, self.pixels), (self.outer, self.pixel)) if self.is_matrix else None

    def place(self, first) -> Place:
        """Where image number `first` begins."""
        return Place(self.name, first * self.outer * self.tensor.itemsize)

    def alignment(self, step):
        """Bytes to which slices of `step` images are aligned."""
        return alignment_at(self.tensor.alignment, step * self.outer * self.tensor.itemsize if step < self.n else 0)

    def matrices(self, images, step, last, merged) -> Tensor:
        """As an operand: (n, group, channel, pixel); `last`: (group, n, pixel, channel), `merged` with all n in one (1 for n). Slices begin
        at every `step`-th image."""
        group = self.each * self.channel
        alignment = self.alignment(step)
        if not last:
            return Tensor((images, self.groups, self.each, self.pixels), (self.outer, group, self.channel, self.pixel), self.tensor.dtype,
                          alignment)
        if merged:
            shape, pixel = (self.groups, 1, images * self.pixels, self.each), self.step_of(images)
            return Tensor(shape, (group, 0, pixel, self.channel), self.tensor.dtype, alignment)
        shape = self.groups, images, self.pixels, self.each
        return Tensor(shape, (group, self.outer, self.pixel, self.channel), self.tensor.dtype, alignment)

    def rows(self, images, step, last) -> Tensor:
        """As an operand with all pixels of the images in one dimension: (group, channel, pixel), or if `last` (group, pixel, channel)."""
        pixels = images * self.pixels, self.step_of(images)
        channels = self.each, self.channel
        sizes = (pixels, channels) if last else (channels, pixels)
        shape, strides = zip((self.groups, self.each * self.channel), *sizes)
        return Tensor(shape, strides, self.tensor.dtype, self.alignment(step))

    def packed(self, plan, last):
        """A packed copy in the workspace, as (n, pixels, channels) if `last`, else as (channels, n, pixels): `name` is the workspace's, and
        offsets count from its beginning."""
        n, channels = self.n, self.groups * self.each
        sizes, strides = (n, channels, *self.extents), (self.outer, self.channel, *self.spatial)
        order = (0, 2, 3, 4, 1) if last else (1, 0, 2, 3, 4)
        tensor = Tensor(tuple(sizes[a] for a in order), tuple(strides[a] for a in order), self.tensor.dtype, self.tensor.alignment)
        copy = PackedPixels(self, last)
        copy.origin = plan.packed(tensor, Place(self.name))
        return copy

    def image(self, images, step, last, group=None) -> Tensor:
        """As im2col reads it: images with channels last or first, all of them or those of one group."""
        channels = self.each if group is not None else self.groups * self.each
        offset = (group or 0) * self.each * self.channel * self.tensor.itemsize
        alignment = alignment_at(self.alignment(step), offset)
        if last:
            shape, strides = (images, *self.extents, channels), (self.outer, *self.spatial, self.channel)
        else:
            shape, strides = (images, channels, *self.extents), (self.outer, self.channel, *self.spatial)
        return Tensor(shape, strides, self.tensor.dtype, alignment)


class PackedPixels(Pixels):
    """A packed copy of pixels in the workspace, from `origin` on."""
    origin = None

    def __init__(self, source, last):
        channels = source.groups * source.each
        if last:
            outer, channel, pixel = source.pixels * channels, 1, channels
        else:
            outer, channel, pixel = source.pixels, source.n * source.pixels, 1
        strides = outer, channel, *(pixel * math.prod(source.extents[k + 1:]) for k in range(3))
        tensor = Tensor.packed((source.n * source.pixels * channels,), source.tensor.dtype)
        super().__init__("workspace", tensor, source.n, channels, source.extents, strides, source.groups)

    def place(self, first):
        return moved(self.origin, super().place(first).offset)


def moved(place, more):
    """The place so many bytes further on."""
    return Place(place.name, place.offset + more)


def addable(problem, dtype):
    """Whether a product of this problem's types can add an array of this type to its result."""
    tensor = Tensor((), (), dtype)
    try:
        check_addend(problem.op, "c", tensor, problem.dtype)
    except TypeError:
        return False
    return True


def slices(problem, images):
    """(first image, how many) of each part of the batch."""
    return [(first, min(images, problem.n - first)) for first in range(0, problem.n, images)]
