"""Rows of the models of what mostly moves bytes, and of terms that several families share."""
from ._row import COUNTED, GUESSED, h100, h200, row

# ---- what models of several families share

row("device", h200("h200-bandwidth.md"),
    "s of a launch of a small kernel; share of nominal bandwidth that a copy has (4.27 of 4.8 TB/s); share of its time by which a grid of "
    "one wave is longer; bytes of an element that is loaded alone as fast as 16 bytes are", ("tail",),
    launch=2.5e-6, copy_rate=0.89, tail=0.5, narrow=5)
row("ring", h200("h200-bandwidth.md"),
    "rings of rows: s of the first and last steps, least number of steps that count, s that a step waits, and with 256 threads more; "
    "instructions for each row; threads of a multiprocessor that are enough",
    start=2e-6, least_steps=5.0, wait=0.34e-6, wait_256=0.3e-6, row=100, enough=256)

# ---- act

row("act/elements", h200("h200-act.jsonl"),
    "instructions: of an element from load to store, of functions with a sum, a bound or a product, of those with one special function, "
    "of gelu, of all others; of a thread, of a dimension of it, of an access", ("other", "thread"),
    light=5, medium=12, heavy=19, other=30, thread=30, dimension=14, access=4)
row("act/waits", h200("h200-act.jsonl"),
    "chunks of a thread -> times as long, with heavy functions of 16-bit elements: little is loaded while others compute",
    chunks_1=1.09, chunks_2=1.06, chunks_4=1.0)
row("act/naive", h100("h100-record.jsonl.gz"),
    "instructions of a thread and of a dimension's division; s that it takes beside what is counted; times as long for each input more: a "
    "thread's loads are few bytes",
    ("thread", "dimension", "start"), thread=30, dimension=70, start=1.2e-6, more=0.09)
row("act/rows", h200("h200-act.jsonl"),
    "times as long as counted, and for each chunk of a thread more; s that a block takes beside its bytes, and each of its chunks; times "
    "as long with one row a thread of gates' gradients that are not aligned (h100-weak-spots-band.jsonl); blocks of a multiprocessor",
    slower=1.005, slower_chunk=0.01, start=2.5e-7, chunk=2e-7, single=1.4, blocks=8)
row("act/vector", h200("h200-act.jsonl"),
    "s that each chunk of a block takes beside its bytes; times as long for each chunk more; blocks of a multiprocessor",
    chunk=2e-7, slower_chunk=0.005, blocks=8)

row("act/slope", GUESSED,
    "blocks of a multiprocessor",
    blocks=4)

# ---- fused

row("fused/program", h200("h200-fused-pointwise.jsonl"),
    "instructions of a value that is loaded, stored or rounded, and those that the functions' own numbers count for that", value=3,
    apart=2.5)
row("fused/naive", GUESSED, "instructions of a thread, of a dimension's division, of an array's offset along a "
    "dimension; cycles of an instruction of a thread alone",
    thread=30, dimension=70, array=6, alone=2)
row("fused/rows", h200("h200-fused-pointwise.jsonl"),
    "instructions of a thread, of a dimension, of an array's offset along a dimension, of an access; times as long where the bytes that a "
    "multiprocessor waits for are fewer than these; blocks of a multiprocessor; times as long to issue with two blocks, and with three, at "
    "a time; cycles of an instruction of a thread alone",
    thread=80, dimension=12, array=2, access=4, enough=16384, blocks=8, two_blocks=1.2, three_blocks=1.05, alone=2)

row("fused/reduction_rows", GUESSED,
    "instructions of an access, of a thread for each level; times as long with rows that begin or end off a chunk; bytes in flight that "
    "memory's rate takes; s of a block: at least, for each level, for each element of a thread, for each thread; registers "
    "over those counted; exponents of the norms (h100-record.jsonl.gz)",
    access=6, thread=80, parts=1.1, in_flight=32e3, alone=0.8e-6, level=0.2e-6, element=30e-9, block=0.2e-9, registers=0.75, power=12,
    power_issue=4)
row("fused/reduction_split", GUESSED,
    "instructions of an access; bytes in flight that memory's rate takes; s of a launch beside its work; times as long as its bytes, "
    "between one level, and one with results of elements after it",
    access=6, in_flight=32e3, alone=0.8e-6, slower=1.2)
row("fused/reduction_columns", GUESSED,
    "instructions of an access; bytes in flight that memory's rate takes; s of a launch beside its work",
    access=6, in_flight=32e3, alone=0.8e-6)

# ---- dropout, optim

row("dropout/naive", GUESSED,
    "instructions of a thread and of a dimension's division",
    thread=50, dimension=70)
row("dropout/vector", h200("h200-training.md"),
    "instructions of a thread, a dimension, a call of Philox, an element, an access; blocks of a multiprocessor",
    ("thread", "dimension", "access", "blocks"),
    thread=20, dimension=12, philox=70, element=5, access=4, blocks=6)
row("optim/naive", GUESSED,
    "instructions of an element and of a dimension's division",
    thread=80, dimension=70)
row("optim/chunks", h200("h200-training.md"),
    "times as long with another number of elements a thread than suits; blocks of a multiprocessor", ("blocks",),
    misfit=1.03, blocks=6)
row("optim/grads_naive", GUESSED,
    "instructions of an element and of a dimension's division; s for each turn of the block that adds up",
    thread=40, dimension=70, turn=0.3e-6)

# ---- pool

row("pool/naive", GUESSED,
    "instructions of a thread, of a tap; s that a tap waits (h100-record.jsonl.gz)",
    thread=400, tap=60, latency=1.4e-6)
row("pool/fwd_channels", h200("h200-bandwidth.md"),
    "instructions of a thread, a tap, its channels without and with an index; bytes a clock of the L1; threads of a multiprocessor that "
    "are enough; share of overlapped times that shows; s of a tap where one thread has a million; s that a thread for one output takes "
    "beside what is counted (h100-weak-spots-band.jsonl, h100-record.jsonl.gz)", ("exposed", "enough"), elements=5e-7,
    thread=83, tap=19.4, channel=0.43, channel_index=1.5, l1=471, enough=512, least_share=1e-3, exposed=0.5, blocks=4, tap_alone=40e-9)
row("pool/fwd_rows", h200("h200-bandwidth.md"),
    "instructions of a thread, a load, a tap of an output without and with an index, an output; outputs of ragged rows, times; bytes a "
    "clock of the L1; threads that are enough; share that shows; bytes a second of sectors that an index is written to again, element by "
    "element and in vectors (h100-record.jsonl.gz)", ("exposed", "enough"),
    thread=150, load=8, tap=1, tap_index=4, output=10, ragged=3, l1=100, enough=512, least_share=1e-3, exposed=0.5, blocks=4,
    elements=1.7e12, vectors=8e12)
row("pool/fwd_global", h200("h200-bandwidth.md"),
    "instructions of a thread, an access, an element without and with an index; threads that are enough; share that shows",
    ("exposed", "enough"),
    thread=300, access=8, element=2, element_index=5, enough=1024, least_share=1e-3, exposed=0.5, blocks=4)
row("pool/fwd_global_channels", h200("h200-bandwidth.md"),
    "instructions of a thread, a load, an element without and with an index; blocks that are enough; bytes in flight of a "
    "multiprocessor that memory's rate takes; share that shows; s of the launch that reduces what parts leave",
    ("exposed", "enough", "in_flight", "joined"),
    thread=600, load=10, element=2, element_index=5, enough=2, in_flight=16e3, exposed=0.5, blocks=3, joined=5e-6)
row("pool/fwd_planes", COUNTED,
    "instructions of an element's load, of a window along a row and along a column, of a tap without and with an index; blocks of a "
    "multiprocessor; share of overlapped times that shows; s that a block waits; times as long (h100-record.jsonl.gz)",
    ("exposed", "wait"),
    load=14, row=45, column=75, tap=4.5, tap_index=9, blocks=4, exposed=0.5, wait=3e-6, slower=1.65)
row("pool/bwd_channels", h200("h200-bandwidth.md"),
    "instructions of a thread of a maximum and of an average, a pixel, an output, for each channel and pixel of a maximum and of an "
    "average; bytes a clock of the L1; share that shows; instructions of the divisor of an adaptive average's output, and how much longer "
    "the last wave of them makes a grid at most (h100-record.jsonl.gz)", ("exposed", "most_tail"),
    maximum=280, average=286, pixel=6.3, output=33.3, maximum_pixel=1.06, average_pixel=0.67, l1=180, exposed=0.5, blocks=3,
    adaptive_average=75, most_tail=1.5)
row("pool/bwd_patches", COUNTED,
    "instructions of a thread of a maximum and of an average, a pixel, an output, of each channel of a pair of pixel and output of a "
    "maximum and of an average; bytes a clock of the L1; share that shows",
    maximum=60, average=120, pixel=6, output=10, maximum_pair=3, average_pair=1, l1=100, exposed=0.4)
row("pool/bwd_rows", h200("h200-bandwidth.md"),
    "instructions of a thread, a group, a pair of pixel and output of a maximum and of an average, a pixel; pixels of ragged rows, times; "
    "bytes a clock of the L1; share that shows; s of a sector that a narrow store fills in part, of two rows of pixels and of one "
    "(h100-record.jsonl.gz)", ("exposed",), piece=1.05e-11, piece_of_one=5.8e-12,
    thread=150, group=10, maximum=3, average=2, pixel=3, ragged=3, l1=100, exposed=0.5)

# ---- reduce

row("reduce/naive", GUESSED,
    "instructions of an element, of a dimension's division; cycles of a load, and of an instruction alone",
    thread=30, dimension=70, load=400, alone=2)
row("reduce/ways", h200("h200-reduce.jsonl"),
    "share of memory's rate with accesses of 8, 4 bytes, of wide and narrow elements; s that a flight of loads takes; bytes in flight "
    "that memory's rate takes; tail of one wave; s of the end of columns for each halving, of rows of a warp and of more, of a load; "
    "times as long that a flight takes beside others; bytes fetched over wanted with short rows, strided by 4, 8, other bytes; "
    "instructions of a thread, of a load, of an element and of two states that become one by mode, and with unaligned rows, where they "
    "are merges too; s that a multiprocessor takes to begin a block; exponents of the norms; "
    "share of memory's rate of columns by single elements; s of a flight of loads of theirs, and of each load of it "
    "(h100-record.jsonl.gz)", columns=0.95, turn=6.6e-7, turn_load=9e-8,
    thread=120, access=8, ragged=60, ragged_merges=8, block=1.6e-7, power_rows=4, power_columns=2.3,
    element={"add": 1.5, "min": 3, "max": 3, "amax": 2, "mul_no_zeros": 4.4, "norm2": 8, "logsumexp": 9, "argmin": 5, "argmax": 5},
    merge={"add": 2, "min": 5, "max": 5, "norm2": 7, "logsumexp": 17, "argmin": 27, "argmax": 27},
    words_2=0.9, words_1=0.7, wide=0.7, narrow=0.4, latency=8e-7, in_flight=32 << 10, tail=0.03, halving=5e-8, end_block=4e-7,
    end_warp=1e-7, load=2e-8, loaded=1.6, short_rows=1.6, short_rows_bit=0.2, strided_4=8.0, strided_8=4.0, strided=16.0, least_share=1e-3)

# ---- softmax

row("softmax/rows", h200("h200-softmax-fwd-rows.jsonl"),
    "bytes in flight that memory's rate takes; instructions of an element forward, of one of 16 bits, backward, of an access, of a thread "
    "and row; threads that are enough; times as long with unaligned rows, for each block of a cluster forward, for each register beyond "
    "four of a warp, with rows in shared memory, of a cluster for each thread of a block over the blocks of a multiprocessor, and with 16 "
    "bits (h100-weak-spots-band.jsonl), forward with one load of a thread each (h100-record.jsonl.gz); exponent of the norm; s of a "
    "cluster's launch",
    ("access", "thread", "enough", "power", "parts_16"),
    in_flight=32e3, element=14, element_16=12, element_bwd=6, access=10, thread=30, enough=512, heads=1.03, cluster=0.065, register=1.01,
    shared=1.01, parts=5e-5, parts_16=1.08, single=1.13, power=12, cluster_launch=2e-6)
row("softmax/waits_fwd", h200("h200-softmax-fwd-rows.jsonl"),
    "s of a block: at least, for each element of a thread, for each thread, twice that where a part of the row is in shared memory, for "
    "each block of its cluster, and in a cluster for each element of a thread once more: rows of 1024 to 65536",
    alone=1.05e-6, element=55e-9, thread=3.2e-9, block=0.17e-6, cluster_element=0.0)
row("softmax/waits_bwd", h200("h200-softmax-bwd-rows.jsonl"),
    "as softmax/waits_fwd",
    alone=1.0e-6, element=50e-9, thread=0.0, block=0.08e-6, cluster_element=60e-9)
row("softmax/columns", h200("h200-bandwidth.md"),
    "times that what does not fit is read; bytes in flight of a thread that memory's rate takes; instructions of an element forward, "
    "backward, of a merge forward (h100-record.jsonl.gz), backward; threads that are enough", ("enough", "merge_bwd"),
    again=1.6, in_flight=32, element=14, element_bwd=7, merge=22, merge_bwd=4, enough=512, blocks=4)
row("softmax/naive", GUESSED,
    "instructions of an element; s that it waits; threads of a multiprocessor",
    element=20, wait=100e-9, resident=1024)
row("softmax/ring", COUNTED,
    "instructions of 16 bytes forward, backward, times the elements in two bytes",
    fwd=13, bwd=2)
row("softmax/split", h200("h200-bandwidth.md"),
    "share of time that reading from the L2 takes; threads that are enough; instructions of an element forward, backward, of a thread; s "
    "between the launches", ("between",),
    again=0.4, enough=1024, element=18, element_bwd=9, thread=400, between=2e-6)

# ---- norm

row("norm/forward", h200("h200-layer-norm-fwd.jsonl"),
    "s of a block: at least, for each 16 bytes of a thread, in a cluster, and for each block of it: rows of 1024 to 65536; times that "
    "with RMS norm, with weights that are loaded alone; bytes in flight that memory's rate takes; share of it with weights loaded alone; "
    "times as long for each unit beyond four of a warp, and for each of a thread below three (h100-weak-spots-band.jsonl); exponent of the "
    "norm; threads that are enough; times as long with a program and one block a multiprocessor: 2048x8192 with an addition, an H100 "
    "(h100-graph-norm.jsonl); instructions of a thread of a block, with unaligned rows more, of 16 bytes, of an element, more with "
    "weights loaded alone, times with RMS norm; exponent of their norm (h100-record.jsonl.gz)", ("enough", "power"), lonely=1.4,
    thread=282, edges=230, vector=30, element=12, single_weight=19, rms_issue=0.55, power_issue=6,
    alone=1.3e-6, unit=0.78e-6, cluster=2e-6, block=0.1e-6, rms=0.85, single_wait=2.0, in_flight=32e3, single=0.95, beyond=1.02, few=1.012,
    power=12, enough=512)
row("norm/backward", h200("h200-layer-norm-bwd.jsonl"),
    "instructions of an element of 32 and of 16 bits, more if not kept, more of narrow accesses, of a row of a thread, of a cluster's "
    "block; threads that issue at the full rate alone, and together; share of that rate; s that a step waits in a block, a warp, a "
    "cluster, one that finishes a step late, for each block of it, without a ring; bytes in flight; share of memory's rate with short "
    "rings; times as long in clusters, for each register in sums; times a multiprocessor's share of memory's rate that one reaches "
    "(h100-weak-spots-band.jsonl); exponent of the norm; s of a cluster's launch (h100-record.jsonl.gz)", ("power", "most"),
    wide=15, narrow=17, not_kept=2, unaligned=20, row=100, cluster_row=3, alone_threads=512, threads=640, most_issue=0.8, block_wait=0.3e-6,
    warp_wait=0.1e-6, cluster_wait=2e-6, late_wait=0.65e-6, cluster_block=0.04e-6, no_ring=0.6e-6, in_flight=64e3, short_ring=0.96,
    in_cluster=1.02, sums=0.01, most=1.2, power=4, cluster_launch=1.3e-6)
row("norm/split_forward", h200("h200-bandwidth.md"),
    "share of time that reading from the L2 takes; threads that are enough; share of memory's rate, with weights loaded alone; s between "
    "the launches", ("between",),
    again=0.4, enough=1024, rate=0.9, single=0.5, between=2e-6)
row("norm/split_backward", h200("h200-bandwidth.md"),
    "share of time that reading from the L2 takes; threads that are enough; share of memory's rate; s between the launches", ("between",),
    again=0.4, enough=768, rate=0.85, between=3e-6)
row("norm/ring", COUNTED,
    "instructions of an element of layer norm, and as many as rows of 65536 show of RMS norm (h100-weak-spots-band.jsonl)", ("rms",),
    layer=12, rms=11)
row("norm/naive", GUESSED,
    "instructions of an element and pass; passes forward and backward; s that an element waits, and a row's column; threads of a "
    "multiprocessor",
    element=150, fwd=4, bwd=9, wait=100e-9, wait_row=300e-9, resident=1024)
row("norm/channel_naive", GUESSED,
    "instructions of an element and pass, of inference; passes forward and backward; s that an element waits; threads of a multiprocessor",
    element=150, infer=400, fwd=4, bwd=9, wait=100e-9, resident=1024)
row("norm/columns", h200("h200-batch-norm.jsonl"),
    "share of memory's rate with accesses of 8, 4 bytes, of single elements for every two bytes, of the second pass, of the sums', above 1 "
    "as the L2 has a part; blocks of a multiprocessor that are enough; s between launches", ("between", "enough"),
    words_2=0.9, words_1=0.7, element=0.2, rate=1.22, sums_rate=1.36, enough=2, between=2e-6, blocks=8)
row("norm/resident", h100("h100-record.jsonl.gz"),
    "s of a launch and its ends; share of memory's rate, reading and writing, and of rows of 64 and 32 bytes; times as long for such to be "
    "read again; times a multiprocessor's share of it that one reaches, and that the L2 delivers; s of an exchange of sums, times as long "
    "between blocks, of each further one, of the first chunks; s of the launch that clears counters",
    start=2e-6, read=0.64, write=0.61, bytes_64=1.0, bytes_32=0.8, again_64=1.0, again_32=1.54, most=2.2, l2=1.2, exchange=0.66e-6,
    cluster=2.0, block=0.33e-6, chunk=0.32e-6, counters=0.1e-6)
row("norm/held", GUESSED,
    "instructions of an element, of an access; s that a block waits; times a multiprocessor's share of memory's rate that one reaches; "
    "times as long (h100-record.jsonl.gz)",
    element=14, access=60, wait=3e-6, most=2.0, slower=1.0)
row("norm/planes", h200("h200-batch-norm.jsonl"),
    "bytes in flight that memory's rate takes; share of it with unaligned rows, of the second pass, of the sums'; threads that are "
    "enough; s between launches; s of a statistic that is merged (h100-record.jsonl.gz)", ("between", "enough"), statistic=3.6e-10,
    in_flight=64e3, heads=0.9, rate=0.95, sums_rate=0.9, enough=512, between=2e-6, blocks=4)
row("norm/group", h200("h200-group-norm.jsonl"),
    "bytes in flight that memory's rate takes; share of it of blocks for several groups, of one block a multiprocessor, of all; threads "
    "that are enough", ("enough",),
    in_flight=100e3, split=0.9, one_block=0.9, rate=0.92, enough=512)
row("norm/slices", h100("h100-weak-spots-band.jsonl"),
    "share of memory's rate; s that a block's bytes are not in flight, least share that leaves; share with 16-bit elements, with one block "
    "a multiprocessor, with one, two and four chunks of 16 bytes of a pixel; threads that are enough",
    ("one_block", "chunks_1", "chunks_2", "enough"),
    rate=0.99, wait=0.55e-6, least=0.1, narrow=0.93, one_block=0.8, chunks_1=0.5, chunks_2=0.75, chunks_4=0.92, enough=512)
row("norm/merge_naive", GUESSED,
    "s that a thread waits for a part",
    wait=1e-6)
row("norm/lrn_naive", GUESSED,
    "instructions of an element, of one of its window",
    element=250, window=12)
row("norm/lrn_window", GUESSED,
    "share of memory's rate with accesses of 8, 4 bytes, of single elements; share of what neighbours load twice that is not free; "
    "instructions of an element, of one of its window; windows backward",
    words_2=0.95, words_1=0.7, element_rate=0.4, twice=0.2, element=16, window=2, bwd=2.5)

# ---- loss

row("loss/columns", h200("h200-training.md"),
    "threads that are enough; bytes in flight of a thread that memory's rate takes; instructions of an element, with shares, of a row; s "
    "of a batch of classes; blocks of a multiprocessor", ("enough", "blocks"),
    enough=512, in_flight=64, element=14, shares=8, row=60, batch=0.8e-6, blocks=8)
row("loss/rows", h200("h200-training.md"),
    "bytes in flight that memory's rate takes; threads that are enough; instructions of an element, with shares, with weights "
    "(h100-record.jsonl.gz), of a thread; s of a block's turn and of its ends; exponent of the norm; times as long with unaligned rows, "
    "with large blocks",
    ("enough", "power"),
    in_flight=64e3, enough=512, element=12, shares=8, weight=5, thread=40, turn=0.8e-6, ends=1.6e-6, power=8, heads=1.02, large=1.1)
row("loss/split", h200("h200-training.md"),
    "threads that are enough; instructions of an element, with shares, with weights (h100-record.jsonl.gz), of a thread; times as long of "
    "rows left whole, backward; s between launches", ("between",),
    enough=1024, element=14, shares=8, weight=5, thread=300, whole=1.1, bwd=1.12, between=2e-6)
row("loss/naive", GUESSED,
    "instructions of an element and pass; s that it waits; threads of a multiprocessor",
    element=20, wait=100e-9, resident=1024)
row("loss/nll_naive", GUESSED,
    "bytes of a row beside a sector; s of the second launch's block",
    row=20, block=2e-6)
row("loss/nll_flat", GUESSED,
    "share of a copy's rate; instructions of a piece of 16 bytes, of all threads of a warp that has a label; s that a thread waits, "
    "beside the others and first of all; threads of a multiprocessor",
    rate=1.06, piece=70, label=8000, wait=1.2e-6, start=1.3e-6, resident=1024)
row("loss/nll_block", GUESSED,
    "s of a block, and of each of its threads",
    block=0.5e-6, thread=1e-9)
row("loss/ctc_block", h200("h200-training.md"),
    "s of a step, times as long for each further state of a thread; threads of a multiprocessor", ("step",),
    step=0.15e-6, state=0.4, resident=2048)
row("loss/ctc_naive", GUESSED,
    "s of a state of a step; instructions of a state of a class, backward; threads of a multiprocessor",
    state=0.8e-6, element=4, resident=1024)
row("loss/mse_naive", GUESSED,
    "bytes of an element of one array if dimensions are apart; share of memory's rate; instructions of an element, of a dimension's "
    "division; s of the second launch's block",
    spread=16, rate=0.5, element=30, dimension=90, block=2e-6)
row("loss/mse_vector", h200("h200-training.md"),
    "share of memory's rate with few loads of a thread; threads that are enough; instructions of an element; s of an access to one array, "
    "backward (h100-record.jsonl.gz)", ("enough", "element"),
    access=1e-7, few=0.95, enough=512, element=8, blocks=8)

# ---- embedding

row("embedding/naive", GUESSED,
    "instructions of an element, of a dimension's division, of a position; s that a thread waits at first, for a position",
    element=60, dimension=90, position=10, start=1.5e-6, wait=20e-9)
row("embedding/fwd_rows", h100("h100-record.jsonl.gz"),
    "instructions of a unit; s of a block: for its index and its row, and for each unit of a thread; s more for each of these; times as "
    "long with one unit a thread", ("unit", "flight"),
    unit=40, turn=6e-7, turn_unit=3.7e-7, flight=1.5e-7, single=1.02)
row("embedding/sorted_list", GUESSED,
    "s of a block of either launch, and of a chunk of a tile's length beside it; the share of all positions that a frequent row has",
    block=3.5e-6, chunk=6e-6, frequent=0.1)
row("embedding/bwd_sorted", GUESSED,
    "instructions of a thread, of a position it gathers, of a column of one; s that a thread waits for a few positions, for where its "
    "rows are; threads that are enough",
    thread=40, position=12, column=3, wait=0.8e-6, turn=1.2e-6, enough=1024)
row("embedding/bwd_direct", GUESSED,
    "s until a block writes, for each 256 indices it looks at, of an index that it sorts, that a thread waits for a few positions; the "
    "share of all positions that a frequent row has; of the rate of a copy",
    start=1.5e-6, block=0.3e-6, look=2e-9, wait=0.8e-6, frequent=0.1, rate=1.05)

# ---- transform

row("transform/naive", GUESSED,
    "instructions of a dimension's division, of a thread of cast, of a dimension of pad; s that a launch takes that waits for the one "
    "before it; share of divisions and memory's time that does not overlap (h100-record.jsonl.gz)",
    dimension=70, cast=30, pad=80, alone=4e-7, exposed=0.45)
row("transform/cast_vector", COUNTED,
    "instructions of a thread, a dimension, an element, an access",
    thread=20, dimension=12, element=6, access=8, blocks=6)
row("transform/rows", h200("h200-transpose.jsonl"),
    "instructions of a chunk, a dimension, an element that is gathered; chunks of a row that are gathered; elements a clock that the L1 "
    "serves; times as long with one chunk per thread; s that each chunk of a block takes beside its bytes (h100-weak-spots-band.jsonl); "
    "share of what gathered ends take that memory does not hide, and share of chunks from which on it shows (h100-weak-spots-grid.jsonl)",
    ("dimension", "blocks"),
    chunk=60, dimension=12, element=8, gathered=64, l1=8, one_chunk=1.03, late=2e-7, ends=1.8, most=0.6, blocks=8)
row("transform/pad_rows", h100("h100-weak-spots-pad.jsonl"),
    "chunks of a row up to which there are ends of rows everywhere; times as long there with elements of one byte, of two", ("short",),
    short=64, one_byte=1.85, two_bytes=1.2)
row("transform/pad_bwd_rows", h100("h100-weak-spots-pad.jsonl"),
    "instructions, with what a warp waits for, of a chunk and of the sums of a row, alone and in lists, and alone where they "
    "are mirrored; of a dimension beyond two in lists (h100-record.jsonl.gz); of an element that is gathered; s that each chunk of a block "
    "takes beside its bytes", ("element", "late", "blocks"),
    chunk=400, end=770, listed_chunk=340, listed_end=1400, mirrored_end=1550, outer=25, element=30, late=2e-7, blocks=4)
row("transform/pad_flat", h100("h100-weak-spots-pad.jsonl"),
    "instructions, with what a warp waits for: of a vector, a dimension, a row that is looked up, an element that is gathered; of a "
    "vector and an element from shared memory; of a vector within a row, of a dimension beyond two of it, of an element beside one, "
    "mirrored, with a value to fill in; of a vector in lists, vectors of a row's end in them, an element of one byte of those "
    "(h100-record.jsonl.gz); elements a clock that the L1 serves; s that each vector of a block takes beside its bytes",
    ("dimension", "row", "l1", "late", "blocks"),
    vector=70, dimension=12, row=15, element=32, staged=100, from_shared=8, dense=140, outer=53, beside=33, beside_mirrored=38.5,
    beside_filled=49, listed=331, ends=3.2, listed_byte=16, l1=8, late=5e-8, blocks=1)
row("transform/concat_batch", h100("h100-weak-spots-band.jsonl"),
    "times as long as the rows of each array, with more than four arrays a launch, and with one chunk per thread of single bytes "
    "(h100-weak-spots-grid.jsonl)", slower=0.97, eight=2.1, bytes=1.12)
row("transform/copy", h200("h200-transpose.jsonl"),
    "bytes in flight of a thread that memory's rate takes; instructions of a thread, a dimension; times as long with units of 1 or 2 "
    "bytes, and of up to 4 where rows of y have gaps and begin within a sector (h100-weak-spots-grid.jsonl, h100-record.jsonl.gz)",
    ("thread", "dimension", "blocks"),
    in_flight=16, thread=10, dimension=12, short=1.08, ragged=1.4, blocks=8)
row("transform/few", h200("h200-transpose.jsonl"),
    "instructions of a thread, a dimension, an access, an element; times as long as a copy, and more for each of an odd number of chunks "
    "beyond two that a thread stores side by side (h100-record.jsonl.gz); bytes of a chunk that are as fast",
    ("thread", "dimension", "blocks"),
    thread=30, dimension=12, access=10, element=4, slower=1.1, apart=0.13, chunk=8, blocks=5)
row("transform/tiled", h200("h200-transpose.jsonl"),
    "instructions of a chunk of a thread, of each access of a narrower one; share of the waste of tiles that counts; s of a short access "
    "of a block's threads (h100-record.jsonl.gz)", ("chunk",),
    chunk=60, narrow=23, waste=0.75, short=4.5e-8)
row("transform/planes", h100("h100-weak-spots-band.jsonl"),
    "bytes in flight of a multiprocessor that memory's rate takes; instructions of a chunk, of an element of it; times as long with planes "
    "of whole chunks; s of a block", ("in_flight", "chunk", "element"),
    in_flight=64e3, chunk=30, element=5, whole=1.1, start=8e-7)
row("transform/staged", COUNTED,
    "instructions of a vector, a dimension of it, an element; lanes that its access to shared memory takes; bytes in flight "
    "of a multiprocessor that memory's rate takes; times as long as counted (h100-record.jsonl.gz); s of the loads that a thread "
    "has in flight together",
    vector=16, dimension=8, element=5, bank=8, in_flight=48e3, slower=1.5, start=1e-6)
row("transform/im2col_naive", GUESSED,
    "instructions of an element",
    element=600)
row("transform/im2col_gather", COUNTED,
    "instructions of an element, a store, of one that may reach into the next run; elements of a block; times as long as counted "
    "(h100-regrets.jsonl, h100-record.jsonl.gz)",
    element=12, store=100, split=76, tile=2048, blocks=8, slower=1.5)
row("transform/im2col_tiled", COUNTED,
    "instructions of a chunk of channels, of a chunk of taps, of a row of taps, a load, a tap; s of a block with channels last, and more "
    "for each chunk of a thread (h100-record.jsonl.gz)",
    channels=85, taps=60, row=12, load=6, tap=8, blocks=6, turn=7e-7, turn_chunk=4e-7)
row("transform/col2im_naive", GUESSED,
    "instructions of an element, a tap",
    element=300, tap=220)
row("transform/col2im_gather", COUNTED,
    "instructions of a thread, a row of taps, a tap, an element of it with channels last; of an element at stride 1 and at others "
    "(h100-record.jsonl.gz), of one whose output there is; times as long as counted",
    thread=60, row=40, tap=20, element=4, stride_1=10, strided=33, matching=33, slower=1.7, blocks=6)
row("transform/resample_naive", GUESSED,
    "instructions of an output, a tap, one of a filter (h100-weak-spots-grid.jsonl); of a pixel backward, a tap",
    output=500, tap=60, filter_tap=175, bwd=1500, bwd_tap=200)
row("transform/resample_axes", h200("h200-resample.jsonl"),
    "instructions of an element, a tap",
    element=190, tap=43)
row("transform/resample_tiles", h100("h100-weak-spots-grid.jsonl"),
    "instructions of a block's weights, of a row of pixels that is mixed, of a column and of a tap of it, and of a bank more between "
    "threads; of an output row, of a column, of a tap and of a store of it; of a load, of a pixel of it; share of pixels that several "
    "tiles load that counts; threads of a multiprocessor that issue all they can; times as long; s of a plane of a block",
    start=2800, mixed=10, mixed_column=1.7, mixed_tap=4.3, bank=0.8, row=12, column=3.8, tap=3.3, store=1.2, load=43, pixel=0.1, again=0.4,
    threads=1080, slower=1.1, turn=5.6e-7)
row("transform/resample_chunks", h200("h200-resample.jsonl"),
    "instructions of a chunk, a dimension, a tap of an element with channels last, of an element and a tap forward, backward, of a tap of "
    "a chunk backward; share of the shorter time that shows with channels first (h100-record.jsonl.gz)", ("dimension",),
    exposed=0.5, chunk=90, dimension=20, channels_tap=4, element=7, tap=13, element_bwd=6, tap_bwd=5, chunk_tap=30, blocks=6)
row("transform/affine_bwd", GUESSED,
    "s of a block's sum; s of a turn of it",
    sum=3e-6, turn=0.1e-6)
row("transform/affine_fwd", GUESSED,
    "instructions of a coordinate",
    coordinate=40, blocks=8)
row("transform/affine_naive", GUESSED,
    "instructions of a coordinate; s of an output position backward",
    coordinate=500, walk=60e-9)
row("transform/grid_naive", GUESSED,
    "instructions of an element, of one that looks at an output position",
    element=700, look=60)
row("transform/grid_pixels", h200("h200-training.md"),
    "instructions of a thread, a tap of it, a channel, a tap of it with 16 bits and else; times as long as a copy; share of memory's time "
    "that shows (h100-record.jsonl.gz); threads that are enough", ("enough", "blocks"),
    exposed=0.5, thread=100, tap=15, channel=20, channel_tap_16=30, channel_tap=18, slower=1.2, enough=512, blocks=8)
row("transform/grid_planes", h200("h200-training.md"),
    "instructions of a pixel moved, a channel of it, an output position, a tap of it, a channel of it, a tap of that; times as long as a "
    "copy",
    pixel=30, pixel_channel=18, output=60, tap=10, channel=10, channel_tap=10, slower=1.2)
row("transform/grid_packed", h100("h100-weak-spots-conv.jsonl"),
    "instructions of a position, of a tap, of a load of 16 bytes, of a channel of it, of a result; times as long as a copy, "
    "and as counted with a group that overlaps another, until it has been measured", ("overlapping",),
    position=130, tap=13, load=10, channel=1.75, result=4, slower=1.0, overlapping=1.5)
row("transform/grid_gradient", h200("h200-training.md"),
    "instructions of an output position, of a load with channels last, of its address for a thread, of a load with channels first",
    output=700, load=6, address=20, load_first=22)
row("transform/grid_cells", h200("h200-training.md"),
    "instructions of an output position in four launches; bytes of sorting it, of values and of numbers; of a cell",
    ("sort_values", "sort_numbers", "cell"),
    output=450, sort_values=5, sort_numbers=20, cell=8)
row("transform/grid_gather", h200("h200-training.md"),
    "instructions of a load with channels last, of its address for a thread, of a load with channels first, of finding an output "
    "position, of an element of dx; times that work; times as long with few warps; share of the shorter of work and memory that shows "
    "(h100-record.jsonl.gz); blocks of a multiprocessor that are enough", ("enough",),
    load=6, address=20, load_first=22, find=60, element=5, work=1.2, few_warps=1.1, exposed=0.1, enough=2)
row("transform/grid_atomic", h200("h200-training.md"),
    "additions a clock and multiprocessor; instructions of a thread, of a corner", ("thread", "corner"),
    additions=0.8, thread=60, corner=12)
