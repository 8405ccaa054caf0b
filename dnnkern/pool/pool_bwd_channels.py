"""Contiguous channels: a thread computes a patch of pixels of up to 16 bytes of channels, gathering from the outputs that cover it.

A patch is one pixel, two, or 2x2. With 3x3 windows of stride 2, four pixels have four outputs between them, where each pixel alone would
look at up to four. A thread walks over the rows of these outputs, with several outputs of a row in flight: gradients and, for a maximum,
indices. For a maximum, a pixel adds the gradients whose index it is. For an average, it adds the gradients of the windows that cover it,
divided by what each window counts: one reciprocal per output, no division per element. Every pixel is written once, in whole chunks of
channels, without atomics, and the sums are made in the order of the outputs.

Indices of int32 are two thirds of what a maximum of 16-bit types reads, of int64 four fifths. `naive` takes averages with dilation.
"""
import functools
import math
from dataclasses import dataclass

from ..device import cuda, i64, jit, u32
from ..device.convert import element
from ..device.groups import make_reader, make_writer, scalar_of
from ..device.index import ceil_div
from ..device.vec import advance
from ..dispatch import Algorithm
from ..engine.ahead import make_follow
from ..engine.constants import constants
from ..engine.cost import LAUNCH, issue_seconds, memory_seconds, overlap, tail
from ..host.launch import Argument, Launch
from ._chunks import (Access, access_of, arguments, blocks, chunk_of, is_wide, make_coordinates, make_pixel_offset, numbers_refusal,
                      offset)
from ._chunks import refusal as chunk_refusal
from ._index import WORDS, make_index_reader
from ._windows import make_counted, make_covering, make_reciprocal, make_window, pixel_number

COST = constants("pool/bwd_channels")

THREADS = 256
MOST_WORDS = {None: 24, "int32": 24, "int64": 40}  # of gradients and indices in flight, by the type of the index
MOST_OUTPUTS = 8
THREE_BLOCKS = 24  # words in flight with int64, up to which three blocks a multiprocessor have the registers


@dataclass(frozen=True)
class Config:
    """Type of a maximum's index, None for an average, and of the elements; whether threads run along the width or along channels; channels
    per thread, accesses, rows and columns of a patch, outputs in flight; the kind of windows; one divisor of averages; 64-bit
    offsets."""
    index: str | None
    dtype: str
    width_fastest: bool
    channels: int
    access: Access
    rows: int
    columns: int
    outputs: int
    adaptive: bool
    divided: bool
    wide: bool

    def __str__(self):
        return f"{self.channels} channels of {self.rows}x{self.columns} pixels, {self.outputs} outputs"


def _patches(problem, rows, columns):
    """Extents of the image in patches."""
    d, h, w = problem.image
    return d, ceil_div(h, rows), ceil_div(w, columns)


def outputs_covering(problem, axis, pixels):
    """How many outputs along an axis cover a run of so many pixels, at most."""
    n, m, step = problem.image[axis], problem.out[axis], problem.steps[axis]
    if problem.adaptive:
        return min(m, -(-pixels * m // n) + 1)
    return min(m, (problem.dilations[axis] * (problem.taps[axis] - 1) + pixels - 1) // step + 1)


def outputs_met(problem, axis, pixels):
    """How many outputs along an axis cover a run of so many pixels: of adaptive windows, whose extents differ, on average."""
    n, m = problem.image[axis], problem.out[axis]
    if problem.adaptive:
        return min(m, (n + m - math.gcd(n, m) + m * (pixels - 1)) / n)
    return outputs_covering(problem, axis, pixels)


def dilated_refusal(problem):
    """Why averages are `naive`'s."""
    if not problem.is_max and set(problem.dilations) != {1}:
        return f"averages with dilation {'x'.join(map(str, problem.dilation))}; expected 1"
    return None


def supports(problem):
    """Contiguous channels; averages without dilation."""
    return dilated_refusal(problem) or chunk_refusal(problem) or numbers_refusal(problem, problem.x.size // chunk_of(problem))


def workspace(problem, device, config):
    """None."""
    return 0


def configs(problem, device):
    """Patches of one pixel, of two, and of four."""
    return patches(problem, chunk_of(problem), False)


def patches(problem, channels, width_fastest):
    """Configurations of so many channels per thread."""
    words = max(channels * problem.x.itemsize // 4, 1) + channels * WORDS.get(problem.index_dtype, 0)
    found = []
    for rows, columns in ((1, 1), (1, 2), (2, 2)):
        if rows <= problem.image[1] and columns <= problem.image[2]:
            outputs = outputs_covering(problem, 2, columns)
            outputs = ceil_div(outputs, ceil_div(outputs, max(1, min(MOST_OUTPUTS, MOST_WORDS[problem.index_dtype] // words))))
            found.append(Config(problem.index_dtype, problem.x.dtype, width_fastest, channels, access_of(problem, channels), rows, columns,
                                outputs, problem.adaptive, problem.divisor is not None, is_wide(problem)))
    return found


def _units(problem, config):
    return problem.n * (problem.c // config.channels) * math.prod(_patches(problem, config.rows, config.columns))


def estimate(problem, device, config):
    """That of chunks."""
    return seconds(problem, config, 16, device)


def seconds(problem, config, lines, device):
    """What a thread for a patch takes: instructions of each output, and of each of its channels and pixels of the patch, and for either
    array `lines` bytes of the L1's time a thread. Overlapped times show in part."""
    units, pixels = _units(problem, config), config.rows * config.columns
    # of a batch of outputs, those past the last one are computed with, too
    row = math.ceil(outputs_met(problem, 2, config.columns) / config.outputs) * config.outputs
    gathered = outputs_met(problem, 0, 1) * outputs_met(problem, 1, config.rows) * row
    base, pixel = (COST.maximum, COST.maximum_pixel) if problem.is_max else (COST.average, COST.average_pixel)
    output = COST.output + (COST.adaptive_average if problem.adaptive and not problem.is_max else 0)
    each = base + COST.pixel * pixels + gathered * (output + config.channels * (1 + pixel * pixels))
    accesses = 1 + ceil_div(config.channels * WORDS.get(problem.index_dtype, 0), 4)
    work = overlap(exposed=COST.exposed, issue=issue_seconds(units, each, device), memory=memory_seconds(problem.bytes, device),
                   l1=units * gathered * accesses * lines / (COST.l1 * device.sms * device.clock_hz))
    if problem.adaptive:  # patches differ in outputs: what counts is whole waves of them
        waves = units / (THREADS * COST.blocks * device.sms)
        return LAUNCH + work.slowed(tail=min(math.ceil(waves) / waves, COST.most_tail)) if units else LAUNCH
    return LAUNCH + work.slowed(tail=tail(ceil_div(units, THREADS), COST.blocks, device))


@functools.cache
def kernel(config, dependent):
    """dx[n, d, h, w, c] = the sum of the gradients that belong to the pixel."""
    Total, V, ROWS, COLUMNS, OUTPUTS = scalar_of(config.dtype), config.channels, config.rows, config.columns, config.outputs
    MAX, WIDTH, coordinates = config.index is not None, WORDS.get(config.index, 1), make_coordinates(config.width_fastest)
    pixel_offset = make_pixel_offset(config.wide)
    Raw, LENGTH, fetch, unpack = make_reader(config.dtype, V, config.access.y)
    fetch_index, narrow = make_index_reader(config.index, V, config.access.index)
    put = make_writer(config.dtype, V, config.access.x)
    window, covering, counted = make_window(config.adaptive), make_covering(config.adaptive), make_counted(False, config.divided)
    reciprocal = make_reciprocal("float64" if config.dtype == "float64" else "float32")
    BUFFER, INDICES, TOTALS = OUTPUTS * LENGTH, OUTPUTS * V * WIDTH if MAX else 1, ROWS * COLUMNS * V
    BLOCKS = 2 if config.index == "int64" and BUFFER + INDICES > THREE_BLOCKS else 3

    wait = make_follow(dependent)

    @jit(launch_bounds=(THREADS, BLOCKS))
    def pool_bwd_channels(dy, index, dx, threads, chunks, axes, extents, x_stride, y_stride, index_stride):
        wait()
        i = cuda.blockIdx.x * THREADS + cuda.threadIdx.x
        if i < threads:
            raw, indices = cuda.local.array(BUFFER, Raw), cuda.local.array(INDICES, u32)
            values, total = cuda.local.array(V, Total), cuda.local.array(TOTALS, Total)
            n, chunk, d, h, w = coordinates(i, chunks, extents)
            h, w, c = h * ROWS, w * COLUMNS, i64(chunk * V)
            for v in range(TOTALS):
                total[v] = Total(0)
            dy_image = advance(dy, n * y_stride.n + c * y_stride.c)
            index_image = advance(index, n * index_stride.n + c * index_stride.c)
            first_o, end_o = covering(d, d, axes.d)
            first_p, end_p = covering(h, h + ROWS - 1, axes.h)
            first_q, end_q = covering(w, w + COLUMNS - 1, axes.w)
            for o in range(first_o, end_o):
                for p in range(first_p, end_p):
                    for q0 in range(first_q, end_q, OUTPUTS):
                        # load a batch of outputs
                        for k in range(OUTPUTS):
                            q, ok = q0 + k, q0 + k < end_q
                            fetch(raw, k * LENGTH, dy_image, pixel_offset(o, p, q, y_stride), ok)
                            if MAX:
                                fetch_index(indices, k * V * WIDTH, index_image, pixel_offset(o, p, q, index_stride), ok)
                        # each pixel adds what belongs to it
                        for k in range(OUTPUTS):
                            unpack(values, 0, raw, k * LENGTH)
                            if MAX:
                                narrow(indices, k * V, k * V * WIDTH)
                                for r in range(ROWS):
                                    for s in range(COLUMNS):
                                        pixel = u32(pixel_number(d, h + r, w + s, axes))
                                        for v in range(V):
                                            total[(r * COLUMNS + s) * V + v] += values[v] if indices[k * V + v] == pixel else Total(0)
                            else:
                                first_d, taps_d = window(o, axes.d)
                                first_h, taps_h = window(p, axes.h)
                                first_w, taps_w = window(q0 + k, axes.w)
                                factor = reciprocal(counted(first_d, taps_d, axes.d) * counted(first_h, taps_h, axes.h)
                                                    * counted(first_w, taps_w, axes.w))
                                for v in range(V):
                                    values[v] *= factor
                                for r in range(ROWS):
                                    for s in range(COLUMNS):
                                        tap_h, tap_w = h + r - first_h, w + s - first_w
                                        covered = (tap_h >= 0) & (tap_h < taps_h) & (tap_w >= 0) & (tap_w < taps_w)
                                        for v in range(V):
                                            total[(r * COLUMNS + s) * V + v] += values[v] if covered else Total(0)
            # write back
            for r in range(ROWS):
                for s in range(COLUMNS):
                    if h + r < axes.h.extent and w + s < axes.w.extent:
                        put(advance(dx, offset(n, c, d, h + r, w + s, x_stride)), 0, total, (r * COLUMNS + s) * V)
    return pool_bwd_channels


def build(problem, device, config):
    """One launch. Without an index, its pointer is that of dy, and is not used."""
    pointer = element(problem.x.dtype).pointer
    units = _units(problem, config)
    index = Argument(f"{config.index}*", "index") if config.index else Argument(pointer, "dy")
    given = (Argument(pointer, "dy"), index, Argument(pointer, "dx"), Argument("int32", units),
             *arguments(problem, _patches(problem, config.rows, config.columns), problem.c // config.channels))
    dependent = device.capability >= (9, 0)
    return (Launch(kernel(config, dependent), blocks(units, THREADS), (THREADS, 1, 1), given, dependent=dependent),)


ALGORITHMS = tuple(Algorithm(op=op, name="channels", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs) for op in ("max_pool_bwd", "avg_pool_bwd"))
