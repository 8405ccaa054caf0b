"""Matrices of 8 x 8 halves from shared memory into the registers of a warp (ldmatrix)."""
from . import SIMULATED

if SIMULATED:
    def _load(count, transposed):
        return None
else:
    from ._numba_mma import matrix_load

    def _load(count, transposed):
        names = ", ".join(f"${k}" for k in range(count))
        return matrix_load(f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' * transposed}.shared.b16 {{{names}}}, [${count}];", count)

ldmatrix_x1, ldmatrix_x2, ldmatrix_x4 = _load(1, False), _load(2, False), _load(4, False)
ldmatrix_x1_trans, ldmatrix_x2_trans, ldmatrix_x4_trans = _load(1, True), _load(2, True), _load(4, True)
