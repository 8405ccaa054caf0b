"""Which problems the kernels of `rows` support; their configurations, launches and estimates."""
import functools
import itertools
from collections import Counter
from dataclasses import dataclass

from ...device.groups import access_words
from ...device.index import Divisor, ceil_div, divisor
from ...engine.constants import constants
from ...engine.cost import Cost, contend
from ...host.launch import Argument, Launch
from ...host.memo import remembered
from ...host.tensormap import TensorMap
from .._taps import make_axis, roles
from .kernel import MOST_LOADS
from .rows import KEPT, ImageRowStrides, Rows, rows_kernel, rows_sums_kernel

COST = constants("conv/depthwise_rows")

WARP = 32             # lanes, and banks of shared memory
VECTOR, FEW = 4, 2    # channels of a thread, and of one with many taps
MANY_TAPS = 16
REGISTERS = 208       # per thread
UNROLLED = 1000       # multiply-adds per step
LOW = 16              # rows of an image of which a block has all, zeros above and below it
IN_FLIGHT = 96 * 1024  # bytes of rows in flight per multiprocessor


@dataclass(frozen=True)
class RowsConfig:
    """A block that reads rows by TMA.

    Attributes
    ----------
    tw : int
        Pixels of a strip.
    groups, strips : int
        Of a block: groups of `vector` channels, and strips; a thread has one of each.
    stages : int
        Steps whose rows are in shared memory or in flight.
    blocks : int
        Per multiprocessor.
    vector : int
    """
    tw: int
    groups: int
    strips: int
    stages: int
    blocks: int
    vector: int = VECTOR

    def __str__(self):
        return f"rows w{self.tw}{f' v{self.vector}' * (self.vector != VECTOR)} {self.groups}x{self.strips} s{self.stages} b{self.blocks}"


def rest(strides, channels):
    """The strides that have to be aligned: all but the one along the access."""
    n, c, d, h, w = strides
    return (n, d, h, w) if channels else (n, c, d, h)


def _supports(p, device):
    """Whether TMA can address the operands, channels last, in two dimensions."""
    if device is None or device.supports("sm_90+") or p.dtype == "float64" or p.k != p.c or p.c % VECTOR:
        return False
    if p.filter[0] != 1 or p.image[0] != 1 or p.out[0] != 1 or p.pads_before[0]:
        return False
    _, _, _, _, strides, extents = roles(p)
    if strides[1] != 1 or p.residual and p.residual_strides[1] != 1 or extents[1] < 2:
        return False
    try:
        _map("x" if p.op != "conv_bwd_data" else "y", p, (1, 1, 1, 8))
        if p.op == "conv_bwd_filter":
            _map("y", p, (1, 1, 1, 8))
    except ValueError:
        return False
    return True


def _map(name, p, box):
    """The tensor map of x or y for boxes of such extents."""
    tensor, strides, extents = (p.x, p.x_strides, p.image) if name == "x" else (p.y, p.y_strides, p.out)
    n, c, _, h, w = strides
    shape, line = (p.n, extents[1], extents[2], p.c), 16 // tensor.itemsize
    strides = tuple(s if size > 1 else line for s, size in zip((n, h, w), shape))
    if tensor.alignment < 16 or min(strides) <= 0 or c != 1:
        raise ValueError(f"{name} has strides {tensor.strides} and begins at a multiple of {tensor.alignment} bytes")
    return Argument("tensormap", name, spec=TensorMap(tensor.dtype, shape, (*strides, 1), box))


def _body(p, config):
    """(body, shift of rows, shift of columns)."""
    backward = int(p.op == "conv_bwd_data")
    r, s = p.filter[1:]
    rows, shift_h = make_axis(r, p.strides[1], p.dilations[1], p.pads_before[1], backward, p.strides[1] if backward else 1)
    columns, shift_w = make_axis(s, p.strides[2], p.dilations[2], p.pads_before[2], backward, config.tw)
    _, _, (_, height, _), result, strides, _ = roles(p)
    words = access_words(result, config.vector, rest(strides, True))
    residual_words = access_words(p.residual, config.vector, rest(p.residual_strides, True)) if p.residual else 0
    low = int(p.op != "conv_bwd_filter" and r > 1 and height <= LOW)
    low += low and config.stages >= _steps_of(height, p, backward)
    body = Rows(p.dtype, rows, columns, int(p.flip), config.vector, config.groups, config.strips, config.stages, words, residual_words,
                strides[-1], p.residual_strides[-1], p.epilogue, config.blocks, low)
    return body, shift_h, shift_w


def _steps_of(height, p, backward):
    """Steps that read the rows of an image of that height, at most."""
    advance = 1 if backward else p.strides[1]
    return ceil_div(height, advance) + (advance > 1)


def _stage(p, body):
    return body.source_bytes + (body.gradient_bytes if p.op == "conv_bwd_filter" else 0)


def _static(p, body):
    """Bytes of static shared memory: the filters, or the partial sums of a row of taps."""
    s = body.strips * p.filter[2] if p.op == "conv_bwd_filter" else p.taps
    return 4 * s * body.channels + 8 * body.stages


def _registers(p, body):
    """Expected registers per thread."""
    tile, taps = body.rows.tile * body.columns.tile * body.vector, p.taps * body.vector
    kept = taps if taps <= KEPT or p.op == "conv_bwd_filter" else p.filter[2] * body.vector + 12
    return body.depth * tile + kept + body.columns.groups * body.vector + 16


@remembered
def row_configs(p, device):
    """Strips of four and of two pixels, each with the best block of up to 128 threads and the best of more. With many taps threads have two
    channels, too: a filter's gradient has a sum for each tap and channel, and other kernels read taps again for each row."""
    if not _supports(p, device):
        return []
    _, _, (_, height, _), _, _, (_, _, width) = roles(p)
    step = p.strides[2] if p.op == "conv_bwd_data" else 1
    found, shared = [], device.shared_per_sm * 7 // 8
    vectors = (VECTOR, FEW) if p.taps > MANY_TAPS else (VECTOR,)
    strips = (4, 2, 1) if width <= LOW // 2 else (4, 2)
    for vector, tw in itertools.product(vectors, dict.fromkeys(ceil_div(t, step) * step for t in strips)):
        ranked = []
        for groups, strips in _shapes(p, width, tw, vector):
            body = _body(p, RowsConfig(tw, groups, strips, 1, 1, vector))[0]
            registers = _registers(p, body)
            work = tw * p.filter[1] * p.filter[2] * vector * body.rows.tile // (body.rows.stride * step if body.rows.backward else 1)
            fits = registers <= REGISTERS and work <= UNROLLED and body.threads <= 128 * (512 // registers)
            if not fits or body.width > 256 or body.advance > 8 or _static(p, body) > 40 * 1024 or body.columns.groups > 40:
                continue
            stage = _stage(p, body)
            warps = 4 * (512 // registers)  # each quarter of a multiprocessor has registers of its own
            blocks = max(1, min(warps * 32 // body.threads, shared // (2 * stage + _static(p, body)), 16))
            wanted = _steps_of(height, p, p.op == "conv_bwd_data") if body.low else min(8, ceil_div(IN_FLIGHT, stage * blocks))
            stages = max(2, min(wanted, (shared // blocks - _static(p, body)) // stage))
            if stages * stage + _static(p, body) + 1024 <= min(shared, device.shared_per_block):
                ranked.append((_score(p, body, tw, width), RowsConfig(tw, groups, strips, stages, blocks, vector), body.threads))
        for few in (True, False):
            best = max(((score, config) for score, config, threads in ranked if few == (threads <= 128)), key=lambda pair: pair[0],
                       default=None)
            found += [best[1]] if best else []
    return found


def _shapes(p, width, tw, vector):
    """(groups, strips) of blocks."""
    groups_all, strips_all = ceil_div(p.c, vector), ceil_div(width, tw)
    for groups in range(1, min(groups_all, 256 // vector) + 1):
        if groups_all % groups == 0 or groups % 8 == 0:
            if groups * vector * p.x.itemsize % 16 and groups_all > groups:
                continue
            groups = ceil_div(groups * vector * p.x.itemsize, 16) * 16 // (vector * p.x.itemsize)
            for strips in range(1, min(strips_all, 256 // groups) + 1):
                yield groups, strips


def _score(p, body, tw, width):
    """Useful fraction of a block's threads and of what it reads."""
    groups_all, strips_all = ceil_div(p.c, body.vector), ceil_div(width, tw)
    threads = body.groups * body.strips / body.threads
    strips = strips_all / (body.strips * ceil_div(strips_all, body.strips))
    groups = groups_all / (body.groups * ceil_div(groups_all, body.groups))
    halo = body.strips * body.hop / body.width
    sectors = 1.0 if body.groups == groups_all or body.channels * p.x.itemsize % 32 == 0 else 0.95
    size = 1.0 if body.threads >= 96 else 0.9 if body.threads >= 64 else 0.7
    return threads * strips * groups * sectors * size * halo ** 0.5


def _division(p, device, body):
    """(blocks for all channels, tiles along w, tiles along h, steps of a tile) with the fewest idle blocks and repeated rows."""
    _, _, _, _, _, extents = roles(p)
    parts, tiles_w = ceil_div(p.c, body.channels), ceil_div(extents[2], body.strips * body.columns.tile)
    total = ceil_div(extents[1], body.rows.tile)
    slots, best = device.sms * body.blocks, None
    for tiles in range(1, total + 1):
        steps = ceil_div(total, tiles)
        waves = p.n * parts * tiles_w * ceil_div(total, steps) / slots
        cost = (0.5 * ceil_div(p.n * parts * tiles_w * ceil_div(total, steps), slots) + 0.5 * max(waves, 1)) * (steps + body.depth + 3)
        if best is None or cost < best[0]:
            best = cost, ceil_div(total, steps), steps
    return parts, tiles_w, best[1], best[2]


def _whole(body, steps):
    """Steps of a task of backward filter, a multiple of the unrolled ones."""
    return ceil_div(steps + body.depth - 1, body.turns) * body.turns


def _splits(p, device, body):
    parts, tiles_w, tiles_h, _ = _division(p, device, body)
    tasks = p.n * tiles_w * tiles_h
    return tasks, max(1, min(tasks, device.sms * body.blocks // parts))


def row_workspace(p, device, config):
    """Bytes of backward filter's partial sums."""
    return _splits(p, device, _body(p, config)[0])[1] * p.k * p.taps * 4 if p.op == "conv_bwd_filter" else 0


@functools.lru_cache(maxsize=1024)
def _conflicts(groups, apart, nbytes):
    """Times that shared memory serves a load of a warp, as many at once as it can: lanes of a strip read groups of so many bytes after each
    other, strips are so many bytes apart."""
    words, served, parts = max(1, nbytes // 4), 0, range(0, WARP, WARP // max(1, nbytes // 4))
    for first in parts:
        lanes = range(first, first + WARP // words)
        read = {(lane // groups * apart + lane % groups * nbytes) // 4 + word for lane in lanes for word in range(words)}
        served += max(Counter(word % WARP for word in read).values())
    return served / len(parts)


def row_estimate(p, device, config):
    """Bytes and instructions, the lesser of which hides but in part behind the other.

    As counted in the machine code, a step takes a multiply-add a tap and output, instructions of the elements of the strip's windows, of
    outputs that are written, and some more; few warps hide less of their latency.
    """
    body, shift_h, _ = _body(p, config)
    source, _, (_, height, _), _, _, _ = roles(p)
    parts, tiles_w, tiles_h, steps = _division(p, device, body)
    lines = p.n * parts * tiles_w * tiles_h * (steps + body.depth - 1)  # steps of all blocks
    outputs = body.rows.tile * body.columns.tile * body.vector
    taps = p.filter[1] * p.filter[2] / (body.rows.stride * body.columns.stride if body.rows.backward else 1)
    shared = COST.taps_again * p.taps * body.vector if p.taps * body.vector > KEPT and p.op != "conv_bwd_filter" else 0  # taps read again
    products = outputs * taps + COST.window * body.advance * body.columns.loads * body.vector
    if body.skips:
        first, rows = shift_h + body.rows.first, (tiles_h * steps + body.depth - 1) * body.advance
        some = 1 - (max(0, -first) + max(0, first + rows - height)) / (tiles_h * (steps + body.depth - 1) * body.advance)
        products, shared = products * some, shared * some
    if p.op == "conv_bwd_filter" and body.turns == 1:  # rows of dy move from register to register
        products += (body.depth - 1) * outputs
    step = products + shared + COST.step
    step += outputs * (COST.filter_output if p.op == "conv_bwd_filter" else COST.output)
    waves = lines * body.threads / (device.sms * 128 * device.clock_hz)
    all_blocks = p.n * parts * tiles_w * tiles_h
    tail = ceil_div(all_blocks, device.sms) * device.sms / all_blocks
    halo = body.width / (body.strips * body.hop) * (steps + body.depth - 1) / steps
    memory = (p.bytes + COST.halo * (halo - 1) * source.nbytes) / (COST.rate * device.bandwidth)
    if parts > 1 and body.channels * p.x.itemsize % 32:  # blocks share sectors of the memory
        memory *= COST.sectors
    warps = min(COST.warps, min(body.blocks, all_blocks / device.sms) * body.threads / 32)
    # a load of 16 bytes a thread takes four cycles a warp, of all four
    ways = 1.0
    if p.op != "conv_bwd_filter":
        ways = _conflicts(body.groups, body.hop * body.channels * p.x.itemsize, body.vector * p.x.itemsize) ** COST.conflicts
    issue = max(COST.slower * ways * (COST.warps / warps) ** 0.5 * step, COST.tap_cycles * shared) * waves
    cost = Cost(launch=COST.start) + contend(COST.power, memory=memory, issue=issue).slowed(tail=tail ** 0.5)
    if height <= LOW:
        batches = 0 if p.op == "conv_bwd_filter" else ceil_div(p.taps * body.channels, MOST_LOADS * body.threads)
        several = parts * _splits(p, device, body)[1] if p.op == "conv_bwd_filter" else all_blocks
        if p.op == "conv_bwd_filter":  # pixels past the end of a row are multiplied, too
            past = tiles_w * body.strips * config.tw / p.out[2]
            cost = cost.slowed(slower=(COST.many if p.taps > MANY_TAPS else COST.few) * past)
        elif p.taps <= MANY_TAPS:
            cost = cost.slowed(slower=COST.low)
        cost += Cost(waits=COST.block * several / device.sms + COST.batch * batches)
    if p.op == "conv_bwd_filter":
        cost += Cost(reduction=COST.sum_launch + row_workspace(p, device, config) * 2 / device.bandwidth)
    return cost


def _int(value):
    return Argument("int32", value)


def _row_strides(strides):
    n, _, _, h, _ = strides
    return Argument(ImageRowStrides, ImageRowStrides(n, h))


def row_launch(p, device, config):
    """The one launch of y or dx."""
    body, shift_h, shift_w = _body(p, config)
    parts, tiles_w, tiles_h, steps = _division(p, device, body)
    names = ("y", "x") if p.op == "conv_bwd_data" else ("x", "y")
    _, _, (_, source_height, _), _, strides, extents = roles(p)
    source = _map(names[0], p, (1, body.advance * (config.stages if body.low > 1 else 1), body.width, body.channels))
    arguments = (source, p.pointer("w"), p.pointer(names[1]), p.pointer("residual"), p.pointer("bias"), _int(steps),
                 *(Argument(Divisor, divisor(n)) for n in (parts, tiles_w, tiles_h)), _int(p.c), Argument(Divisor, divisor(p.taps)),
                 *(_int(n) for n in (shift_h, shift_w, source_height, extents[1], extents[2])),
                 *map(_row_strides, (strides, p.residual_strides)), _int(p.bias_stride),
                 Argument(p.scalar_type, "alpha"), Argument(p.scalar_type, "beta"), _int(p.w_strides[0]),
                 _int(p.w_strides[-1] if p.taps > 1 else 1))
    return Launch(rows_kernel(body, p.taps), (p.n * parts * tiles_w * tiles_h, 1, 1), (body.threads, 1, 1), arguments,
                  shared=config.stages * body.source_bytes + 128, dependent=True)


def row_sums_launch(p, device, config):
    """(splits, the launch of the partial sums of dw)."""
    body, shift_h, shift_w = _body(p, config)
    parts, tiles_w, tiles_h, steps = _division(p, device, body)
    tasks, splits = _splits(p, device, body)
    maps = _map("x", p, (1, body.advance, body.width, body.channels)), _map("y", p, (1, 1, body.strips * config.tw, body.channels))
    arguments = (*maps, Argument("float32*", "workspace"), _int(steps), _int(_whole(body, steps)), _int(tasks), _int(splits),
                 *(Argument(Divisor, divisor(n)) for n in (parts, tiles_w, tiles_h)), _int(p.c), _int(shift_h), _int(shift_w),
                 _int(p.out[1]), _int(p.image[1]), _int(p.k * p.taps))
    return splits, Launch(rows_sums_kernel(body), (parts * splits, 1, 1), (body.threads, 1, 1), arguments,
                          shared=config.stages * (body.source_bytes + body.gradient_bytes) + 128, dependent=True)
