# %% [markdown]
# # A GEMM on Hopper's tensor cores
#
# Written with `dnnkern.device` alone: y = a @ b.T of bfloat16 matrices.
#
#     a [M, K], b [N, K]  -- TMA -->  ring of stages  -- wgmma -->  registers  -- stmatrix -->  shared memory  -- TMA -->  y [M, N]
#
# A block computes a BM x BN tile of y. One thread of its first warpgroup is the producer: it fills the stages of the ring, BK columns of a
# and of b each. The other two warpgroups are consumers: each multiplies 64 rows, straight from shared memory. A stage has two mbarriers:
# `full`, its bytes have landed, and `empty`, both consumers have read it. Extents need not be multiples of the tile: TMA reads zeros
# outside a matrix and writes nothing there. Rows must begin at multiples of 16 bytes, so N and K are multiples of 8.
#
#     python examples/tensor_core_gemm.py

# %%
import numpy as np
from ml_dtypes import bfloat16

from dnnkern.device import DEVICE, SIMULATED, cuda, device_function, f32, jit, u32
from dnnkern.device.barrier import barrier_sync
from dnnkern.device.mbarrier import (fence_async_shared, fence_mbarrier_init, mbarrier_arrive, mbarrier_arrive_expect, mbarrier_init,
                                     mbarrier_wait)
from dnnkern.device.numeric import floats_to_bfloat162 as pack
from dnnkern.device.registers import make_register_claim, make_register_release
from dnnkern.device.stmatrix import stmatrix_x4
from dnnkern.device.tma import bulk_commit, make_bulk_wait, tensor_map_address, tma_load_2d, tma_store_2d
from dnnkern.device.vec import shared_address
from dnnkern.device.wgmma import descriptor, make_wgmma, make_wgmma_wait, matrix_descriptor
from dnnkern.host.executable import launch_once
from dnnkern.host.tensormap import TensorMap

BM, BN, BK, STAGES = 128, 256, 64, 3  # BK 16-bit elements are 128 bytes, one swizzled row
ACC, A_BYTES, STAGE, BOX = BN // 2, BM * 128, (BM + BN) * 128, 64 * 128  # accumulators per thread; bytes; boxes of 64 rows
STAGING, SHARED = STAGES * STAGE, 16 * STAGES + 1023 + STAGES * STAGE + BM * BN * 2  # barriers, the ring, then results
K_MAJOR = matrix_descriptor(16, 1024, 128)  # swizzled rows of 128 bytes; eight rows take 1024
multiply, one_pending, none_pending = make_wgmma(BN, "bfloat16"), make_wgmma_wait(1, 0), make_wgmma_wait(0, ACC)
release_registers, claim_registers, stored = make_register_release(40), make_register_claim(232), make_bulk_wait(0)
advance = device_function(lambda slot, phase: (slot + 1, phase) if slot < STAGES - 1 else (u32(0), phase ^ 1))


@jit(launch_bounds=(384, 1))
def gemm(a, b, y, steps):
    group, thread = cuda.threadIdx.x >> 7, cuda.threadIdx.x & 127
    row, column = cuda.blockIdx.y * BM, cuda.blockIdx.x * BN
    full = shared_address(cuda.shared.array(0, u32), 0)
    empty, ring = full + 8 * STAGES, (full + 16 * STAGES + 1023) & 0xFFFFFC00  # the swizzle repeats every 1024 bytes
    slot, phase = u32(0), u32(0)
    if cuda.threadIdx.x == 0:
        for s in range(STAGES):
            mbarrier_init(full + u32(8 * s), 1)  # arrivals per phase: the producer
            mbarrier_init(empty + u32(8 * s), 2)  # both consumers
        fence_mbarrier_init()
    cuda.syncthreads()
    if group == 0:
        release_registers()
        if thread == 0:
            for k in range(steps):
                mbarrier_wait(empty + 8 * slot, phase ^ 1)  # the phase before the first counts as complete
                bar, stage = full + 8 * slot, ring + slot * STAGE
                mbarrier_arrive_expect(bar, STAGE)
                tma_load_2d(stage, tensor_map_address(a), bar, k * BK, row)
                tma_load_2d(stage + A_BYTES, tensor_map_address(b), bar, k * BK, column)
                slot, phase = advance(slot, phase)
    else:
        claim_registers()
        acc, previous = cuda.local.array(ACC, f32), u32(0)
        mine = u32((group - 1) * BOX)  # offset of this warpgroup's rows of a in a stage
        for k in range(steps):
            mbarrier_wait(full + 8 * slot, phase)
            stage = ring + slot * STAGE
            multiply(acc, descriptor(K_MAJOR, stage + mine), descriptor(K_MAJOR, stage + A_BYTES), k > 0)
            one_pending(acc)  # this product is in flight; the one before is complete, so its stage is free
            if k > 0 and thread == 0:
                mbarrier_arrive(empty + 8 * previous)
            previous = slot
            slot, phase = advance(slot, phase)
        none_pending(acc)
        lane, warp = thread & 31, thread >> 5
        staging = ring + STAGING + mine * (BN // 64)
        for j in range(BN // 16):  # 16 x 16 per warp: four 8 x 8 matrices; each lane gives the swizzled address of a row
            to = staging + u32(j // 4 * BOX + (warp * 16 + (lane & 15)) * 128 + ((j % 4 * 2 + (lane >> 4)) ^ (lane & 7)) * 16)
            stmatrix_x4(to, pack(acc[8 * j], acc[8 * j + 1]), pack(acc[8 * j + 2], acc[8 * j + 3]),
                        pack(acc[8 * j + 4], acc[8 * j + 5]), pack(acc[8 * j + 6], acc[8 * j + 7]))
        fence_async_shared()  # publish each thread's writes to TMA, wait for all, one thread stores
        barrier_sync(group, 128)
        if thread == 0:
            for j in range(BN // 64):
                tma_store_2d(tensor_map_address(y), staging + u32(j * BOX), column + 64 * j, row + (group - 1) * 64)
            bulk_commit()
            stored()


def main():
    m, n, k = (200, 328, 456) if SIMULATED else (4000, 4104, 4088)
    a, b, y = (np.random.default_rng(shape).integers(-2, 3, shape).astype(bfloat16) for shape in ((m, k), (n, k), (m, n)))  # sums are exact
    maps = [(x, TensorMap("bfloat16", x.shape, (x.shape[1], 1), (rows, 64), swizzle=128)) for x, rows in ((a, BM), (b, BN), (y, 64))]
    launch_once(gemm, (-(-n // BN), -(-m // BM), 1), (384, 1, 1), [*maps, -(-k // BK)], shared=SHARED)
    assert np.array_equal(y, (a.astype(np.float32) @ b.astype(np.float32).T).astype(bfloat16)), "differs from NumPy"
    print(f"{m}x{n}x{k} on {DEVICE}: bitwise identical to NumPy")


if __name__ == "__main__":
    main()
