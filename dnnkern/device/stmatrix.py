"""Matrices of 8 x 8 halves from the registers of a warp into shared memory (stmatrix, from sm_90 on)."""
from . import instruction


def _store(count, transposed):
    names = ", ".join(f"${k + 1}" for k in range(count))
    return instruction(f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' * transposed}.shared.b16 [$0], {{{names}}};", (),
                       ("uint32",) * (count + 1), memory=True, twin=None)


stmatrix_x1, stmatrix_x2, stmatrix_x4 = _store(1, False), _store(2, False), _store(4, False)
stmatrix_x1_trans, stmatrix_x2_trans, stmatrix_x4_trans = _store(1, True), _store(2, True), _store(4, True)
