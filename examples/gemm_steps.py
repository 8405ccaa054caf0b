# %% [markdown]
# # A GEMM in six steps, from naive to Hopper's tensor cores
#
# y = a @ b.T of bfloat16 matrices, a [M, K] and b [N, K], both contiguous along K, with float32 accumulators. Each step adds one idea, with
# `dnnkern.device` alone, and is registered as an algorithm of `matmul`, so that dispatch allocates, checks and launches it.
#
#     python examples/gemm_steps.py                                        # every step against NumPy; on a GPU also its time
#     python examples/gemm_steps.py --json steps.json --png steps.png      # on an H100 or H200: all steps and cuBLAS, and the chart
#     python examples/gemm_steps.py --read steps.json --png steps.png      # the chart of an earlier run
#
# Without a GPU the steps run on the processor or in the simulator, at small sizes, where no time would mean anything.

# %%
import argparse
import json

import numpy as np
from ml_dtypes import bfloat16

import dnnkern
from dnnkern import Note, dispatch
from dnnkern.device import DEVICE, cuda, device_function, f32, jit, u32
from dnnkern.device.cp_async import commit_copies, copy_async16, wait_copies
from dnnkern.device.epilogue import EpilogueSpec
from dnnkern.device.fastmath import fma
from dnnkern.device.ldmatrix import ldmatrix_x4
from dnnkern.device.mbarrier import fence_mbarrier_init
from dnnkern.device.mma import make_mma
from dnnkern.device.numeric import bfloat16_to_float, float_to_bfloat16, floats_to_bfloat162
from dnnkern.device.pipeline import make_pipeline
from dnnkern.device.registers import make_register_claim, make_register_release
from dnnkern.device.tma import tensor_map_address, tma_load_2d
from dnnkern.device.vec import address, as_u32, load4, load4_into, load_shared_4u32, shared_address
from dnnkern.device.wgmma import descriptor, make_wgmma, make_wgmma_wait, matrix_descriptor
from dnnkern.host.launch import Argument, Launch
from dnnkern.host.tensormap import TensorMap


# %% [markdown]
# ## Step 1: from the definition
#
# One thread per element of y. Every multiply-add loads two elements from global memory; the caches serve most of them, and are the limit.

# %%
@jit(launch_bounds=256)
def naive(a, b, y, M, N, K):
    n = cuda.blockIdx.x * 16 + (cuda.threadIdx.x & 15)
    m = cuda.blockIdx.y * 16 + (cuda.threadIdx.x >> 4)
    if m < M and n < N:
        acc = f32(0)
        for k in range(K):
            acc = fma(bfloat16_to_float(a[m * K + k]), bfloat16_to_float(b[n * K + k]), acc)
        y[m * N + n] = float_to_bfloat16(acc)


# %% [markdown]
# ## Step 2: tiles in shared memory
#
# 256 threads load 16 x 16 elements of a and of b once, and each is used sixteen times: 16 times less traffic. A row of 17 words keeps the
# sixteen rows of b that a half-warp reads in different banks. Now shared memory is the limit: two loads per multiply-add.

# %%
@jit(launch_bounds=256)
def tiles(a, b, y, M, N, K):
    tile_a, tile_b = cuda.shared.array(16 * 17, f32), cuda.shared.array(16 * 17, f32)
    tx, ty = cuda.threadIdx.x & 15, cuda.threadIdx.x >> 4
    row, column = cuda.blockIdx.y * 16, cuda.blockIdx.x * 16
    acc = f32(0)
    for k0 in range(0, K, 16):
        k = k0 + tx
        tile_a[ty * 17 + tx] = bfloat16_to_float(a[(row + ty) * K + k]) if row + ty < M and k < K else f32(0)
        tile_b[ty * 17 + tx] = bfloat16_to_float(b[(column + ty) * K + k]) if column + ty < N and k < K else f32(0)
        cuda.syncthreads()
        for kk in range(16):
            acc = fma(tile_a[ty * 17 + kk], tile_b[tx * 17 + kk], acc)
        cuda.syncthreads()
    if row + ty < M and column + tx < N:
        y[(row + ty) * N + column + tx] = float_to_bfloat16(acc)


# %% [markdown]
# ## Step 3: tiles in registers, vector loads
#
# A thread owns 8 x 8 elements of y: 16 values from shared memory serve 64 multiply-adds. All loads are of 16 bytes: eight bfloat16 from
# global memory, four float32 from shared memory, where tiles are stored with k outermost. The limit is the FP32 pipe, were it not for the
# wait between the loads of a tile and its use.

# %%
PITCH = 128 + 4  # float32 of a row of 128; its 16-byte accesses stay aligned


@device_function
def widen_into(tile, at, p, row, rows, k, K):
    """Eight elements of a row of p, as float32, to a column of the tile."""
    if row < rows and k < K:
        words = load4(as_u32(p), (row * K + k) >> 1)
    else:
        words = u32(0), u32(0), u32(0), u32(0)
    for j in range(4):
        tile[at + 2 * j * PITCH] = bfloat16_to_float(words[j] & 0xFFFF)
        tile[at + (2 * j + 1) * PITCH] = bfloat16_to_float(words[j] >> 16)


@device_function
def store_tile(y, acc, row, column, M, N, step):
    """8 x 8 elements, `step` apart in both directions but for `step` 4: two runs of four, 64 apart."""
    for i in range(8):
        for j in range(8):
            m = row + (16 * i if step == 16 else i % 4 + i // 4 * 64)
            n = column + (16 * j if step == 16 else j % 4 + j // 4 * 64)
            if m < M and n < N:
                y[m * N + n] = float_to_bfloat16(acc[8 * i + j])


@jit(launch_bounds=256)
def registers(a, b, y, M, N, K):
    tile_a = cuda.shared.array(16 * PITCH, f32, alignment=16)
    tile_b = cuda.shared.array(16 * PITCH, f32, alignment=16)
    acc, p, q = cuda.local.array(64, f32), cuda.local.array(8, f32), cuda.local.array(8, f32)
    t = cuda.threadIdx.x
    tx, ty, r, chunk = t & 15, t >> 4, t & 127, t >> 7  # a warp stores 32 neighbours
    row, column = cuda.blockIdx.y * 128, cuda.blockIdx.x * 128
    for i in range(64):
        acc[i] = f32(0)
    for k0 in range(0, K, 16):
        widen_into(tile_a, 8 * chunk * PITCH + r, a, row + r, M, k0 + 8 * chunk, K)
        widen_into(tile_b, 8 * chunk * PITCH + r, b, column + r, N, k0 + 8 * chunk, K)
        cuda.syncthreads()
        for kk in range(16):
            for half in range(2):
                load4_into(p, 4 * half, tile_a, kk * PITCH + 64 * half + 4 * ty)
                load4_into(q, 4 * half, tile_b, kk * PITCH + 64 * half + 4 * tx)
            for i in range(8):
                for j in range(8):
                    acc[8 * i + j] = fma(p[i], q[j], acc[8 * i + j])
        cuda.syncthreads()
    store_tile(y, acc, row + 4 * ty, column + 4 * tx, M, N, 4)


# %% [markdown]
# ## Step 4: a ring of stages, filled by cp.async
#
# Copies go from global to shared memory without a register and without a wait: while a stage is multiplied the next two are in flight. A
# stage has 128 rows of 32 elements of each operand, as they are in memory. Rows are 80 bytes apart, so that 16 bytes of eight rows hit
# all banks once. Elements become float32 on the way into registers.
#
# ```text
# global memory --cp.async--> | stage 0 | stage 1 | stage 2 |  --16-byte loads--> registers --fma--> accumulators
# ```

# %%
ROW, STAGES = 80, 3  # bytes; stages
STAGE = 2 * 128 * ROW
stages_in_flight = wait_copies(STAGES - 2)


@device_function
def fill(to, a, b, row, column, M, N, k0, K):
    """All threads: their four 16-byte chunks of a stage. What is outside becomes zero."""
    for i in range(2):
        chunk = cuda.threadIdx.x + 256 * i
        r, k = chunk >> 2, k0 + 8 * (chunk & 3)
        in_a, in_b = row + r < M and k < K, column + r < N and k < K
        at = to + u32(r * ROW + (chunk & 3) * 16)
        copy_async16(at, address(a, (row + r) * K + k if in_a else 0), 0, u32(16) if in_a else u32(0))
        copy_async16(at + 128 * ROW, address(b, (column + r) * K + k if in_b else 0), 0, u32(16) if in_b else u32(0))
    commit_copies()


@device_function
def unpack8(values, at, address):
    words = load_shared_4u32(address)
    for j in range(4):
        values[at + 2 * j] = bfloat16_to_float(words[j] & 0xFFFF)
        values[at + 2 * j + 1] = bfloat16_to_float(words[j] >> 16)


@jit(launch_bounds=256)
def pipelined(a, b, y, M, N, K):
    ring = shared_address(cuda.shared.array(0, u32), 0)
    acc, p, q = cuda.local.array(64, f32), cuda.local.array(64, f32), cuda.local.array(8, f32)
    tx, ty = cuda.threadIdx.x & 15, cuda.threadIdx.x >> 4
    row, column = cuda.blockIdx.y * 128, cuda.blockIdx.x * 128
    for i in range(64):
        acc[i] = f32(0)
    for s in range(STAGES - 1):
        fill(ring + u32(s * STAGE), a, b, row, column, M, N, 32 * s, K)
    read, write = u32(0), u32(STAGES - 1)
    for k0 in range(0, K, 32):
        stages_in_flight()
        cuda.syncthreads()  # this stage has landed for all, and all have read the one that is filled next
        fill(ring + write * STAGE, a, b, row, column, M, N, k0 + 32 * (STAGES - 1), K)
        stage = ring + read * STAGE
        for chunk in range(4):
            for i in range(8):
                unpack8(p, 8 * i, stage + u32((ty + 16 * i) * ROW + 16 * chunk))
            for j in range(8):
                unpack8(q, 0, stage + u32((128 + tx + 16 * j) * ROW + 16 * chunk))
                for i in range(8):
                    for kk in range(8):
                        acc[8 * i + j] = fma(p[8 * i + kk], q[kk], acc[8 * i + j])
        read = read + 1 if read < STAGES - 1 else u32(0)
        write = write + 1 if write < STAGES - 1 else u32(0)
    store_tile(y, acc, row + ty, column + tx, M, N, 16)


# %% [markdown]
# ## Step 5: tensor cores, mma
#
# The ring is the same. A warp owns 64 x 32 elements of y as 4 x 4 tiles of 16 x 8, and one instruction multiplies 16 x 16 by 16 x 8.
# `ldmatrix` loads four 8 x 8 matrices in the layout that `mma` takes: each lane supplies the address of one row of 16 bytes.

# %%
mma = make_mma("bfloat16")


@jit(launch_bounds=256)
def tensor_cores(a, b, y, M, N, K):
    ring = shared_address(cuda.shared.array(0, u32), 0)
    acc, p, q = cuda.local.array(64, f32), cuda.local.array(16, u32), cuda.local.array(8, u32)
    lane, warp = cuda.threadIdx.x & 31, cuda.threadIdx.x >> 5
    row, column = cuda.blockIdx.y * 128, cuda.blockIdx.x * 128
    own_row, own_column = (warp >> 2) * 64, (warp & 3) * 32
    for i in range(64):
        acc[i] = f32(0)
    for s in range(STAGES - 1):
        fill(ring + u32(s * STAGE), a, b, row, column, M, N, 32 * s, K)
    read, write = u32(0), u32(STAGES - 1)
    from_a = u32((own_row + (lane & 15)) * ROW + (lane >> 4) * 16)
    from_b = u32((128 + own_column + (lane & 7) + (lane >> 4) * 8) * ROW + (lane >> 3 & 1) * 16)
    for k0 in range(0, K, 32):
        stages_in_flight()
        cuda.syncthreads()
        fill(ring + write * STAGE, a, b, row, column, M, N, k0 + 32 * (STAGES - 1), K)
        stage = ring + read * STAGE
        for step in range(2):  # 16 of k
            for i in range(4):
                ldmatrix_x4(p, 4 * i, stage + from_a + u32(16 * i * ROW + 32 * step))
            for j in range(2):
                ldmatrix_x4(q, 4 * j, stage + from_b + u32(16 * j * ROW + 32 * step))
            for i in range(4):
                for j in range(4):
                    mma(acc, 16 * i + 4 * j, p, 4 * i, q, 2 * j)
        read = read + 1 if read < STAGES - 1 else u32(0)
        write = write + 1 if write < STAGES - 1 else u32(0)
    for i in range(4):
        for j in range(4):
            for half in range(2):  # rows lane // 4 and 8 below; a word is two columns
                m, n = row + own_row + 16 * i + 8 * half + (lane >> 2), column + own_column + 8 * j + 2 * (lane & 3)
                if m < M and n < N:
                    as_u32(y)[(m * N + n) >> 1] = floats_to_bfloat162(acc[16 * i + 4 * j + 2 * half], acc[16 * i + 4 * j + 2 * half + 1])


# %% [markdown]
# ## Step 6: TMA and wgmma
#
# On Hopper nobody computes addresses: one thread asks TMA for boxes of 64 columns, swizzled, and two warpgroups multiply straight from
# shared memory, 64 x 256 elements of y each. Stages have a full barrier, for the bytes, and an empty one, for both readers. The producer
# gives registers to the consumers. [tensor_core_gemm.py](tensor_core_gemm.py) writes y by TMA too.

# %%
BOXES, DEPTH = (128 + 256) * 128, 4  # bytes of a stage: 128 rows of a and 256 of b, 64 elements each; stages
pipe = make_pipeline(stages=DEPTH, consumers=2)
BEFORE = pipe.bytes + 1023  # barriers, and what it takes to align the ring
K_MAJOR = matrix_descriptor(16, 1024, 128)  # swizzled rows of 128 bytes; eight rows take 1024
multiply, one_pending, all_done = make_wgmma(256, "bfloat16"), make_wgmma_wait(1, 0), make_wgmma_wait(0, 128)
release_registers, claim_registers = make_register_release(40), make_register_claim(232)


@jit(launch_bounds=(384, 1))
def warpgroups(a, b, y, M, N, K):
    group, thread = cuda.threadIdx.x >> 7, cuda.threadIdx.x & 127
    row, column, steps = cuda.blockIdx.y * 128, cuda.blockIdx.x * 256, (K + 63) >> 6
    shared = shared_address(cuda.shared.array(0, u32), 0)
    bars, ring = pipe.barriers(shared), (shared + BEFORE) & 0xFFFFFC00  # the swizzle repeats every 1024 bytes
    if cuda.threadIdx.x == 0:
        pipe.init(bars)
        fence_mbarrier_init()
    cuda.syncthreads()
    if group == 0:
        release_registers()
        if thread == 0:
            state = pipe.producer_start()
            for k in range(steps):
                pipe.producer_acquire(bars, state)
                bar = pipe.producer_expect(bars, state, BOXES)
                stage = ring + state.stage * BOXES
                tma_load_2d(stage, tensor_map_address(a), bar, 64 * k, row)
                tma_load_2d(stage + 128 * 128, tensor_map_address(b), bar, 64 * k, column)
                state = pipe.next(state)
    else:
        claim_registers()
        acc = cuda.local.array(128, f32)
        state = before = pipe.consumer_start()
        for k in range(steps):
            pipe.consumer_wait(bars, state)
            stage = ring + state.stage * BOXES
            multiply(acc, descriptor(K_MAJOR, stage + u32((group - 1) * 64 * 128)), descriptor(K_MAJOR, stage + 128 * 128), k > 0)
            one_pending(acc)  # this product is in flight; the one before is complete, so its stage is free
            if k > 0:
                pipe.consumer_release(bars, before, thread)
            before = state
            state = pipe.next(state)
        all_done(acc)
        m, n = row + (group - 1) * 64 + (thread >> 5) * 16 + ((thread & 31) >> 2), column + 2 * (thread & 3)
        for j in range(32):
            for half in range(2):
                if m + 8 * half < M and n + 8 * j < N:
                    as_u32(y)[((m + 8 * half) * N + n + 8 * j) >> 1] = floats_to_bfloat162(acc[4 * j + 2 * half], acc[4 * j + 2 * half + 1])


# %% [markdown]
# ## Registered as algorithms
#
# [own_algorithm.py](own_algorithm.py) explains the parts. The name of a step is its kernel's.

# %%
STEPS = [(naive, (16, 16), 256, 0, "sm_80+", Note.NONE), (tiles, (16, 16), 256, 0, "sm_80+", Note.NONE),
         (registers, (128, 128), 256, 0, "sm_80+", Note.NONE), (pipelined, (128, 128), 256, STAGES * STAGE, "sm_80+", Note.NONE),
         (tensor_cores, (128, 128), 256, STAGES * STAGE, "sm_80+", Note.TENSOR_CORE),
         (warpgroups, (128, 256), 384, BEFORE + DEPTH * BOXES, "sm_90a", Note.TENSOR_CORE)]


def supports(problem):
    """The first reason why not."""
    if (problem.a.dtype, problem.b.dtype) != ("bfloat16",) * 2:
        return "expected bfloat16 operands"
    if problem.epilogue != EpilogueSpec(bias_dtype="bfloat16", output="bfloat16"):
        return "expected a bfloat16 result, and nothing fused"
    if problem.batch or problem.is_wide or problem.k % 8 or problem.n % 8:
        return "expected two matrices with K and N multiples of 8"
    if (problem.a_strides, problem.b_strides, problem.y_strides) != ((problem.k, 1), (1, problem.k), (problem.n, 1)):
        return "expected contiguous a [M, K], b [N, K], y [M, N]"
    return None


def builder(kernel, tile, threads, shared, uses_maps):
    """The function that makes the launch of a problem."""
    def build(problem, device, config):
        m, n, k = problem.m, problem.n, problem.k
        pointers = [Argument("uint16*", name) for name in "aby"]
        if uses_maps:
            pointers[:2] = [Argument("tensormap", name, spec=TensorMap("bfloat16", (rows, k), (k, 1), (box, 64), swizzle=128))
                            for name, rows, box in (("a", m, tile[0]), ("b", n, tile[1]))]
        grid = -(-n // tile[1]), -(-m // tile[0]), 1
        return (Launch(kernel, grid, (threads, 1, 1), (*pointers, *(Argument("int32", v) for v in (m, n, k))), shared=shared),)
    return build


NAMES = []
for kernel, tile, threads, shared, arch, notes in STEPS:
    NAMES.append(f"step{len(NAMES) + 1}_{kernel.__name__}")
    build = builder(kernel, tile, threads, shared, arch == "sm_90a")
    dispatch.register(dispatch.Algorithm(
        op="matmul", name=NAMES[-1], supports=supports, workspace=lambda problem, device, config: 0, build=build, arch=arch, notes=notes,
        estimate=lambda problem, device, config: 1.0))  # seconds: never chosen, only forced

# %% [markdown]
# ## Every step against NumPy
#
# Small integers have exact sums in float32, so results are NumPy's, rounded once: no bit may differ. No extent is a multiple of a tile.

# %%
parser = argparse.ArgumentParser(description="A GEMM in six steps.")
parser.add_argument("--sizes", type=int, nargs=3, default=(4096,) * 3 if DEVICE == "cuda" else (136, 72, 40), metavar=("M", "N", "K"))
parser.add_argument("--json", metavar="FILE", help="write what was measured")
parser.add_argument("--png", metavar="FILE", help="draw it")
parser.add_argument("--read", metavar="FILE", help="draw what an earlier run wrote")
options, _ = parser.parse_known_args()


def on_device(array):
    """A bfloat16 array of the device: Numba has no such dtype, but `view` does."""
    return dnnkern.view(cuda.to_device(array.view(np.uint16)), "bfloat16")


def check(m, n, k):
    """Elements of each step's result that differ from NumPy's."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, shape).astype(bfloat16) for shape in ((m, k), (n, k)))
    expected = (a.astype(np.float32) @ b.astype(np.float32).T).astype(bfloat16).view(np.uint16)
    for name in NAMES:
        memory = cuda.to_device(np.full((m, n), 0x7FC0, np.uint16))  # NaN
        try:
            dnnkern.matmul(on_device(a), on_device(b), transpose_b=True, algo=name, out=dnnkern.view(memory, "bfloat16"))
        except dnnkern.NotSupported as refused:
            print(f"{name}: {refused}")
            continue
        print(f"{name:20} {m}x{n}x{k} on {DEVICE}: {(memory.copy_to_host() != expected).sum()} of {m * n} elements differ from NumPy")


if not options.read:
    check(*(options.sizes if DEVICE != "cuda" else (264, 328, 456)))

# %% [markdown]
# ## Time
#
# CUDA events around batches of calls, all steps in turn, medians; cuBLAS through PyTorch, if it is installed, in the same turns.


# %%
def measure(m, n, k):
    """{name: TFLOP/s}"""
    from dnnkern.host.timing import Clock, Contender, race
    rng = np.random.default_rng(0)
    sets = []
    for _ in range(4):  # with the results past the L2 of an H200 at the default size
        a, b = (rng.standard_normal(shape, np.float32).astype(bfloat16) for shape in ((m, k), (n, k)))
        sets.append((a, b, on_device(a), on_device(b), on_device(np.empty((m, n), bfloat16))))
    with Clock() as clock:
        def call(name):
            return lambda i: dnnkern.matmul(*sets[i][2:4], transpose_b=True, algo=name, out=sets[i][4], stream=clock.stream)
        contenders = [Contender(name, call(name), len(sets)) for name in NAMES if dispatch_can(name, sets[0])]
        try:
            import torch
        except ImportError:
            print("cuBLAS is not timed: PyTorch is not installed")
        else:
            class Eager(Contender):
                """Enqueued call by call: PyTorch's calls take less time on the host than on the device."""

                def capture(self, clock, calls):
                    return lambda: self.enqueue(calls)
            tensors = [tuple(torch.from_numpy(x.view(np.int16)).cuda().view(torch.bfloat16) for x in s[:2]) for s in sets]
            result, stream = torch.empty(m, n, dtype=torch.bfloat16, device="cuda"), torch.cuda.ExternalStream(clock.stream)

            def cublas(i):
                with torch.cuda.stream(stream):
                    torch.mm(tensors[i][0], tensors[i][1].T, out=result)
            torch.cuda.synchronize()
            contenders.append(Eager("cuBLAS", cublas, len(sets)))
        for contender in contenders:
            contender.call(0)  # compiles
        return {name: 2e-12 * m * n * k / sample.median for name, sample in race(contenders, clock).items()}


def dispatch_can(name, arrays):
    """Whether this device runs a step."""
    rows = dispatch.explain("matmul", dnnkern.problem("matmul", a=arrays[2], b=arrays[3], transpose_b=True))
    return next(c for c in rows if c.algo == name).reason is None


def draw(told, path):
    """A point for each step, a line for cuBLAS."""
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    rates = {name: rate for name, rate in told["tflops"].items() if name != "cuBLAS"}
    figure, axes = pyplot.subplots(figsize=(8, 4.5))
    axes.plot([name.replace("_", "\n", 1).replace("_", " ") for name in rates], list(rates.values()), "o", color="#4c72b0", markersize=9)
    for at, rate in enumerate(rates.values()):
        axes.annotate(f"{rate:.3g}", (at, rate), xytext=(0, -18), textcoords="offset points", ha="center")
    if "cuBLAS" in told["tflops"]:
        axes.axhline(told["tflops"]["cuBLAS"], color="#555555", linestyle="--", label=f"cuBLAS: {told['tflops']['cuBLAS']:.3g}")
        axes.legend(loc="upper left")
    axes.margins(y=0.15)
    axes.grid(axis="y", color="#dddddd")
    axes.set(yscale="log", ylabel="TFLOP/s", title=f"{'x'.join(map(str, told['sizes']))} bfloat16 on {told['device']}")
    figure.tight_layout()
    figure.savefig(path, dpi=150)
    print(f"chart: {path}")


told = None
if options.read:
    with open(options.read) as file:
        told = json.load(file)
elif DEVICE == "cuda":
    from dnnkern.host.device import device
    from dnnkern.host.versions import installed, versions
    told = {"device": device(0).name, "sizes": list(options.sizes), "tflops": measure(*options.sizes),
            "versions": {**versions(), "torch": installed("torch")}}
    for name, rate in told["tflops"].items():
        beside = f", {rate / told['tflops']['cuBLAS']:.3f} of cuBLAS" if "cuBLAS" in told["tflops"] else ""
        print(f"{name:20} {rate:8.3f} TFLOP/s{beside}")
    if options.json:
        with open(options.json, "w") as file:
            json.dump(told, file, indent=1)
elif options.png or options.json:
    print(f"nothing is timed on the {DEVICE}: --json and --png need a GPU")
if told and options.png:
    draw(told, options.png)
