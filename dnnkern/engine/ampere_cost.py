"""What a product by `engine.ampere` should cost: predictions, from nominal rates and the counted instructions of the main loop."""
from ..device.index import ceil_div
from .ampere import shared_bytes
from .constants import constants
from .cost import Cost, contend
from .loaders import ALONG_K

FEW = 16  # columns of a tile for products that memory bounds
COST, RATES = constants("engine/ampere"), constants("engine/mma_rate")


def best_rate(dtype, device):
    """Operations a clock of a multiprocessor's tensor cores with mma.sync."""
    ampere, hopper, other = getattr(RATES, dtype, RATES.bits16)
    return {(8, 0): ampere, (9, 0): hopper}.get(device.capability, ampere if device.capability[0] == 10 else other)


def multiply_rate(dtype, tile, device):
    """Those of a tile, whose float64 products Hopper has in two sizes."""
    rate = best_rate(dtype, device)
    return rate / 2 if device.capability == (9, 0) and tile.mma_m == 8 else rate


def product_seconds(tile, dtype, left, right, loaders, device, blocks, stages, nbytes, row=COST):
    """Time of `blocks` blocks of so many `stages`, which move at least `nbytes`; `row` has the numbers.

    Arithmetic, shared memory, L2 and memory, each over the blocks of the busiest multiprocessor; the slowest weighs most.
    """
    resident = max(1, min(tile.blocks, device.shared_per_sm // (shared_bytes(tile, left, right) + 1024)))
    busiest, active = ceil_div(blocks, device.sms), min(blocks, device.sms)
    # cycles of a stage: of a multiprocessor's units, and of a block, whose warps wait for their own loads, products and barriers
    arithmetic = 2 * tile.bm * tile.bn * left.k / (row.math * multiply_rate(dtype, tile, device))
    fragments = (tile.warp_m + tile.warp_n) * tile.depth * tile.warps_m * tile.warps_n
    shared = (fragments + tile.stage) / row.shared + row.access * sum(loader.accesses for loader in loaders) / 32
    narrow = sum(loader.accesses for loader, stored in zip(loaders, (left, right)) if 16 * loader.accesses > stored.bytes)
    alone = arithmetic * max(1, 128 / tile.threads) + row.step * tile.steps + row.stage + row.narrow * narrow / tile.threads
    clock = stages / device.clock_hz
    # every block reads its rows and columns from the L2; of the memory a multiprocessor gets what it has in flight each latency
    read = blocks * tile.stage * stages * (row.narrow_l2 if narrow else 1.0)
    under_way = min(busiest, resident) * (tile.stages - 1) * tile.stage * active
    rate, l2 = (row.few, row.few_l2) if tile.bn <= FEW and left.order == ALONG_K else (row.memory, row.l2)
    waits, memory = ceil_div(busiest, resident) * (alone * clock + row.block), nbytes / (rate * device.bandwidth)
    if stages < tile.stages or stages == tile.stages and busiest > resident:  # a block loads all at once, and nothing while it stores
        waits, memory = waits + memory, 0.0
    return Cost(launch=row.launch) + contend(
        row.power, math=busiest * arithmetic * clock, shared=busiest * shared * clock, waits=waits, l2=read / (l2 * device.bandwidth),
        memory=memory, latency=nbytes * row.latency / under_way)


def least_seconds(dtype, flops, nbytes, device, row=COST):
    """What no tile's `product_seconds` is below: all products at the tensor cores' rate, or the bytes."""
    rate = row.math * best_rate(dtype, device) * device.sms * device.clock_hz
    return row.launch + max(flops / rate, nbytes / (max(row.memory, row.few) * device.bandwidth))


def sum_seconds(nbytes, device, beside=0, row=COST):
    """Time of a launch that adds up partial results of so many bytes, which were written; so many `beside` them are read and written."""
    return Cost(reduction=row.sum_launch + (2 * nbytes + beside) / device.bandwidth)
