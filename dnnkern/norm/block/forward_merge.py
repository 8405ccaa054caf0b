"""The moments of a row, forward, in all of its threads: of the warps of a block, and of the blocks of a cluster."""
from ...device import cuda, device_function, u32
from ...device.cluster import cluster_rank, cluster_sync, cluster_wait, remote_address, store_remote_f32
from ...device.vec import shared_address
from .._moments import make_block_pool, make_inverses, make_pool
from .forward_config import WARP


def make_merge_row(config, Real):
    """Device function ``merge_row(row_mean, squares, n, scratch, slots) -> (row_mean, squares)``: mean and sum of squared distances to it,
    of the whole row in all its threads, from those of each warp and its count n; without a mean `squares` alone counts."""
    LAYER, CLUSTER = config.layer, config.cluster
    pool, (inverse, _) = make_block_pool(Real, max(1, config.lanes // WARP), config.layer), make_inverses(Real)

    @device_function
    def merge_row(row_mean, squares, n, scratch, slots):
        row_mean, squares, n = pool(row_mean, squares, n, scratch)
        if CLUSTER > 1:
            thread = cuda.threadIdx.x
            cluster_wait()
            if thread < CLUSTER:
                to = remote_address(shared_address(slots, 3 * cluster_rank()), u32(thread))
                store_remote_f32(to, row_mean)
                store_remote_f32(to + 4, squares)
                store_remote_f32(to + 8, n)
            cluster_sync()
            row_mean, squares, n = Real(0), Real(0), Real(0)
            if LAYER:
                for k in range(CLUSTER):
                    n = n + slots[3 * k + 2]
                    row_mean += slots[3 * k] * slots[3 * k + 2]
                row_mean = row_mean * inverse(n) if n > Real(0) else Real(0)
            for k in range(CLUSTER):
                squares += slots[3 * k + 1]
                if LAYER:
                    d = slots[3 * k] - row_mean
                    squares += d * d * slots[3 * k + 2]
        return row_mean, squares
    return merge_row


def make_merge_rows(config, Real):
    """Device function ``merge_rows(means, squares, counts, scratch, slots)``: as `make_merge_row`, of arrays of a number a row, with one
    barrier of the cluster for all of them."""
    LAYER, CLUSTER, ROWS, WARPS = config.layer, config.cluster, config.rows, max(1, config.lanes // WARP)
    pool, (inverse, _) = make_pool(Real, WARPS, config.layer), make_inverses(Real)

    @device_function
    def merge_rows(means, squares, counts, scratch, slots):
        thread = cuda.threadIdx.x
        for k in range(ROWS):
            at = 3 * (k * WARPS + (thread >> 5))
            if thread & 31 == 0:
                scratch[at], scratch[at + 1], scratch[at + 2] = means[k], squares[k], counts[k]
        cluster_wait()
        cuda.syncthreads()
        for k in range(ROWS):
            at = 3 * (k * WARPS + (thread & (WARPS - 1)))
            means[k], squares[k], counts[k] = pool(scratch[at], scratch[at + 1], scratch[at + 2])
            if thread < CLUSTER:
                to = remote_address(shared_address(slots, 3 * (cluster_rank() * ROWS + k)), u32(thread))
                store_remote_f32(to, means[k])
                store_remote_f32(to + 4, squares[k])
                store_remote_f32(to + 8, counts[k])
        cluster_sync()
        for k in range(ROWS):
            n, mean, total = Real(0), Real(0), Real(0)
            if LAYER:
                for j in range(CLUSTER):
                    n += slots[3 * (j * ROWS + k) + 2]
                    mean += slots[3 * (j * ROWS + k)] * slots[3 * (j * ROWS + k) + 2]
                mean = mean * inverse(n) if n > Real(0) else Real(0)
            for j in range(CLUSTER):
                total += slots[3 * (j * ROWS + k) + 1]
                if LAYER:
                    d = slots[3 * (j * ROWS + k)] - mean
                    total += d * d * slots[3 * (j * ROWS + k) + 2]
            means[k], squares[k] = mean, total
    return merge_rows
