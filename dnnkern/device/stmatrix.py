"""Matrices of 8 x 8 halves from the registers of a warp into shared memory (stmatrix, from sm_90 on): the inverse of `ldmatrix`.

::

    stmatrix_x4(address, w0, w1, w2, w3)            a word of each of four matrices
    stmatrix_x4_trans(address, w0, w1, w2, w3)      the same of the transposed matrices
    stmatrix_x1, stmatrix_x2, ..._trans             one and two matrices

Lane ``8 q + r`` gives the address of row ``r`` of matrix ``q``, 16 bytes at a multiple of 16; no two rows may be the same. Which
elements a lane's word holds is as in `ldmatrix`. The accumulator of an `mma`, rounded in pairs to words of two halves, stores plainly into
memory that is contiguous along n.

All 32 lanes execute the same call and none may have returned. A lane counts as the writer of its own elements: a syncwarp or a barrier must
come before anybody else reads them, be it the lane that gave the row's address.
"""
from . import SIMULATED, instruction
from .ldmatrix import place

if SIMULATED:
    from .sim import matrices


def _store(count, transposed):
    names = ", ".join(f"${k + 1}" for k in range(count))
    twin = matrices.store(f"stmatrix_x{count}{'_trans' * transposed}", count, place, transposed) if SIMULATED else None
    return instruction(f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' * transposed}.shared.b16 [$0], {{{names}}};", (),
                       ("uint32",) * (count + 1), memory=True, convergent=True, twin=twin)


stmatrix_x1, stmatrix_x2, stmatrix_x4 = _store(1, False), _store(2, False), _store(4, False)
stmatrix_x1_trans, stmatrix_x2_trans, stmatrix_x4_trans = _store(1, True), _store(2, True), _store(4, True)
