"""Convolutions on Hopper's tensor cores: axes along which windows walk over an image, and tensor maps of the arrays.

A window walks over an image: over x with the filter's taps in conv_fwd and conv_bwd_filter, over dy with the taps in the opposite order in
conv_bwd_data. TMA in im2col mode loads pixels in that walk: a copy is a column of pixels, shifted by the tap's offset, with zeros outside.

With a stride s, conv_bwd_data has s residue classes of pixels of x per axis, those whose coordinates have the same remainder: each is a
walk of stride 1 over dy that reads every s-th tap. All classes have as many positions as the first (the last may be outside x) and begin at
the same pixel of dy, so one map and one launch serve them all.
"""
import math
from dataclasses import dataclass, replace

from ...device.index import ceil_div
from ...engine.hopper import ROW
from ...engine.hopper_plan import wgmma_dtype
from ...host.launch import Argument
from ...host.tensormap import Im2colMap, TensorMap

MOST_OFFSET = {3: 2 ** 16 - 1, 4: 2 ** 8 - 1, 5: 2 ** 5 - 1}
"""Rank of an im2col map -> greatest offset of a tap, along any axis."""
CORNERS = {3: 2 ** 15, 4: 2 ** 7, 5: 2 ** 4}
"""Rank -> limit of the corners of the box of pixels: from minus this to below it."""


@dataclass(frozen=True)
class Axis:
    """A spatial axis of a walk.

    Position `i` of class `residue` reads image pixel ``lower + i * step + offset`` with the tap ``first_tap + j * tap_step`` at ``offset =
    first_offset + j * offset_step``, j from 0 to `taps` - 1; the result's pixel is ``residue + i * pitch``. With one class these are the
    fields' values, else those of `residues` come from `classes`.

    Attributes
    ----------
    image, count, out : int
        Pixels of the image that is read, positions of a class, pixels of the result.
    lower, step : int
    taps, first_tap, tap_step, first_offset, offset_step : int
        Of the class with the most taps, which is the first.
    reach : int
        Greatest offset.
    pitch : int
        Pixels of the result from one position of a class to the next; as many classes are there.
    filter, dilation, padding : int
        Of the convolution.
    flip : bool
        Taps are counted backwards in w.
    """
    image: int
    count: int
    out: int
    lower: int
    step: int
    taps: int
    first_tap: int
    tap_step: int
    first_offset: int
    offset_step: int
    reach: int
    pitch: int
    filter: int
    dilation: int
    padding: int
    flip: bool

    @property
    def upper(self):
        """Where the box of first pixels ends, counted from the image's last: so that `count` positions fit."""
        return self.lower + (self.count - 1) * self.step - (self.image - 1)

    @property
    def period(self):
        """Taps from one of a class to its next."""
        return self.pitch // math.gcd(self.pitch, self.dilation)

    @property
    def is_trivial(self):
        """One pixel and one tap: the axis might as well not be there."""
        return self.image == self.count == self.out == self.filter == self.pitch == 1 and self.lower == 0

    def class_of(self, number):
        """(residue, taps, first tap, first offset) of a class; with no taps the last two say nothing."""
        a, first = divmod(number, self.period)
        shift = ceil_div(self.padding, self.pitch)
        quotient, residue = divmod(first * self.dilation + a + shift * self.pitch - self.padding, self.pitch)
        taps = ceil_div(max(self.filter - first, 0), self.period) if a == 0 else 0
        return residue, taps, self.filter - 1 - first if self.flip else first, shift - quotient - self.lower


def forward_axes(problem):
    """The three axes of the walk of the filter over x, of conv_fwd and conv_bwd_filter."""
    axes = []
    for image, out, taps, step, pad, dilation in zip(problem.image, problem.out, problem.filter, problem.strides, problem.pads_before,
                                                     problem.dilations):
        reach = (taps - 1) * dilation
        first, hop = (taps - 1, -1) if problem.flip else (0, 1)
        axes.append(Axis(image, out, out, -pad, step, taps, first, hop, 0, dilation, reach, 1, taps, dilation, pad, problem.flip))
    return tuple(axes)


def backward_axes(problem):
    """The three axes of the walk over dy of conv_bwd_data."""
    axes = []
    for image, out, taps, stride, pad, dilation in zip(problem.out, problem.image, problem.filter, problem.strides, problem.pads_before,
                                                       problem.dilations):
        period = stride // math.gcd(stride, dilation)
        hop = dilation * period // stride  # pixels of dy from one tap of a class to its next
        axis = Axis(image, ceil_div(out, stride), out, 0, 1, ceil_div(taps, period), 0, -period if problem.flip else period, 0, -hop, 0,
                    stride, taps, dilation, pad, problem.flip)
        classes = [axis.class_of(number) for number in range(min(period, taps))]
        lower = min(first - (count - 1) * hop for _, count, _, first in classes)
        axis = replace(axis, lower=lower, reach=max(first for *_, first in classes) - lower)
        _, _, first_tap, first_offset = axis.class_of(0)
        axes.append(replace(axis, first_tap=first_tap, first_offset=first_offset))
    return tuple(axes)


def walk_of(problem):
    """The axes of a problem's walk that matter, outermost first; the last one always does."""
    axes = backward_axes(problem) if problem.op == "conv_bwd_data" else forward_axes(problem)
    while len(axes) > 1 and axes[0].is_trivial:
        axes = axes[1:]
    return axes


def walk_refusal(axes, letters="dhw"):
    """Why TMA cannot load pixels in this walk, or None."""
    rank = len(axes) + 2
    bound = CORNERS[rank]
    for axis, letter in zip(axes, letters[-len(axes):]):
        if axis.step > 8:
            return f"a stride of {axis.step} along {letter}; TMA steps over 8 pixels at most"
        if axis.reach > MOST_OFFSET[rank]:
            return f"taps up to {axis.reach} pixels apart along {letter}; in {rank - 2}-D TMA reaches over {MOST_OFFSET[rank]}"
        if not (-bound <= axis.lower < bound and -bound <= axis.upper < bound):
            return (f"windows from {axis.lower} to {axis.upper} beyond the image's last pixel along {letter}; in {rank - 2}-D TMA takes "
                    f"{-bound} to {bound - 1}")
    return None


@dataclass(frozen=True)
class Image:
    """The array that windows walk over, as TMA reads it.

    Attributes
    ----------
    name : str
        The plan's name of it.
    tensor : Tensor
    images, channels : int
    pixels : tuple of int
        Extents of the walk's axes.
    strides : tuple of int
        In elements along images, pixels and channels, as it lies.
    packed : bool
        Whether it is copied to the workspace first, pixel by pixel.
    """
    name: str
    tensor: object
    images: int
    channels: int
    pixels: tuple
    strides: tuple
    packed: bool

    @property
    def shape(self):
        return (self.images, *self.pixels, self.channels)

    @property
    def read_strides(self):
        """Of the array, or its copy."""
        return padded_strides(self.shape, self.tensor.itemsize) if self.packed else self.strides

    @property
    def crosses(self):
        """See `crosses_lines`."""
        return crosses_lines(self)

    @property
    def bytes(self):
        """Of the copy."""
        return padded_bytes(self.shape, self.tensor.itemsize) if self.packed else 0

    def argument(self, axes, pixels, offset, channels=None):
        """The im2col map of columns of `pixels` pixels, so many channels each, or 128 bytes; `offset` is the copy's in the workspace."""
        itemsize, dtype = self.tensor.itemsize, "uint8" if self.tensor.dtype == "bool" else self.tensor.dtype
        channels = channels or ROW // itemsize
        spec = Im2colMap(dtype, self.shape, any_stride(self.shape, self.read_strides, itemsize), tuple(a.lower for a in axes),
                         tuple(a.upper for a in axes), channels, pixels, channels * itemsize, (1, *(a.step for a in axes), 1))
        return map_argument(self, offset, spec)


def map_argument(array, offset, spec):
    """The tensor map of an array, or of its copy at byte `offset` of the workspace."""
    return Argument("tensormap", "workspace" if array.packed else array.name, offset=offset if array.packed else 0, spec=spec)


def make_image(problem, axes, name):
    """`Image` of x or y."""
    tensor = getattr(problem, name)
    n, c, *pixels = problem.x_strides if name == "x" else problem.y_strides
    extents = problem.image if name == "x" else problem.out
    channels = problem.c if name == "x" else problem.k
    dims = len(axes)
    shape, strides = (problem.n, *extents[3 - dims:], channels), (n, *pixels[3 - dims:], c)
    return Image(name, tensor, problem.n, channels, shape[1:-1], strides, not is_addressable(tensor, shape, strides))


def is_addressable(tensor, shape, strides):
    """Whether TMA can read an array: the last dimension contiguous, all others multiples of 16 bytes apart."""
    return (tensor.alignment % 16 == 0 and (strides[-1] == 1 or shape[-1] == 1)
            and all(n == 1 or 0 <= s * tensor.itemsize < 2 ** 40 and s * tensor.itemsize % 16 == 0 for n, s in zip(shape[:-1], strides)))


def any_stride(shape, strides, itemsize):
    """The strides of a map: those of dimensions of one element do not matter and become ones it takes."""
    return (*(16 // itemsize if n == 1 else s for n, s in zip(shape[:-1], strides)), 1)


def crosses_lines(array):
    """Whether what a step reads of a row of an array, or of its copy, may lie in two lines of the L2, since rows begin anywhere in them."""
    steps = [s * array.tensor.itemsize for n, s in zip(array.shape, array.read_strides) if n > 1 and s != 1]
    contiguous = next((n for n, s in zip(array.shape, array.read_strides) if s == 1), 1)
    return min(ROW, contiguous * array.tensor.itemsize) > math.gcd(ROW, *steps)


def padded_strides(shape, itemsize):
    """Row-major strides, in elements, of an array whose rows begin at multiples of 16 bytes, and of more than 128 at lines of the L2."""
    per = (ROW if shape[-1] * itemsize > ROW else 16) // itemsize
    strides, step = [1], ceil_div(shape[-1], per) * per
    for n in reversed(shape[1:-1]):
        strides.append(step)
        step *= n
    return tuple(reversed([*strides, step]))


def padded_bytes(shape, itemsize):
    """Bytes of such an array, whole lines of 256."""
    return ceil_div(shape[0] * padded_strides(shape, itemsize)[0] * itemsize, 256) * 256


@dataclass(frozen=True)
class Filter:
    """w as the product's right operand: `outer` is its column (k, or c of a group in conv_bwd_data), `inner` what is summed over.

    Attributes
    ----------
    tensor : Tensor
    shape, strides : tuple of int
        (outer, taps along the walk's axes, inner) as it lies.
    major : "k" or "mn"
        Whether `inner` or `outer` is contiguous, in w or in its copy.
    packed : bool
        Whether it is copied to the workspace, contiguous along `inner`.
    """
    tensor: object
    shape: tuple
    strides: tuple
    major: str
    packed: bool
    name = "w"

    @property
    def read_strides(self):
        """Of w or its copy."""
        return padded_strides(self.shape, self.tensor.itemsize) if self.packed else self.strides

    @property
    def crosses(self):
        """See `crosses_lines`."""
        return crosses_lines(self)

    @property
    def bytes(self):
        """Of the copy."""
        return padded_bytes(self.shape, self.tensor.itemsize) if self.packed else 0

    def argument(self, columns, offset):
        """The tiled map of boxes of `columns` columns by 128 bytes of what is summed over; where w is contiguous along columns, of 64."""
        itemsize, ones = self.tensor.itemsize, (1,) * (len(self.shape) - 2)
        bk = ROW // itemsize
        shape, strides, box = self.shape, self.read_strides, (columns, *ones, bk)
        if self.major == "mn":
            shape, strides = (self.shape[-1], *self.shape[1:-1], self.shape[0]), (strides[-1], *strides[1:-1], strides[0])
            box = (bk, *ones, 64)
        return map_argument(self, offset, TensorMap(self.tensor.dtype, shape, any_stride(shape, strides, itemsize), box, 128))


def make_filter(problem, axes):
    """`Filter` of the product that conv_fwd or conv_bwd_data is."""
    tensor, dims = problem.w, len(axes)
    k, c, *taps = problem.w_strides
    outer, inner = (problem.k, k), (problem.c_group, c)
    if problem.op == "conv_bwd_data":
        outer, inner = inner, outer
    shape, strides = (outer[0], *problem.filter[3 - dims:], inner[0]), (outer[1], *taps[3 - dims:], inner[1])
    swapped = (shape[-1], *shape[1:-1], shape[0]), (strides[-1], *strides[1:-1], strides[0])
    if is_addressable(tensor, shape, strides):
        return Filter(tensor, shape, strides, "k", False)
    if is_addressable(tensor, *swapped) and wgmma_dtype(tensor.dtype, problem.math) in ("float16", "bfloat16"):
        return Filter(tensor, shape, strides, "mn", False)
    return Filter(tensor, shape, strides, "k", True)
