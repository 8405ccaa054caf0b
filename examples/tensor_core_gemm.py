"""A matrix product on Hopper's tensor cores, written on `dnnkern.device` alone: y = a @ b.T of bfloat16 matrices.

    a [M, K], b [N, K]  -- TMA -->  ring of stages  -- wgmma -->  registers  -- stmatrix -->  shared memory  -- TMA -->  y [M, N]

A block computes BM x BN of y. One thread of its first warpgroup fills the stages of the ring, BK columns of a and of b each; the other two
multiply 64 rows each and touch no operand, since tensor cores read shared memory by themselves. A stage has two mbarriers: `full`, its
bytes have landed, and `empty`, both warpgroups have read it. Nothing has to be a multiple of the tile: TMA reads zeros beyond the edges of
a matrix and writes nothing there. Only rows begin at multiples of 16 bytes: N and K are multiples of 8.

    python examples/tensor_core_gemm.py
"""
import numpy as np
from ml_dtypes import bfloat16

from dnnkern.device import DEVICE, SIMULATED, cuda, device_function, f32, jit, u32
from dnnkern.device.barrier import barrier_sync
from dnnkern.device.convert import floats_to_bfloat162 as pack
from dnnkern.device.mbarrier import (fence_async_shared, fence_mbarrier_init, mbarrier_arrive, mbarrier_arrive_expect, mbarrier_init,
                                     mbarrier_wait)
from dnnkern.device.registers import make_register_claim, make_register_release
from dnnkern.device.stmatrix import stmatrix_x4
from dnnkern.device.tma import bulk_commit, make_bulk_wait, tensor_map_address, tma_load_2d, tma_store_2d
from dnnkern.device.vec import shared_address
from dnnkern.device.wgmma import descriptor, make_wgmma, make_wgmma_wait, matrix_descriptor
from dnnkern.host.executable import launch_once
from dnnkern.host.tensormap import TensorMap

BM, BN, BK, STAGES = 128, 256, 64, 3  # BK halves are 128 bytes, a row of the widest swizzle
SUMS, A_BYTES, STAGE, BOX = BN // 2, BM * 128, (BM + BN) * 128, 64 * 128  # sums of a thread; bytes; results leave in boxes of 64 rows
STAGING, SHARED = STAGES * STAGE, 16 * STAGES + 1023 + STAGES * STAGE + BM * BN * 2  # barriers, the ring, behind it results
K_MAJOR = matrix_descriptor(16, 1024, 128)  # rows of 128 bytes, swizzled, the next eight of them 1024 bytes on
multiply, one_pending, none_pending = make_wgmma(BN, "bfloat16"), make_wgmma_wait(1, 0), make_wgmma_wait(0, SUMS)
give_registers, take_registers, stored = make_register_release(40), make_register_claim(232), make_bulk_wait(0)
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
            mbarrier_init(full + u32(8 * s), 1)  # arrivals a phase: the producer's
            mbarrier_init(empty + u32(8 * s), 2)  # one of each consumer
        fence_mbarrier_init()
    cuda.syncthreads()
    if group == 0:
        give_registers()
        if thread == 0:
            for k in range(steps):
                mbarrier_wait(empty + 8 * slot, phase ^ 1)  # a phase before the first counts as complete
                bar, stage = full + 8 * slot, ring + slot * STAGE
                mbarrier_arrive_expect(bar, STAGE)
                tma_load_2d(stage, tensor_map_address(a), bar, k * BK, row)
                tma_load_2d(stage + A_BYTES, tensor_map_address(b), bar, k * BK, column)
                slot, phase = advance(slot, phase)
    else:
        take_registers()
        acc, before = cuda.local.array(SUMS, f32), u32(0)
        mine = u32((group - 1) * BOX)  # where this warpgroup's rows of a begin in a stage
        for k in range(steps):
            mbarrier_wait(full + 8 * slot, phase)
            stage = ring + slot * STAGE
            multiply(acc, descriptor(K_MAJOR, stage + mine), descriptor(K_MAJOR, stage + A_BYTES), k > 0)
            one_pending(acc)  # this product goes on by itself; the one before is over, so its stage is free
            if k > 0 and thread == 0:
                mbarrier_arrive(empty + 8 * before)
            before = slot
            slot, phase = advance(slot, phase)
        none_pending(acc)
        lane, warp = thread & 31, thread >> 5
        staging = ring + STAGING + mine * (BN // 64)
        for j in range(BN // 16):  # a warp's 16 rows of 16 columns: four 8 x 8 matrices, each lane says where a row is in the swizzle
            to = staging + u32(j // 4 * BOX + (warp * 16 + (lane & 15)) * 128 + ((j % 4 * 2 + (lane >> 4)) ^ (lane & 7)) * 16)
            stmatrix_x4(to, pack(acc[8 * j], acc[8 * j + 1]), pack(acc[8 * j + 2], acc[8 * j + 3]),
                        pack(acc[8 * j + 4], acc[8 * j + 5]), pack(acc[8 * j + 6], acc[8 * j + 7]))
        fence_async_shared()  # each thread shows TMA what it wrote, all meet, one stores
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
    assert np.array_equal(y, (a.astype(np.float32) @ b.astype(np.float32).T).astype(bfloat16)), "not what NumPy computes"
    print(f"{m}x{n}x{k} on {DEVICE}: every bit as NumPy has it")


if __name__ == "__main__":
    main()
