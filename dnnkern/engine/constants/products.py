"""Rows of the models of what mostly multiplies: matrix products, convolution, attention, recurrent networks."""
from ._row import COUNTED, GUESSED, Source, h100, h200, row

# ---- matrix products; the times of single tiles stand beside the tiles: `hopper_plan.TILES`, `simt_plan.TILES`

row("engine/hopper", h200("h200-wgmma-variants.json"),
    "clock at which tiles were timed; share of the memory's rate that products bound by it reach, those of few rows, and what reading a "
    "from the L2 again costs of reading it from memory; bytes a second of the L2 where lines cross its own; weight of whole waves; times "
    "a step with 8-bit floats; share that shows of what overlaps; s of another tile than the one asked for; s of a copy's launch, passes "
    "of aligned ones, by rows, others; s of a sum's launch, and bytes for each that it moves", ("fp8", "by_rows"),
    clock=1.98e9, bandwidth=0.86, outside=0.72, again=0.2, crossing=6e12, whole=0.75, fp8=1.12, exposed=0.1, smaller=1e-7, copy=3e-6,
    aligned=2.1, by_rows=2.5, unaligned=4.5, sum_launch=2e-6, sum_bytes=1.5)
row("engine/hopper_made", Source("fitted", "NVIDIA H100 80GB HBM3", "bench/results/h100-prologue.jsonl"),
    "cycles of a step whose operand is made: what nothing hides; of a scheduler for each 64 rows, for each instruction that an element of "
    "them is counted with, and more where rows are pixels",
    waiting=260, step=60, function=30, pixels=120)
row("engine/hopper_aside", Source("fitted", "NVIDIA H100 80GB HBM3", "bench/results/h100-graph-patterns.jsonl"),
    "times that memory would need, while nothing is multiplied, for a program's matrices which threads load and store themselves; for "
    "float32 ones that are loaded ahead by boxes (h100-product-residuals.jsonl)", ("boxes",),
    aside=3.2, boxes=1.0)
row("matmul/wgmma_epilogue", Source("fitted", "NVIDIA H100 80GB HBM3", "bench/results/h100-weak-spots-mm.jsonl"),
    "instructions of an activation that are hidden; share of the others that shows with ping-pong, times the square of a tile's steps; "
    "times that memory would need for c while nothing is multiplied, and with ping-pong",
    free=8, ping_pong=220, c=0.6, c_ping_pong=1.4)
row("matmul/wgmma", h100("h100-record.jsonl.gz"),
    "s of a thread's result that it stores from registers (4095^3, 2025x1001x777), of one that leaves in a line, counted; share that shows "
    "where tiles take turns; bytes a second of a multiprocessor where b's lines, along its columns, begin anywhere (1000^3, 600x600x4000); "
    "times a step of 8-bit floats with one warpgroup; s of a sum's launch, and bytes for each that it moves; times as long as counted in "
    "lines", ("line", "turns"),
    straight=110e-9, line=20e-9, turns=1.0, columns=80e9, one_group=1.15, sum_launch=1.5e-6, sum_bytes=1.3, in_lines=1.13)
row("engine/program_epilogue", Source("fitted", "NVIDIA H100 80GB HBM3", "bench/results/h100-compile.jsonl"),
    "warps that hide what functions at the end of a tile wait for; as many as a kernel by mma.sync is as if it had; instructions of an "
    "element that are hidden; times as many where results are reduced, too; share that shows where tiles take turns",
    ("hiding", "ping_pong"), hiding=8, mma=2, free=6, reduced=5.4, ping_pong=0.5)
row("engine/simt", h200("h200-matmul-square-float32.jsonl"),
    "clock at which tiles were timed; times a step with 16-bit types; s an element, to begin a tile and store it, of 32 and of 16 bits: "
    "1048576x64x2; times a step with operands that are copied element by element, in tiles of fewer than 256 columns, of 16 bits "
    "in tiles of fewer than 64 (4097x31x517, h100-record.jsonl.gz); tiles that a last one counts for more, whose warps have a "
    "multiprocessor alone (h100-weak-spots-mm.jsonl)", ("half",),
    clock=1.98e9, half=1.08, end=0.2e-9, end_half=0.45e-9, narrow=1.3, narrow_half=2.0, lone=0.6)
row("engine/ampere", h200("h200-matmul-odd-bfloat16.jsonl"),
    "s of a launch, of a sum's launch, of a load from memory, of a block before its first and after its last product; share of the tensor "
    "cores' rate, of the memory's, by tiles of up to 16 columns (h100-weak-spots-mm.jsonl); bytes a clock of shared memory; the L2's rate "
    "over the memory's, by such tiles, which read most but once; cycles of a warp's access to memory, that a warp waits in a step, a "
    "stage, a narrow access, times as many bytes of the L2 with these; exponent of the norm",
    ("launch", "sum_launch", "latency", "block", "math", "shared", "l2", "access", "step", "stage", "narrow_l2", "power"),
    launch=2.5e-6, sum_launch=1.5e-6, latency=1.0e-6, block=2.0e-6, math=0.92, memory=0.9, few=0.97, shared=128, l2=1.4, few_l2=3.5,
    access=2, step=40, stage=120, narrow=40, narrow_l2=1.0, power=4)
row("matmul/mma", h100("h100-record.jsonl.gz"),
    "as engine/ampere, of matrices of 16-bit elements: 358 times, off by 12 % (root mean square)", ("shared", "access", "power"),
    launch=1.58e-6, sum_launch=1.1e-6, latency=0.36e-6, block=0.21e-6, math=0.78, memory=0.82, few=0.88, shared=112, l2=3.0, few_l2=4.3,
    access=2, step=31, stage=430, narrow=42, narrow_l2=1.8, power=4)
row("engine/mma_rate", Source("nominal", "sm_80, sm_90a and others"),
    "operations a clock of a multiprocessor's tensor cores with mma.sync: of sm_80, of sm_90 (five eighths of wgmma's, a guess), of "
    "others; tf32, int8, 8-bit floats, which sm_90 converts, float64, 16 bits",
    tf32=(1024, 1280, 512), int8=(4096, 5120, 2048), float8_e4m3fn=(2048, 1280, 2048), float8_e5m2=(2048, 1280, 2048),
    float64=(128, 256, 4), bits16=(2048, 2560, 1024))
row("matmul/textbook", h100("h100-record.jsonl.gz"),
    "s of a launch and its ends; cycles of a step's chain; blocks of a multiprocessor; times as long as shared memory's bytes: 16^3 to "
    "128^3 of 8 bits, 512^3 and more (h200-matmul-ladder-bfloat16.jsonl)",
    ("blocks",),
    start=1.15e-6, chain=860, blocks=8, slower=1.4)
row("matmul/naive", h100("h100-record.jsonl.gz"),
    "s of a launch and its ends; cycles of a step's chain, which few threads wait for; bytes a clock of the L1; threads of a "
    "multiprocessor; instructions of a thread, whose index is divided: 32^3 to 128^3 of 8 bits, gradients of 122 groups of 112x112x144",
    start=1.0e-6, chain=290, l1=16, resident=2048, thread=300)
row("matmul/grouped", Source("fitted", "NVIDIA H100 80GB HBM3", "bench/results/h100-weak-spots-mm.jsonl"),
    "cycles to search 32 groups, in the kernels of tiles and of wgmma; s that show of a byte that tiles of wgmma read from the L2, of a "
    "tile with three stages (64 groups of 12288x2048x1408, h100-record.jsonl.gz)",
    ("search", "wgmma_search"),
    search=800, wgmma_search=300, l2=1.1e-14, shallow=2e-6)
row("matmul/grouped_weights", h100("h100-record.jsonl.gz"),
    "s to find a group; bytes of gradients a second that a multiprocessor stores by mma.sync, share of them where it has one block; times "
    "as long with copies of fewer than 16 bytes, on CUDA cores of single elements, and there with 16 bits; exponent of the norm",
    ("power",),
    begin=0.45e-6, stores=6.5e9, alone=0.1, half=1.6, narrow=1.7, power=4)
row("matmul/grouped_weights_wgmma", h100("h100-record.jsonl.gz"),
    "s of a wave to find its groups; times as long as counted", ("find",),
    find=0.4e-6, slower=1.03)
row("matmul/split_k", GUESSED,
    "s of the sum's launch",
    sum_launch=2.5e-6)
row("matmul/stream_k", GUESSED,
    "times as long as counted: no GPU has timed it, so it has to promise more than what has been",
    unmeasured=1.03)
row("matmul/gemv", h200("h200-matmul-skinny-bfloat16.jsonl"),
    "s of a launch and its ends (an H100, h100-record.jsonl.gz); instructions of a multiply-add of float64, float32, int8, packed 16-bit "
    "elements, and those with more than two rows (h100-weak-spots-mm.jsonl); share of the rate at which they are issued, and that loads "
    "do not hide; bytes a second that a block reads: 2x64x1048576 (h200-conv-bwd-filter-unet-float16.jsonl); s of 16 warps a "
    "multiprocessor: 1048576x2x64 (h200-conv-fwd-unet-float16.jsonl)",
    start=1.75e-6, float64=2.0, float32=1.2, int8=0.35, bits16=2.1, several=2.4, rate=0.8, exposed=0.3, block=62e9, wave=1.27e-6)

# ---- convolution; the times of tiles stand beside the tiles: `implicit_gemm_wgmma.FURTHER_TILES`, `winograd.TILES`, `fft.plan.TILES`

row("conv/naive", h100("h100-regrets.jsonl"),
    "s of a launch and its ends; cycles of a step's chain, of backward filter; bytes a clock of the L1; threads of a multiprocessor; "
    "instructions of a tap, whose offsets have 64 bits, and of a channel there",
    ("start", "chain", "filter_chain", "l1", "resident", "channel"),
    start=4e-6, chain=100, filter_chain=400, l1=16, resident=1024, tap=220, channel=20)
row("conv/direct", h200("h200-conv.md"),
    "s of a launch and its ends; instructions over multiply-adds, times as many forward (h200-conv-layers.jsonl), of loads for each pixel, "
    "filter; instructions that bring an element in; of a thread besides, s that it waits for a load (h100-record.jsonl.gz); blocks of a "
    "multiprocessor, those that are enough; times as long with a strided gradient; share of the memory's rate",
    ("start", "blocks", "stage"),
    start=5e-6, thread=350, load=3.9e-7, slower=1.3, forward=2.2, pixel=0.6, filter=2, stage=30, blocks=4, enough=2, strided=1.1, rate=0.6)
row("conv/depthwise", h200("h200-conv-fwd-depthwise-float16.jsonl"),
    "s of a launch and its ends; instructions of a thread forward, of one of backward filter, of a load; bytes a clock of the L1; share "
    "of halos read again, with rows at run time; share of the memory's rate of 8 bytes, of fewer, of channels, of planes; times as long "
    "as counted; registers' blocks", ("start", "thread", "filter_thread"),
    start=5e-6, thread=60, filter_thread=50, load=8, l1=100, halo=0.12, dynamic_halo=1.2, bytes_8=0.9, narrow=0.6, channels=0.54,
    planes=0.88, slower=1.3)
row("conv/depthwise_filter", h200("h200-conv-bwd-filter-unet-float16.jsonl"),
    "share of bytes read again by further slabs; of channels: share of bytes, and of those for each load of an output; share of the "
    "memory's rate of channels, of planes; s of the sum's launch, of a turn of it", ("sum_launch", "turn"),
    slab=0.3, own=0.4, load=0.2, channels=0.7, planes=0.85, sum_launch=2.5e-6, turn=2e-7)
row("conv/depthwise_rows", h200("h200-conv-variants.json"),
    "s of a launch and its ends; share of the bandwidth: 36.5 us predicted of 3x3 on 64x144x56x56, 35.4 measured; times as long where "
    "blocks share sectors: 3x3 on 64x144x56x56, 144 bytes of channels a block; taps read again; instructions of an element of windows, of "
    "a step, of an output, of backward filter; times as long as counted with 16 warps; exponent of the times that "
    "shared memory serves a load (h100-record.jsonl.gz); share of halos read again; exponent of the norm; s of the sum's launch; of low "
    "images, s of a block that follows others, of filters that a thread has in flight together, times as long with few taps, for gradients "
    "of filters with many taps and with few (h100-weak-spots-conv.jsonl)", ("start", "power", "sum_launch"),
    block=0.4e-6, batch=0.75e-6, low=0.65, many=1.6, few=0.85, start=5e-6, rate=0.85, sectors=1.18, taps_again=0.25, window=1.4, step=42,
    output=1.0, filter_output=1.4, slower=1.3, warps=16.0, conflicts=0.27,
    tap_cycles=16, halo=0.25, power=3, sum_launch=2.5e-6)
row("conv/depthwise_images", GUESSED,
    "s of a launch and its ends; instructions of an element that is loaded, of a tap; s that an image waits; share of the memory's rate; s "
    "of the sum's launch; times as long (h100-record.jsonl.gz)",
    start=3e-6, element=4, tap=12, wait=2e-6, rate=0.7, sum_launch=2.5e-6, slower=1.1)
row("conv/bias_naive", GUESSED,
    "s of a launch and its ends; cycles of a load; threads of a multiprocessor",
    start=4e-6, load=300, resident=2048)
row("conv/bias_two_pass", GUESSED,
    "s of a launch and its ends; share of memory's rate with accesses of 8, 4 bytes, of wide and narrow elements, of all; blocks that are "
    "enough; s of a block; s of the sum's launch",
    start=4e-6, words_2=0.85, words_1=0.6, wide=0.6, narrow=0.3, rate=0.9, enough=2, block=1.5e-6, sum_launch=2.5e-6)
row("conv/small_c_fwd", h200("h200-conv.md"),
    "s of a launch and its ends; instructions of a tile, a unit of pixels, a step of it; share of the memory's rate", ("start",),
    start=4e-6, tile=250, unit=270, step=40, rate=0.85)
row("conv/small_c_rows", h200("h200-conv.md"),
    "instructions of a copy of 16 bytes, of several copies of pixels, of a load; cycles that a load waits; of warps of a multiprocessor, "
    "those that issue alone and the schedulers' rate",
    copy=60, copies=100, load=90, load_wait=700, alone=3, schedulers=3)
row("conv/small_c_filter", h200("h200-conv.md"),
    "s of a launch and its ends; instructions of a tile, a unit of pixels, its groups and filters, a copy of dy, a load of it; cycles "
    "that it waits; share of the memory's rate", ("start",),
    start=4e-6, tile=250, unit=45, group=10.5, copy=56, load=400, load_wait=2800, rate=0.85)
row("conv/small_c_data", h200("h200-conv.md"),
    "s of a launch and its ends; cycles of a fragment of dy, of w, of a product of a warp; warps that issue alone; cycles of a tile; "
    "bytes a clock that staging copies, times without copies, times of one block; the L2's rate over the memory's; times as long for 16 "
    "pixels, with one block; share of the memory's rate; s of a byte of the filter; times as long as counted; warps that hide what "
    "one waits for, and exponent of fewer (h100-weak-spots-conv.jsonl)",
    ("start", "warps", "power"), slower=1.3, warps=16, power=0.4,
    start=4e-6, pixels=4, filters=2, product=7, alone=1.5, tile=1000, staging=48, loads=8, one_block=2, l2=2.0, wait=16, wait_one=1.3,
    rate=0.85, filter=2e-10)
row("conv/grouped", h200("h200-conv-fwd-grouped-float16.jsonl"),
    "s of a launch and its ends; cycles of a product (half of wgmma's rate); bytes of a fragment and of taps; bytes a clock of the L1; "
    "instructions of a warp, a row, less where unrolled, a step, a product; times as long as counted; share of halos read again; share of "
    "the memory's rate", ("start",),
    start=6e-6, product=2.2, fragment=1024, taps=256, l1=100, warp=760, row=32, unrolled=10, step=44, issue_product=8, slower=1.75,
    halo=0.2, rate=0.53)
row("conv/grouped_filter", GUESSED,
    "s of a launch and its ends; cycles of a product; instructions of a unit, a thread's tile, for 512 bytes of copies; times as long as "
    "counted; cycles of a product alone, of a group of rows, of a tile; times that lines of 64 bytes are read; the L2's rate over the "
    "memory's; share of the memory's rate; s of its latency; times as long: no GPU has timed it",
    start=4e-6, product=2.2, unit=25, thread=200, copies=5.5, slower=1.15, alone_product=9, alone_rows=150, alone_tile=500, lines=1.05,
    l2=1.3, rate=0.85, latency=1e-6, unmeasured=1.05)
row("conv/halo", h200("h200-conv-layers.jsonl"),
    "s of a launch; cycles of 64 rows by 64 or 32 columns and 16 of k: 2 KiB of rows at 64 bytes a cycle, and a little; of a line of "
    "results, a line, each box of it, a line of a box that waits, a box, bytes of it a cycle; times as long with one stage, for each "
    "consumer below four; cycles of a block, bytes of filters a cycle; the share that is not hidden of work or memory, the "
    "shorter of both; instructions of 8 elements that are made, and those of one for each that its functions are counted with; times as "
    "long with products of filters of several planes (h100-regrets.jsonl)",
    ("start", "piece", "function"),
    start=2e-6, planes=0.72, piece=40, function=0.4, product=36, results=40, line=75, box=25, waiting=100, late=1130, late_bytes=55,
    one_stage=1.25, consumer=0.015, block=4000, filters=48, exposed=0.05)
row("conv/implicit_gemm", h100("h100-regrets.jsonl"),
    "s of the gathering before the first and after the last step (h100-record.jsonl.gz); times as long as a product, for the gathering; "
    "least share of k that counts; times as long by mma.sync for gradients by filters, by images of fewer than 8 channels; of a tile's "
    "fixed time what each wave but the first adds, where slices are added up (h100-record.jsonl.gz)",
    ("gather", "least_share"),
    start=1.2e-6, gather=1.1, least_share=0.1, filter_mma=1.6, few_mma=1.2, wave=2.0)
row("conv/implicit_wgmma", h200("h200-conv-fwd-unet-float16.jsonl"),
    "us of a copy of pixels (h100-record.jsonl.gz), bytes of them that a multiprocessor gets in a microsecond, how much longer with depth, "
    "and with rows that are partly zeros: layers of 64 and 32 channels (h200-conv-fwd-conv3d-float16.jsonl); times the memory of tiles in "
    "turns, which add an array (h100-record.jsonl.gz)",
    rows=0.1, l2=77e3, deeper=1.1, partly=1.6, turns=1.1)
row("conv/filter_wgmma", h200("h200-conv.md"),
    "bytes a clock and multiprocessor of the L2: 64x576 tiles of 64 channels at 6.4 TB/s, 64x192 at 11.5, 64x128 at 14.5; bytes a second "
    "that a multiprocessor gets, times as long with copies of half the width (h100-record.jsonl.gz); s of a launch; cycles that making "
    "takes of a stage, of each box of 64 pixels by the channels of a copy, and of it for each instruction that its functions are counted "
    "with (an H100, `bench graph --only wgrad`); times as long with filters of several planes, 64 of them a tile "
    "(h200-conv-bwd-filter-conv3d-float16.jsonl, h100-regrets.jsonl)",
    ("start", "stage", "box", "function"),
    planes=1.74, l2=24.5, arrives=95e9, narrow=0.4, start=3e-6, stage=200, box=440, function=15)
row("conv/stream_k", h100("h100-weak-spots-conv.jsonl"),
    "bytes a second of all blocks that are in the line where tiles have heads: each reads pixels of its own (h100-record.jsonl.gz)",
    line=3.4e12)
row("conv/channels_last", h100("h100-weak-spots-conv.jsonl"),
    "s of an element of a filter's gradient whose channels are apart: 512x512x3x3 (the rest is as counted); times as long where channels "
    "are no multiple of eight: no GPU has timed it", ("apart", "padded"),
    apart=1.2e-11, padded=1.3)
row("conv/slabs", h200("h200-conv.md"),
    "s of a launch and its ends; times as long with one warpgroup; times as long as counted with 64 channels and filters, and more for "
    "each time that there are twice as many; share of bytes of sums", ("start",),
    start=5e-6, one_group=1.3, slower=1.05, twice=0.02, sum_bytes=1.5)
row("conv/pointwise", GUESSED,
    "s of the sum's launch",
    sum_launch=2e-6)
row("conv/pixel_columns", h100("h100-weak-spots-conv.jsonl"),
    "s of a launch and its ends, of a further tile; bytes a second that arrive in a multiprocessor; s of a product of a row and a column, "
    "of a step besides; times a step and a further tile in clusters",
    start=2.6e-6, further=1.2e-6, arrives=105e9, product=1.9e-11, step=2e-8, shared=0.98, together=1.5)
row("conv/merged_groups", GUESSED,
    "s of the launch that spreads the filters", ("spread",),
    spread=2.5e-6)
row("conv/widened", h100("h100-record.jsonl.gz"),
    "times as long as the copies and the kernel alone: it finds a part of them in the L2",
    slower=0.9)
row("conv/winograd", h200("h200-conv-fwd-float32_3x3-float32.jsonl"),
    "s of both launches; times that the filter's transform moves it; times as long as counted: seven layers with the first tile",
    ("start", "filter"),
    start=6e-6, filter=3, slower=1.34)
row("conv/winograd_nonfused", GUESSED,
    "s of launches, of a slice; share of the memory's rate; the L2's rate over the memory's; times a product in another order; share of "
    "the rate of images in another order",
    start=8e-6, slice=16e-6, rate=0.75, l2=2, order=1.1, image=0.7)
row("conv/fft", GUESSED,
    "s of a launch, of all; cycles of a block besides; share of the memory's rate of transforms; instructions of a pixel",
    launch=2e-6, start=3e-6, block=1500, rate=0.6, pixel=45)
row("conv/col2im", GUESSED,
    "instructions of a thread, an element of it, a row of taps, a tap, at a stride",
    thread=110, element=6, row=40, tap=10, strided=10)
row("conv/im2col_gemm", h100("h100-weak-spots-conv.jsonl"),
    "times as long for backward data of fewer than 8 channels, with channels last: 4x3x512x512, 32x3x224x224; the rate at which the L2 "
    "serves sectors, over the memory's, where neighbouring threads read pixels whose channels are contiguous; s of a column of a product "
    "of few rows (h100-record.jsonl.gz); times as long where windows are patches: no GPU has timed it", ("patches",),
    few=1.7, patches=1.03, sectors=1.3, column=1.5e-11)


# ---- attention

row("attention/naive", h200("h200-attention.jsonl"),
    "instructions of a multiply-add: four times of two problems; s of one alone", ("alone",),
    multiply_add=28, alone=4e-9)
row("attention/rope_naive", GUESSED,
    "instructions of an element, of a dimension's division",
    element=80, dimension=70)
row("attention/unfused", GUESSED,
    "instructions of a score and its exponential, of a score's gradient, of dropout; times as long as the bytes of a pass over scores; s "
    "of a chain of small launches, forward and backward",
    score=14, gradient=30, dropout=120, slower=1.15, fwd=5e-6, bwd=10e-6)
row("attention/dropout_mask", GUESSED,
    "instructions of a thread, of an element, stored alone; of a thread with 16-byte stores, of an element",
    thread=260, element=8, philox=130, stored=4)
row("attention/rope_rows", COUNTED,
    "instructions of a thread, a dimension, an element, an access; blocks of a multiprocessor",
    thread=40, dimension=12, element=8, access=8, blocks=6)
row("attention/simt", h200("h200-attention.md"),
    "share of the FP32 pipe's rate forward, backward; instructions of a load of 16 bytes over multiply-adds, of exponentials forward, "
    "backward; threads of a multiprocessor that are enough",
    fwd=0.85, bwd=0.7, load=2, exponentials=24, exponentials_bwd=60, enough=256)
row("attention/mma", h100("h100-record.jsonl.gz"),
    "share of mma.sync's rate forward, backward; s for which a block alone waits in each step, for copies, barriers and fragments, too; "
    "instructions of a score forward, of a bias or mask, ALiBi, softcap, dropout; of an element loaded alone forward, whose accesses take "
    "the L1 that long, of one of 8 bits that is widened; of a score and its gradient backward, of the same options, of an element loaded "
    "alone: 103 times of 41 problems forward, 46 of 25 backward, off by 14 % (root mean square)",
    ("alibi", "softcap", "slow", "small", "bwd_alibi", "bwd_softcap", "bwd_dropout", "bwd_slow"),
    fwd=0.47, bwd=0.48, latency=6.6e-7, bwd_latency=7.8e-7, score=10, read=40, alibi=4, softcap=10, dropout=6, slow=32, small=2,
    bwd_score=4, bwd_read=36, bwd_alibi=4, bwd_softcap=12, bwd_dropout=80, bwd_slow=32)
row("attention/mma_rate", Source("nominal", "sm_80, sm_90a and others"),
    "multiply-adds a clock of a multiprocessor's tensor cores with mma.sync",
    sm_80=1024, sm_90=1280, other=512)
row("attention/wgmma", h200("h200-attention.jsonl"),
    "s of a launch; cycles of a tile of rows before its first and after its last product and of a step of it, those that a step takes at "
    "least beside its products; the clock under load as a share of the nominal one. What a step takes, in parts of the tensor cores' "
    "cycles and of those of the units for exponentials, what holding q saves of it for each 16 elements of a row, and what gaps one, two "
    "and three warpgroups leave; instructions of each score that a mask looks at, and of a window's left bound: fitted to 91 times of 17 "
    "problems, bfloat16, widths of 64 to 256; off by 4 % (root mean square). Instructions of options, counted: of a bias that comes "
    "through TMA, ALiBi, softcap, dropout, of a mask's tile; of a bias that each thread reads for itself as many as take its accesses' "
    "time. Share of launches and of tiles that a dynamic scheduler adds, share of the memory's rate; times as long with tiles of a mask, "
    "and with heads that are copied first (h100-record.jsonl.gz)", ("dynamic", "rate"),
    launch=3e-6, tile=2130, step=370, least=320, clock=0.83, product=0.566, exponential=0.79, held=0.0056,
    gaps={1: 1.04, 2: 1.0, 3: 0.943}, mask=2.5, left=1.25, staged=2, bias=43, alibi=4, softcap=10, dropout=14, mask_tile=3.5, dynamic=0.5,
    rate=0.8, masked=1.06, padded=1.4)
row("attention/wgmma_bwd", h100("h100-record.jsonl.gz"),
    "of a step, beside its products: cycles, instructions of each score that products do not cover, and cycles that a step takes at least "
    "where additions have an order; s of a block before its first step and after its last one; instructions that split a probability and "
    "its gradient, counted; of a bias, ALiBi, softcap, dropout: 96 times of 43 problems, off by 7 % (root mean square); bytes of dq in "
    "order, and not", ("bias", "split"),
    step=530, score=9.5, order=1900, block=4e-6, split=16, bias=12, alibi=1, softcap=25, dropout=27, dq_ordered=6, dq=10)
row("attention/wgmma_roles", h100("h100-weak-spots-attnbwd.jsonl"),
    "times as long as counted: a step of two blocks that exchange ds; of `flash_wgmma` one of tiles of 32 queries, whose products wait for "
    "shared memory: fitted to 13 times of seven problems, bfloat16, heads of 160 to 256",
    pair=1.13, narrow=1.5)
row("attention/fp8", h100("h100-weak-spots-attnfp8.jsonl"),
    "what one, two and three warpgroups take of what the model of 16 bits says of their products and exponentials; cycles of a part of the "
    "accumulators after the first, whose products nothing else of the warpgroup overlaps, guessed", ("part",),
    share={1: 0.83, 2: 0.81, 3: 0.775}, part=100)
row("attention/bf16x6", COUNTED,
    "instructions that split a probability; cycles of reading q with narrow tiles; times as long backward with tiles of 32 rows, whose "
    "products wait for shared memory: half as much again in three of five", ("narrow",),
    split=5.5, reading=16, narrow=1.3)
row("attention/score_mod", COUNTED,
    "instructions of a score: its scale; of a function with a sum, a bound or a product, of those with one special function, of tanh that "
    "a tile has at once, of all others; of an operand of columns, of pairs, of a rounding",
    scale=1, light=1, medium=8, tanh=8, other=16, column=2.5, matrix=5, rounding=2)
row("attention/dbias", GUESSED,
    "share of mma.sync's rate; instructions of a score, ALiBi, softcap, dropout; of a score with wgmma, counted; share of float32's rate; "
    "instructions of a multiply-add by `naive` (h100-record.jsonl.gz)",
    rate=0.6, score=12, alibi=10, softcap=25, dropout=20, wgmma_score=8, float32=0.35, naive=120)
row("attention/decode_naive", GUESSED,
    "instructions of a multiply-add; s of one alone; threads of a multiprocessor",
    multiply_add=8, alone=4e-9, resident=1024)
row("attention/decode_simt", h200("h200-attention.md"),
    "share of bytes that further tiles read again; instructions of a key's multiply-adds, a row, a step of its sum, a load of less than 16 "
    "bytes; times those, of which half is issued; s of a wave, of a block's ends", ("narrow", "wave", "ends"),
    again=4, element=2, row=10, halving=2, narrow=4, issue=2, wave=1.5e-6, ends=5e-6)
row("attention/decode_mma", h200("h200-attention.jsonl"),
    "share of the nominal bandwidth, where nothing is written; s of a launch, a wave of blocks, a warp that meets the others, a load as "
    "blocks without others see it, a cluster that merges, and what a merge takes less whose blocks run beside the ranges'; of a warp's "
    "last turn, if it were empty; share of a wave's time by which the ends of its blocks differ; exponent of the norm: 89 times of eleven "
    "problems, off by 2.5 % (root mean square); the rate between those of an H200, 0.943, and of an H100",
    rate=0.925, launch=3.4e-6, wave=1.65e-6, meeting=0.16e-6, latency=1.52e-6, cluster_meeting=0.35e-6, beside=1.05e-6, turn=0.5e-6,
    skew=0.015, power=8)
row("attention/decode_wgmma", h200("h200-decode-8-bit.jsonl"),
    "s of a launch, and of a block before its first product and after its last one; cycles of a step beside its products; the clock under "
    "load, and the rates of memory and of the L2, as shares of the nominal clock and of the nominal bandwidth of memory: 72 times of 24 "
    "problems, off by 4 % (root mean square); the rate on an H100, and bytes a second that the copies in flight reach on an H200: "
    "bench/results/h100-record.jsonl.gz",
    launch=3.6e-6, block=0.4e-6, step=450, clock=0.71, rate=0.945, most=4.22e12, l2=1.33)
row("attention/merge", h200("h200-attention.jsonl"),
    "s of a merge's launch, of a turn of its loads",
    launch=1.2e-6, turn=0.7e-6)


# ---- recurrent networks

row("rnn/naive", GUESSED,
    "instructions of a multiply-add, of a weight's gradient (1x1 gru 1024x1024, an H100); s of a step's barriers and latencies; threads of "
    "a multiprocessor",
    multiply_add=8, weight=280, step=2e-6, resident=2048, least_share=1e-3)
row("rnn/small", GUESSED,
    "s of an element, threads of a multiprocessor",
    element=1e-6, resident=2048)
row("rnn/weights", GUESSED,
    "bytes in flight on a multiprocessor that sustain memory's rate; s of a product that another is added to",
    enough=32768, added=5e-6)
row("rnn/persistent", h200("h200-rnn.jsonl"),
    "s of a launch, of the first of R to arrive; bytes a second of the L2; times as long where CUDA cores go through columns of R, whose "
    "neighbours are in other lanes' lines: 160 layers",
    launch=2.0e-6, fetch=1.5e-6, l2=5.5e12, columns=2.6)
row("rnn/persistent_mma", h200("h200-rnn.jsonl"),
    "s of a step where blocks meet through global memory, as a cluster, or have nobody to wait for; what each further part of the lines "
    "adds, a pair of a thread, backward once more (an H100), a load and product that wait for the ones before, and each part of k, whose "
    "sums are added up; how much longer than at full rate products take, and copies: 160 layers",
    meet=0.85e-6, cluster=0.55e-6, alone=0.5e-6, part=0.6e-6, pair=0.95e-6, back=0.3e-6, chain=8e-9, split=0.05e-6, product=1.5, copies=0.7)
row("rnn/persistent_tf32", Source("fitted", "NVIDIA H100 80GB HBM3", "bench/results/h100-weak-spots-rnn.jsonl"),
    "as rnn/persistent_mma, of float32 in TF32: 60 layers; the chain so that the right parts of k are chosen", ("alone", "chain"),
    meet=1.15e-6, cluster=1.13e-6, alone=0.5e-6, part=0.2e-6, pair=0.33e-6, back=0.018e-6, chain=5e-9, split=0.036e-6, product=2.22,
    copies=0.66)
row("rnn/persistent_simt", h200("h200-rnn.jsonl"),
    "as rnn/persistent_mma, on CUDA cores",
    meet=0.7e-6, cluster=0.6e-6, alone=0.5e-6, part=0.5e-6, pair=1.6e-6, back=0.0, chain=22e-9, split=0.0, product=1.5, copies=1.0)
