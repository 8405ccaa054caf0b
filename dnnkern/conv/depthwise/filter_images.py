"""dw of depthwise convolutions on small images, channels last: a thread has a whole image of one channel in its registers.

    lanes: 32 neighbouring channels      warps: images      blocks: groups of 32 channels, and splits of the batch

Each row of dy meets every row of x under some tap, so nothing is read twice, and pixels outside the image cost nothing: which products
there are is known when the kernel is compiled. 7x7 taps on 7x7 pixels are 1369 multiply-adds of 2401. A block's warps add their sums in
shared memory, in order; `filter_kernel.reduce_kernel` adds those of the splits.
"""
import functools
from dataclasses import dataclass

from ...device import cuda, device_function, jit
from ...device.convert import element
from ...device.groups import scalar_of
from ...device.index import Divisor, ceil_div, divide_remainder, divisor, divmod_unsigned
from ...device.unroll import unrolled
from ...device.vec import advance
from ...engine.constants import constants
from ...engine.cost import Cost, contend, sm_issue_seconds
from ...host.launch import Argument, Launch
from ...host.memo import remembered

COST = constants("conv/depthwise_images")

WARP, WARPS, BLOCKS = 32, 4, 3  # lanes, warps of a block, blocks of a multiprocessor
VALUES = 150                    # of x, dy and dw that a thread has in registers
PITCH = WARP + 1                # of a tap's sums in shared memory, so that neighbouring taps are in neighbouring banks
LIMIT = 2 ** 31


@dataclass(frozen=True)
class ImagesConfig:
    """A block: warps, one image each at a time."""
    warps: int = WARPS

    def __str__(self):
        return f"images {self.warps} warps"


@dataclass(frozen=True)
class Images:
    """What the kernel is compiled for: type, extents of x, dy and the filter, leading padding, taps backwards."""
    dtype: str
    warps: int
    height: int
    width: int
    out_height: int
    out_width: int
    rows: int
    columns: int
    top: int
    left: int
    flip: int

    @property
    def taps(self):
        return self.rows * self.columns

    @property
    def products(self):
        """Multiply-adds of an image."""
        def pairs(size, out, taps, pad):
            return sum(0 <= p + r - pad < size for p in range(out) for r in range(taps))
        return (pairs(self.height, self.out_height, self.rows, self.top) * pairs(self.width, self.out_width, self.columns, self.left))


@remembered
def image_configs(p):
    """One, where an image of a channel fits the registers of a thread."""
    (depth, high, wide), (out_depth, out_high, out_wide), (planes, rows, columns) = p.image, p.out, p.filter
    plain = depth == out_depth == planes == 1 and not any(p.pads[0]) and p.strides == p.dilations == (1, 1, 1)
    last = p.k == p.c and p.x_strides[1] == p.y_strides[1] == 1 and p.dtype in ("float32", "float16", "bfloat16")
    fits = high * wide + out_high * out_wide + rows * columns <= VALUES and min(high, wide) > 1
    reach = max(abs(s) * n for strides, sizes in ((p.x_strides, p.image), (p.y_strides, p.out)) for s, n in zip(strides[2:], sizes))
    return [ImagesConfig()] if plain and last and fits and reach < LIMIT else []


def _splits(p, device, config):
    """Of the batch: a warp has an image, or as many as fill the device once."""
    groups = ceil_div(p.c, WARP)
    return max(1, min(ceil_div(p.n, config.warps), BLOCKS * device.sms // groups))


def image_workspace(p, device, config):
    """The sums of all splits."""
    return _splits(p, device, config) * p.k * p.taps * 4


def _images(p, config):
    return Images(p.dtype, config.warps, *p.image[1:], *p.out[1:], *p.filter[1:], *p.pads_before[1:], int(p.flip))


def image_estimate(p, device, config):
    """Instructions of the images of a multiprocessor, or the bytes; loads that an image waits for; the sums."""
    body, splits = _images(p, config), _splits(p, device, config)
    blocks = ceil_div(p.c, WARP) * splits
    turns = ceil_div(p.n, splits * config.warps)
    instructions = body.products + COST.element * (body.height * body.width + body.out_height * body.out_width) + COST.tap * body.taps
    work = sm_issue_seconds(ceil_div(blocks, device.sms) * config.warps * WARP * turns * instructions, device)
    sums = COST.sum_launch + image_workspace(p, device, config) * 2 / device.bandwidth
    images = contend(2, issue=work, memory=p.bytes / (COST.rate * device.bandwidth), waits=turns * COST.wait)
    return (Cost(launch=COST.start, reduction=sums) + images).slowed(slower=COST.slower)


def images_launch(p, device, config):
    """(splits, the launch of the partial sums)."""
    body, splits, groups = _images(p, config), _splits(p, device, config), ceil_div(p.c, WARP)
    x, y = p.x_strides, p.y_strides
    numbers = (*(Argument("int32", v) for v in (p.n, splits, p.c)), Argument("int64", p.c * p.taps), Argument(Divisor, divisor(groups)),
               Argument("int64", x[0]), *(Argument("int32", v) for v in x[3:]),
               Argument("int64", y[0]), *(Argument("int32", v) for v in y[3:]))
    return splits, Launch(images_kernel(body), (groups * splits, 1, 1), (config.warps * WARP, 1, 1),
                          (p.pointer("x"), p.pointer("y"), Argument("float32*", "workspace"), *numbers))


@functools.cache
def images_kernel(body):
    """The sums of a block: 32 channels, and every image of its split."""
    T, load = scalar_of(body.dtype), element(body.dtype).load
    H, W, P, Q, R, S = body.height, body.width, body.out_height, body.out_width, body.rows, body.columns
    TOP, LEFT, TAPS, FLIP, LANES, THREADS = body.top, body.left, body.taps, body.flip, body.warps, body.warps * WARP
    SHARED, ELEMENTS = LANES * TAPS * PITCH, TAPS * WARP

    @device_function
    def fetch_x(k, s):
        values, image, row, column = s
        values[k] = load(advance(image, k // W * row + k % W * column), 0)

    @device_function
    def fetch_dy(k, s):
        values, image, row, column = s
        values[k] = load(advance(image, k // Q * row + k % Q * column), 0)
    fetch_image, fetch_gradient = unrolled(H * W, fetch_x), unrolled(P * Q, fetch_dy)

    @device_function
    def add_row(k, s):
        """A row of dy under a row of taps."""
        acc, pixels, gradient = s
        p, r = k // R, k % R
        h = p + r - TOP
        if h >= 0 and h < H:
            for t in range(S):
                for q in range(Q):
                    w = q + t - LEFT
                    if w >= 0 and w < W:
                        acc[r * S + t] += gradient[p * Q + q] * pixels[h * W + w]
    add_rows = unrolled(P * R, add_row)

    @jit(launch_bounds=(THREADS, BLOCKS))
    def conv_depthwise_images(x, dy, partial, images, splits, channels, elements, groups, x_image, x_row, x_column, y_image, y_row,
                              y_column):
        shared = cuda.shared.array(SHARED, T)
        acc, pixels, gradient = cuda.local.array(TAPS, T), cuda.local.array(H * W, T), cuda.local.array(P * Q, T)
        tid = cuda.threadIdx.x
        lane, warp = tid & 31, tid >> 5
        split, group = divide_remainder(cuda.blockIdx.x, groups)
        first = group * WARP
        channel = first + lane
        for a in range(TAPS):
            acc[a] = 0
        if channel < channels:
            for n in range(split * LANES + warp, images, splits * LANES):
                fetch_image(0, (pixels, advance(x, n * x_image + channel), x_row, x_column))
                fetch_gradient(0, (gradient, advance(dy, n * y_image + channel), y_row, y_column))
                add_rows(0, (acc, pixels, gradient))
        for a in range(TAPS):
            shared[(warp * TAPS + a) * PITCH + lane] = acc[a]
        cuda.syncthreads()
        sums = advance(partial, split * elements)
        for e in range(tid, ELEMENTS, THREADS):
            c, tap = divmod_unsigned(e, TAPS)
            total = shared[tap * PITCH + c]
            for w in range(1, LANES):
                total += shared[(w * TAPS + tap) * PITCH + c]
            if FLIP:
                tap = TAPS - 1 - tap
            if first + c < channels:
                sums[(first + c) * TAPS + tap] = total
    return conv_depthwise_images
