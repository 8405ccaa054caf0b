"""Matrices of 8 x 8 halves from shared memory into the registers of a warp (ldmatrix, from sm_75 on).

::

    ldmatrix_x4(fragment, i, address)               fragment[i:i+4] of a local uint32 array: a word of each of four matrices
    ldmatrix_x4_trans(fragment, i, address)         the same of the transposed matrices
    ldmatrix_x1, ldmatrix_x2, ..._trans             one and two matrices

A row of a matrix is 16 consecutive bytes of shared memory at a multiple of 16; rows may lie anywhere. Lane ``8 q + r`` gives the address of
row ``r`` of matrix ``q``; what the lanes from ``8 count`` on give is not used. Of each matrix a lane gets one word, two elements, the lower
half first (`place` is the same as a function):

- plain: row ``lane // 4``, columns ``2 (lane % 4)`` and the next;
- transposed: column ``lane // 4``, rows ``2 (lane % 4)`` and the next.

That is how `mma` wants them: A and B load plainly from memory that is contiguous along k; transposed, A from memory that is contiguous
along m, B along n. Elements of 32 and 8 bits load alike as halves and pairs, but not transposed.

All 32 lanes execute the same call and none may have returned. It orders nothing: a syncwarp or a barrier must lie between the writes of
other lanes and the load. A lane counts as the reader of the elements it gets.
"""
from . import SIMULATED


def place(lane, half, transposed=False):
    """(row, column) in a matrix of the element that is half `half`, 0 the lower and 1 the upper, of a lane's word."""
    across, along = lane // 4, 2 * (lane % 4) + half
    return (along, across) if transposed else (across, along)


if SIMULATED:
    from .sim import matrices

    def _load(count, transposed):
        return matrices.load(f"ldmatrix_x{count}{'_trans' * transposed}", count, place, transposed)
else:
    from ._intrinsics import matrix_load

    def _load(count, transposed):
        names = ", ".join(f"${k}" for k in range(count))
        return matrix_load(f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' * transposed}.shared.b16 {{{names}}}, [${count}];", count)

ldmatrix_x1, ldmatrix_x2, ldmatrix_x4 = _load(1, False), _load(2, False), _load(4, False)
ldmatrix_x1_trans, ldmatrix_x2_trans, ldmatrix_x4_trans = _load(1, True), _load(2, True), _load(4, True)
