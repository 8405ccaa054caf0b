"""Rows that are read once: a warp, a block or a cluster holds a row from its loads to its stores.

| name | a row is held by | wins | loses |
| --- | --- | --- | --- |
| `warp` | 1 to 32 lanes | short rows: nothing but shuffles between load and store | more than some 8 vectors per lane: few warps fit |
| `block` | 64 to 1024 threads | rows of thousands of elements; many small blocks hide the wait of each | what registers do not hold |
| `cluster` | 2 to 8 blocks; one and shared memory | rows beyond a block's registers | a cluster barrier per row, which `ring` hides |

Forward, a thread has up to eight 16-byte vectors (backward, with two inputs, four), so a warp holds up to 1024 float32 or 2048 16-bit
elements, a block 16 Ki or 32 Ki, a cluster 128 Ki or 256 Ki. Neighbouring groups have neighbouring rows, so that a warp reads contiguous
memory even where rows are short. Forward, a single block may hold up to 64 Ki float32: what its registers do not hold overflows to shared
memory. The kernels of all three are in `_kernel.py`.
"""
