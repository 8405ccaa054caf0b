"""What a product by `engine.ampere` should cost: predictions, from nominal rates and the counted instructions of the main loop."""
from ..device.index import ceil_div
from .ampere import shared_bytes

# Seconds of a launch, of the sum's, of a load from memory, of a block before its first product and after its last; share of the tensor
# cores' rate and of the memory's; bytes a clock of shared memory; the L2's rate in terms of the memory's; cycles of a warp's access to
# memory, and those that a warp waits in a step, a stage and an access narrower than 16 bytes.
LAUNCH, SUM_LAUNCH, LATENCY, BLOCK = 2.5e-6, 1.5e-6, 1.0e-6, 2.0e-6
EFFICIENCY, MEMORY_SHARE, SHARED_RATE, L2_RATE = 0.92, 0.9, 128, 1.4
ACCESS_CYCLES, STEP_CYCLES, STAGE_CYCLES, NARROW_CYCLES = 2, 40, 120, 40


def multiply_rate(dtype, tile, device):
    """Operations a clock of a multiprocessor's tensor cores with mma.sync; on sm_90 five eighths of wgmma's, *predicted*."""
    ampere, hopper, other = {"tf32": (1024, 1280, 512), "int8": (4096, 5120, 2048), "float64": (128, 256, 4)}.get(dtype, (2048, 2560, 1024))
    rate = {(8, 0): ampere, (9, 0): hopper}.get(device.capability, ampere if device.capability[0] == 10 else other)
    return rate / 2 if device.capability == (9, 0) and tile.mma_m == 8 else rate


def product_seconds(tile, dtype, left, right, loaders, device, blocks, stages, nbytes):
    """Time of `blocks` blocks of so many `stages`, which move at least `nbytes`.

    Arithmetic, shared memory, L2 and memory, each over the blocks of the busiest multiprocessor; the slowest weighs most.
    """
    resident = max(1, min(tile.blocks, device.shared_per_sm // (shared_bytes(tile, left, right) + 1024)))
    busiest, active = ceil_div(blocks, device.sms), min(blocks, device.sms)
    # cycles of a stage: of a multiprocessor's units, and of a block, whose warps wait for their own loads, products and barriers
    arithmetic = 2 * tile.bm * tile.bn * left.k / (EFFICIENCY * multiply_rate(dtype, tile, device))
    fragments = (tile.warp_m + tile.warp_n) * tile.depth * tile.warps_m * tile.warps_n
    shared = (fragments + tile.stage) / SHARED_RATE + ACCESS_CYCLES * sum(loader.accesses for loader in loaders) / 32
    narrow = sum(loader.accesses for loader, stored in zip(loaders, (left, right)) if 16 * loader.accesses > stored.bytes)
    alone = arithmetic * max(1, 128 / tile.threads) + STEP_CYCLES * tile.steps + STAGE_CYCLES + NARROW_CYCLES * narrow / tile.threads
    clock = stages / device.clock_hz
    # every block reads its rows and columns from the L2; of the memory a multiprocessor gets what it has under way each latency
    read = blocks * tile.stage * stages
    under_way = min(busiest, resident) * (tile.stages - 1) * tile.stage * active
    times = (busiest * arithmetic * clock, busiest * shared * clock, ceil_div(busiest, resident) * (alone * clock + BLOCK),
             read / (L2_RATE * device.bandwidth), nbytes / (MEMORY_SHARE * device.bandwidth), nbytes * LATENCY / under_way)
    return LAUNCH + sum(t ** 4 for t in times) ** 0.25
