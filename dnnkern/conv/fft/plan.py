"""What `fft` and `fft_tiling` share: a direction as arrays to transform, the workspace, the launches, the predicted time.

In every direction two arrays are transformed, multiplied frequency by frequency, and the product is transformed back::

    conv_fwd         y  of x's tiles and w      sum over c
    conv_bwd_data    dx of dy's tiles and w     sum over k, w rotated by 180 degrees
    conv_bwd_filter  dw of dy's and x's tiles   sum over tiles

all of them as correlations, X * conj(W). Where the spectra of all tiles exceed a bound of the workspace, tiles are processed in slices one
after another, which in conv_bwd_filter add to the same spectra.
"""
from dataclasses import dataclass, replace

from ...device.convert import element
from ...device.index import Divisor, ceil_div, divisor
from ...engine.constants import constants
from ...engine.cost import LANES, Cost, issue_seconds, overlap
from ...host.dtypes import ITEMSIZE
from ...host.launch import Argument, Launch
from ...host.memo import remembered
from .._parameters import PlaneStrides
from . import product as _fft_product, tiles as _fft_tiles
from .product import Tile
from .tiles import AnalysisSizes, Lines, SynthesisSizes

COST = constants("conv/fft")

BOUNDS = (1 << 30, 1 << 27)
"""Bytes of spectra that are held at once, or those of the fewest tiles that make a slice."""
LINE = 256

# Tile: multiply-adds of all instructions in its loop, times how well the blocks of a multiprocessor hide their loads.
TILES = {Tile(128, 64, tn=8): 0.80, Tile(64, 64, blocks=3): 0.78, Tile(64, 32, blocks=6): 0.74, Tile(32, 32, blocks=12): 0.68}


@dataclass(frozen=True)
class Side:
    """An array as `outer` images of `channels` planes.

    Attributes
    ----------
    name : str
        Of the array, as the problem has it.
    first : int
        Element where (0, 0, 0, 0) is.
    strides : PlaneStrides
        Along (outer, channel, h, w).
    extents : tuple of int
        (h, w).
    """
    name: str
    outer: int
    channels: int
    extents: tuple
    strides: PlaneStrides
    first: int = 0


@dataclass(frozen=True)
class Cut:
    """How images are divided into tiles, along (h, w): `count` tiles of an image are `step` apart, the first begins `pad` elements before
    the image; `used` elements of each are read, the others are zero."""
    count: tuple
    step: tuple
    pad: tuple
    used: tuple

    @property
    def per_image(self):
        return self.count[0] * self.count[1]


@dataclass(frozen=True)
class Correlation:
    """A direction: the two arrays that are transformed, a in tiles, the result, window and padding; `taps` along h and w."""
    a: Side
    b: Side
    y: Side
    items: bool
    taps: tuple
    pads: tuple
    pads_after: tuple
    windows: tuple

    @property
    def image(self):
        """The array that the taps reach over the borders of."""
        return self.a if self.items else self.b


def _plane(five):
    n, c, _, h, w = five
    return PlaneStrides(n, c, h, w)


@remembered
def correlation(problem) -> Correlation:
    """The correlation that a problem is. `windows` are the extents of what the taps slide over: the result, or dy."""
    p, taps = problem, problem.filter[1:]
    x = Side("x", p.n, p.c, p.image[1:], _plane(p.x_strides))
    y = Side("y", p.n, p.k, p.out[1:], _plane(p.y_strides))
    sk, sc, sr, ss = _plane(p.w_strides)
    last = (taps[0] - 1) * sr + (taps[1] - 1) * ss
    backward = p.op == "conv_bwd_data"
    strides, first = (PlaneStrides(sk, sc, -sr, -ss), last) if p.flip != backward else (PlaneStrides(sk, sc, sr, ss), 0)
    w = Side("w", p.k, p.c, taps, strides, first)
    pads = p.pads_before[1:], p.pads_after[1:]
    if p.op == "conv_fwd":
        return Correlation(x, w, y, True, taps, *pads, y.extents)
    if backward:
        w = replace(w, outer=p.c, channels=p.k, strides=strides._replace(n=strides.c, c=strides.n))
        pads = (tuple(r - 1 - pad for r, pad in zip(taps, side)) for side in pads)
        return Correlation(y, w, x, True, taps, *pads, x.extents)
    return Correlation(y, x, w, False, taps, *pads, y.extents)


def refusal(problem):
    """Why no transform computes a problem, or None."""
    p = problem
    if p.dtype != "float32" or p.w.dtype != "float32" and p.op != "conv_bwd_filter":
        return f"dtype {p.dtype}; the transforms are in float32"
    if p.image[0] != 1 or p.filter[0] != 1 or any(p.pads[0]):
        return f"three dimensions: the image's depth is {p.image[0]}, the filter's {p.filter[0]}, the padding {p.pads[0]}"
    for name, values in (("stride", p.strides), ("dilation", p.dilations)):
        if values != (1, 1, 1):
            return f"{name} {values[1]}x{values[2]}; the transforms take every pixel, that is 1"
    if p.groups != 1:
        return f"{p.groups} groups; the products are over all channels"
    length = {"conv_fwd": p.c, "conv_bwd_data": p.k, "conv_bwd_filter": p.n * p.x.size}[p.op]
    if length == 0:
        return "nothing to sum over"
    if max(*p.image, *p.out, p.c, p.k) >= 2 ** 30 or p.pixels >= 2 ** 30 or p.n * p.image[1] * p.image[2] >= 2 ** 30:
        return f"{p.pixels} pixels, extents {p.image[1:]} and {p.out[1:]}, {p.c} and {p.k} channels; tiles are counted to 2**30"
    return None


def products(problem, device, extents, whole):
    """Configurations of both algorithms for one extent of the transform: tiles of the products, frequencies of a block, bounds of the
    workspace.

    A block takes as many frequencies as leave work for every multiprocessor; or many, for problems so small that starting blocks is all.
    """
    found = []
    for tile in TILES:
        for bound in BOUNDS:
            plan = Plan(problem, Config(*extents, whole, tile, 1, bound))
            rows, columns, _ = plan.product(min(plan.slice, plan.items))
            blocks = ceil_div(rows, tile.bm) * ceil_div(columns, tile.bn) * plan.frequencies
            room = device.sms * tile.blocks
            groups = {max(1, min(blocks // (room * max(1, round(blocks / room / 8))), plan.frequencies)), 32}
            found += [Config(*extents, whole, tile, group, bound) for group in sorted(groups)]
    return found


@remembered
def least_seconds(problem, device, extents, whole):
    """What no configuration with these extents of the transform is below."""
    return Plan(problem, Config(*extents, whole, next(iter(TILES)), 1, max(BOUNDS))).least_seconds(device)


@dataclass(frozen=True)
class Config:
    """A configuration of both algorithms.

    Attributes
    ----------
    lh, lw : int
        Extents of the transform; lh = 1 for lines.
    whole : int
        1: a tile is the whole image, and the results wrap round it.
    tile : Tile
        Of the products.
    group : int
        Frequencies that a block multiplies, one after the other.
    bound : int
        Bytes of spectra that are held at once.
    """
    lh: int
    lw: int
    whole: int
    tile: Tile
    group: int
    bound: int

    def __str__(self):
        return f"{self.lh}x{self.lw} {self.tile} g{self.group} {self.bound >> 20}MB"


def _pitch(channels):
    """Channels of a spectrum: an even number, so that two of them are 16 bytes."""
    return channels + channels % 2


def _lines(config, side):
    """How blocks share the tiles of an array."""
    last = int(side.strides.c == 1 and side.strides.w != 1)
    ch = 8 if config.lh == 1 or max(config.lh, config.lw) <= 32 else 4
    return Lines(config.lh, config.lw, ch, last, 16 if config.lh == 1 else config.lh)


def _bytes(count):
    """Of so many complex numbers, in whole lines."""
    return ceil_div(8 * count, LINE) * LINE


class Plan:
    """Everything about one problem under one configuration."""

    def __init__(self, problem, config):
        c = self.c = correlation(problem)
        self.problem, self.config = problem, config
        extents, results = (config.lh, config.lw), tuple(length - r + 1 for length, r in zip((config.lh, config.lw), c.taps))
        if config.whole:
            self.step, count = c.windows, (1, 1)
        else:
            self.step, count = results, tuple(ceil_div(w, m) for w, m in zip(c.windows, results))
        if config.lh == 1:  # the rows of an image are tiles of their own
            self.step, count = (1, self.step[1]), (c.windows[0], count[1])
        origin = tuple(0 if config.whole and length > 1 else pad for length, pad in zip(extents, c.pads))
        one = Cut((1, 1), (0, 0), (0, 0), extents)
        tiles = Cut(count, self.step, origin, extents)
        # the window of a gradient's sum: what of dy is this tile's
        windows = Cut(count, self.step, (0, 0), tuple(min(s, length) for s, length in zip(self.step, extents)))
        self.cut_a, self.cut_b = (tiles, one) if c.items else (windows, tiles)
        self.cut_y = tiles if c.items else one
        self.shift = tuple(pad % length if config.whole and length > 1 else 0 for pad, length in zip(c.pads, extents))
        self.kept = tuple(self.step) if c.items else c.taps
        self.lines = {side.name: _lines(config, side) for side in (c.a, c.b, c.y)}
        self.frequencies = self.lines[c.a.name].frequencies
        self.items = c.image.outer * tiles.per_image
        self.pitches = tuple(_pitch(side.channels) for side in (c.a, c.b, c.y))
        self.slice = self._slice()

    def _slice(self):
        """Items of a slice: what fits into the bound, in whole blocks of the product's tile."""
        per_item = 8 * self.frequencies * (self.pitches[0] + (self.pitches[2] if self.c.items else self.pitches[1]))
        least = self.config.tile.bm
        fits = max(self.config.bound // per_item // least, 1) * least
        return self.items if fits >= self.items else ceil_div(ceil_div(self.items, ceil_div(self.items, fits)), 16) * 16

    @property
    def slices(self):
        return ceil_div(self.items, self.slice)

    @property
    def regions(self):
        """Bytes of the spectra of a, b and y in the workspace."""
        c, f = self.c, self.frequencies
        items = (self.slice, c.b.outer, self.slice) if c.items else (self.slice, self.slice, c.y.outer)
        return tuple(_bytes(f * n * pitch) for n, pitch in zip(items, self.pitches))

    @property
    def workspace(self):
        return sum(self.regions)

    # ---- launches

    def _geometry(self, cut, lines, items, channels):
        blocks_c = ceil_div(channels, lines.ch)
        grid = (ceil_div(items, lines.rows) if lines.lh == 1 else items) * blocks_c
        return grid, tuple(Argument(Divisor, divisor(v)) for v in (blocks_c, cut.per_image, cut.count[1]))

    def _analysis(self, side, cut, offset, first, end, stride):
        lines, pitch = self.lines[side.name], _pitch(side.channels)
        grid, divisors = self._geometry(cut, lines, end - first, side.channels)
        tensor = getattr(self.problem, side.name)
        size = AnalysisSizes(side.channels, pitch, *side.extents, *cut.used, *cut.step, *cut.pad)
        arguments = (Argument(element(tensor.dtype).pointer, side.name, offset=side.first * ITEMSIZE[tensor.dtype]),
                     Argument("float32*", "workspace", offset=offset), Argument("int32", first), Argument("int32", end), *divisors,
                     Argument(AnalysisSizes, size), Argument(PlaneStrides, side.strides), Argument("int64", stride))
        return Launch(_fft_tiles.analyse(_fft_tiles.Config(lines)), (grid, 1, 1), (lines.threads, 1, 1), arguments, shared=lines.shared)

    def _synthesis(self, offset, first, end, stride):
        c, p = self.c, self.problem
        lines, cut = self.lines[c.y.name], self.cut_y
        grid, divisors = self._geometry(cut, lines, end - first, c.y.channels)
        size = SynthesisSizes(c.y.channels, self.pitches[2], *c.y.extents, *cut.step, *self.kept, *self.shift)
        itemsize = ITEMSIZE[p.output.dtype]
        residual = _plane(p.residual_strides)
        alpha, beta, bias, bias_stride, prior, *others = p.epilogue_arguments((0, c.y.strides.c), (0, residual.c))
        prior = replace(prior, offset=c.y.first * itemsize)  # what beta reads, where the results are stored
        arguments = (Argument("float32*", "workspace", offset=offset), replace(p.pointer(c.y.name), offset=c.y.first * itemsize),
                     Argument("int32", first), Argument("int32", end), *divisors, Argument(SynthesisSizes, size),
                     Argument(PlaneStrides, c.y.strides), Argument(PlaneStrides, residual), Argument("int64", stride), alpha, beta, bias,
                     bias_stride, prior, *others)
        kernel = _fft_tiles.synthesise(_fft_tiles.Config(lines, p.epilogue))
        return Launch(kernel, (grid, 1, 1), (lines.threads, 1, 1), arguments, shared=lines.shared)

    def _product(self, offsets, rows, columns, length, strides, accumulate):
        tile, group = self.config.tile, self.config.group
        blocks_m, blocks_n = ceil_div(rows, tile.bm), ceil_div(columns, tile.bn)
        grid = blocks_m * blocks_n * ceil_div(self.frequencies, group)
        arguments = (*(Argument("float32*", "workspace", offset=o) for o in offsets),
                     *(Argument("int32", v) for v in (rows, columns, length, ceil_div(length, tile.bk), self.frequencies, group)),
                     Argument(Divisor, divisor(blocks_m * blocks_n)), Argument(Divisor, divisor(blocks_n)),
                     Argument("int32x3", self.pitches), Argument("int64x3", strides))
        kernel = _fft_product.kernel(_fft_product.Config(tile, int(self.c.items), int(accumulate)))
        return Launch(kernel, (grid, 1, 1), (tile.threads, 1, 1), arguments, shared=tile.shared)

    def product(self, count):
        """(rows, columns, length of the sums) of the product of one frequency for `count` items of a slice."""
        c = self.c
        return (count, c.b.outer, c.a.channels) if c.items else (c.a.channels, c.b.channels, count)

    def launches(self):
        """All of them, in order."""
        c, (a_bytes, b_bytes, _), found = self.c, self.regions, []
        at_a, at_b, at_y = 0, a_bytes, a_bytes + b_bytes
        pitch_a, pitch_b, pitch_y = self.pitches
        outer = c.b.outer if c.items else c.y.outer
        if c.items:
            found.append(self._analysis(c.b, self.cut_b, at_b, 0, outer, outer * pitch_b))
        for first in range(0, self.items, self.slice):
            end = min(first + self.slice, self.items)
            count = end - first
            found.append(self._analysis(c.a, self.cut_a, at_a, first, end, count * pitch_a))
            if c.items:
                strides = count * pitch_a, outer * pitch_b, count * pitch_y
                found.append(self._product((at_a, at_b, at_y), count, outer, c.a.channels, strides, False))
                found.append(self._synthesis(at_y, first, end, count * pitch_y))
            else:
                found.append(self._analysis(c.b, self.cut_b, at_b, first, end, count * pitch_b))
                strides = count * pitch_a, count * pitch_b, outer * pitch_y
                found.append(self._product((at_a, at_b, at_y), c.a.channels, c.b.channels, count, strides, first > 0))
        if not c.items:
            found.append(self._synthesis(at_y, 0, outer, outer * pitch_y))
        return tuple(found)

    # ---- predicted time

    def least_seconds(self, device):
        """What `seconds` is not below, whatever the tile, and whether or not there are slices."""
        c, f, length = self.c, self.frequencies, max(self.config.lh * self.config.lw, 1)
        rows, columns, k = self.product(self.items)
        work = 4 * f * rows * columns * k / (LANES * max(TILES.values())) / (device.sms * device.clock_hz)
        product = max(work, 8 * f * (rows * k + columns * k + rows * columns) / device.bandwidth)
        other = c.b if c.items else c.y
        sides = (self.items, self.pitches[0]), (self.items, self.pitches[2 if c.items else 1]), (other.outer, _pitch(other.channels))
        return float(COST.start + COST.launch + product + sum(self._transform(device, *side, length) for side in sides))

    def seconds(self, device):
        """Each launch by what bounds it: bytes of images and spectra, or multiply-adds in waves of tiles."""
        c, tile, group, f = self.c, self.config.tile, self.config.group, self.frequencies
        length = max(self.config.lh * self.config.lw, 1)
        total = Cost()
        for first in range(0, self.items, self.slice):
            count = min(self.slice, self.items - first)
            rows, columns, k = self.product(count)
            blocks = ceil_div(rows, tile.bm) * ceil_div(columns, tile.bn) * ceil_div(f, group)
            waves = ceil_div(blocks, device.sms * tile.blocks)
            steps = group * ceil_div(k, tile.bk)
            work = steps * 4 * tile.bk * tile.bm * tile.bn / LANES / TILES[tile] * tile.blocks + COST.block
            moved = 8 * f * (rows * k + columns * k + rows * columns * (1 if c.items else 3))
            total += Cost(launch=COST.launch) + overlap(math=waves * work / device.clock_hz, memory=moved / device.bandwidth)
            sides = (self.pitches[0], self.pitches[2 if c.items else 1])
            total += sum(self._transform(device, count, pitch, length) for pitch in sides)
        other = c.b if c.items else c.y
        return Cost(launch=COST.start) + total + self._transform(device, other.outer, _pitch(other.channels), length)

    def _transform(self, device, items, pitch, length):
        """Pixels on one side, spectra on the other, at a share of the memory's speed; or instructions of pixels."""
        channels = ceil_div(pitch, 8) * 8
        moved = items * channels * (4 * length + 8 * self.frequencies)
        work = issue_seconds(items * channels * length, COST.pixel, device)
        return Cost(launch=COST.launch, transform=max(moved / (COST.rate * device.bandwidth), work))
