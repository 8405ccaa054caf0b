"""Channels side by side whose values stay in shared memory: sums and the elementwise pass are one launch, and read memory once.

    x --TMA--> shared memory --+--> moments of each channel --blocks--> mean, rstd --+--> y
                               +----------------------------------------------------+

One to eight blocks have neighbouring channels, 32 to 128 bytes of a row, and each of them a part of their values (`kernel`).
What does not fit shared memory is read again from the L2. `columns` has three launches, each of which waits for the one before it to end,
and reads all values twice. It wins with values that fit all shared memory together, 27 MB of an H200's: maps of 7x7 and 14x14. It loses
with more of them, and with channels too few to fill the multiprocessors.
"""
from ...device.index import ceil_div
from ...dispatch import Algorithm
from ...engine.constants import constants
from ...engine.cost import Cost
from ...host.launch import Argument, Launch
from ...host.tensormap import TensorMap
from .._channel_problem import gradient_source
from .._channel_view import View, view_alone, view_of
from .kernel import CHUNK, CLEARING, Backward, Forward, Tile, backward_kernel, clear_kernel, forward_kernel

COST = constants("norm/resident")

WIDTHS, GROUPS, THREADS = (128, 64, 32), (1, 2, 4, 8), 512
RESERVED = 4096   # bytes of shared memory for barriers and statistics, beside 3 numbers of a channel for each warp and block
MOST = 4          # configurations
PER_SM = {1: 2, 2: 1}  # by arrays: blocks on a multiprocessor, which the registers allow
LINE = 256
LEAST_LINE = 64   # bytes that the L2 reads at least: more would be other groups', which read them again


def _names(problem):
    """(arrays that are read, the one that is written)."""
    return (("dy", "x"), "dx") if problem.op == "batch_norm_bwd" else (("x",), "y")


def supports(problem):
    """Packed rows of channels of up to 32 bits, nothing besides: no residual, no program."""
    p = problem
    view = view_alone(p)
    if not isinstance(view, View):
        return view
    if view.images > 1:
        return "the images' pixels are not evenly spaced"
    read, written = _names(p)
    if p.has_residual or p.program is not None or p.tensor(written) is None or p.result:
        return f"a residual, a program, a result of another type, or no {written}; it computes {written} of {' and '.join(read)} alone"
    if p.op == "batch_norm_bwd" and (p.frozen or gradient_source(p.activation) is not None):
        return f"activation {p.activation}, constant statistics: {p.frozen}; expected none of both"
    for name in (*read, written):
        _, channel, value = view.whole[name]
        tensor = p.tensor(name)
        if channel != 1 or tensor.alignment < 16 or view.values > 1 and (value <= 0 or value * tensor.itemsize % 16):
            return f"rows of channels of {name} are {value} elements apart, channels {channel}, aligned to {tensor.alignment} bytes"
        if abs(value) * view.values >= 2 ** 31:
            return f"{name} spans {abs(value) * view.values} elements; the limit is 2**31"
    if view.channels * p.x.itemsize % WIDTHS[-1]:
        return f"{view.channels} channels of {p.x.itemsize} bytes; expected a multiple of {WIDTHS[-1]} bytes"
    return None


def _slots(device, width, blocks, arrays, itemsize):
    """Of a block that has a multiprocessor alone."""
    fixed = RESERVED + 12 * (width // itemsize) * (THREADS // 32 + blocks)
    return (device.shared_per_block - fixed) // (arrays * CHUNK)


def configs(problem, device):
    """Clusters, and groups of a cooperative launch, which has to fit the device; the best by their estimate."""
    p, view = problem, view_of(problem)
    arrays, found = len(_names(p)[0]), []
    for width in WIDTHS:
        strips, over = divmod(view.channels * p.x.itemsize, width)
        for blocks in GROUPS:
            rows = CHUNK // width
            if over or view.values <= rows * (blocks // 2):  # half of the blocks would have nothing
                continue
            chunks = ceil_div(ceil_div(view.values, blocks), rows)
            for apart in range(2 if 1 < blocks <= device.sms // strips else 1):
                slots = _slots(device, width, 1 if apart else blocks, arrays, p.x.itemsize)
                found.append(Tile(p.dtype, width, blocks, THREADS, arrays, max(1, min(slots, chunks)), apart))
    return sorted(found, key=lambda tile: estimate(p, device, tile))[:MOST]


def _strips(p, tile):
    return view_of(p).channels * p.x.itemsize // tile.width


def _counters(p, tile):
    """Bytes of the blocks' counters, whole lines."""
    return ceil_div(4 * _strips(p, tile), LINE) * LINE


def workspace(problem, device, config):
    """Counters of blocks, and what they bring, where they are no clusters."""
    strips = _strips(problem, config)
    return _counters(problem, config) + 12 * config.span * config.group * strips if config.apart else 0


def estimate(problem, device, config):
    """Bytes, again from the L2 what is not kept; waves of clusters."""
    p, view, tile = problem, view_of(problem), config
    strips = _strips(p, tile)
    each = max(1, min(PER_SM[tile.arrays], (device.shared_per_sm - 1024) // (tile.shared + RESERVED)))
    waves = 1 if tile.apart else ceil_div(strips, device.clusters(tile.group, each))
    share = ceil_div(view.values, tile.group) * tile.width  # bytes of a block and array
    chunks = ceil_div(share, CHUNK)
    again = max(0, chunks - tile.slots) / chunks
    rate = device.bandwidth / device.sms  # of a multiprocessor
    narrow, again_narrow = {32: (COST.bytes_32, COST.again_32), 64: (COST.bytes_64, COST.again_64)}.get(tile.width, (1.0, 1.0))
    full = max(1.0, waves * share * device.sms / (COST.most * p.x.nbytes * each))  # where few blocks share the memory
    read, write = p.x.nbytes * tile.arrays / COST.read, p.x.nbytes / COST.write
    more = waves * again * share * tile.arrays * again_narrow / (COST.l2 * rate)
    exchange = COST.exchange * (1 if tile.group == 1 else COST.cluster) + COST.block * (tile.group - 1)
    waits = waves * (exchange + COST.chunk * min(chunks, 2))
    memory = full * (read + write) / (narrow * device.bandwidth)
    return Cost(launch=COST.start + tile.apart * COST.counters, memory=memory, l2=more, waits=waits)


def _map(problem, view, tile, name):
    """The tensor map of an array: rows of channels."""
    _, _, value = view.whole[name]
    step = value if view.values > 1 else 16 // problem.x.itemsize
    return Argument("tensormap", name, spec=TensorMap(problem.dtype, (view.values, view.channels), (step, 1),
                                                      (tile.rows // tile.boxes, tile.span), l2_promotion=max(tile.width, LEAST_LINE)))


def _ints(*values):
    return (Argument("int32", v) for v in values)


def build(problem, device, config):
    """One launch, and one before it that clears the counters."""
    p, view, tile = problem, view_of(problem), config
    read, written = _names(p)
    maps = tuple(_map(p, view, tile, name) for name in read)
    share = ceil_div(view.values, tile.group)

    def step(name):
        return Argument("int64", view.weight[name] if name in view.weight else view.statistic.get(name, (0, 0))[1])

    def statistics(*names):
        return tuple(Argument("float32*", name) for name in names)
    _, _, value = view.whole[written]
    sizes = tuple(_ints(view.values, share, value))
    if p.op == "batch_norm_bwd":
        names = "gamma", "mean", "rstd", "dgamma", "dbeta"
        kernel = backward_kernel(Backward(tile, p.dtype_of("gamma"), (p.dgamma.dtype, p.dbeta.dtype)))
        arguments = (*maps, p.pointer(written), p.pointer("gamma"), *statistics("mean", "rstd"), p.pointer("dgamma"), p.pointer("dbeta"),
                     Argument("float32", 1 / view.values), *sizes, *map(step, names))
    else:
        running = "running_mean", "running_var", p.moved("mean"), p.moved("var")
        names = "gamma", "beta", "mean", "rstd", *running
        kernel = forward_kernel(Forward(tile, p.dtype_of("gamma"), p.dtype_of("beta"), tuple(map(p.dtype_of, running)), p.activation))
        arguments = (*maps, p.pointer(written), p.pointer("gamma"), p.pointer("beta"), *statistics("mean", "rstd"),
                     *(p.pointer(name, "mean") for name in running), Argument("float32", "eps"), Argument("float32", "momentum"), *sizes,
                     *map(step, names))
    strips, counters, what = _strips(p, tile), _counters(p, tile), "workspace" if tile.apart else "mean"
    arguments += Argument("float32*", what, offset=counters * tile.apart), Argument("uint32*", what)
    launches = ()
    if tile.apart:
        launches = (Launch(clear_kernel(), (1, 1, 1), (CLEARING, 1, 1), (Argument("uint32*", what), *_ints(strips)), dependent=True),)
    return (*launches, Launch(kernel, (strips * tile.group, 1, 1), (tile.threads, 1, 1), arguments, shared=tile.shared,
                              cluster=(tile.cluster, 1, 1), cooperative=bool(tile.apart), dependent=True))


ALGORITHMS = tuple(Algorithm(op=op, name="resident", supports=supports, workspace=workspace, estimate=estimate, build=build,
                             configs=configs, arch="sm_90+") for op in ("batch_norm_train_fwd", "batch_norm_bwd"))
