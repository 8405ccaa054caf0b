"""The products of the gradients by tiles of keys, as what lies where in shared memory says (`config`)."""
import functools
from typing import Callable, NamedTuple

from ....device.index import ceil_div
from ....device.wgmma import make_wgmma, matrix_descriptor
from ....engine.hopper import ROW
from ..._wgmma import COLUMNS


class Gemms(NamedTuple):
    """Device functions of `device.wgmma.make_wgmma`, and what descriptors are made of: of tiles by rows, of tiles that pass by columns, of
    ds and of keys.

    Of float32 each is the sum of products of pieces. Its dk and dv begin from zero, and are those of one box of columns at a time.

    s, dp
        k q' and v do', from zero.
    dk, dv
        ds q and p do, the left operand in registers, added to accumulators.
    dq
        ds' k, or its transpose, from zero.
    """
    s: Callable
    dp: Callable
    dk: Callable
    dv: Callable
    dq: Callable
    by_row: int
    by_column: int
    of_ds: int
    of_keys: int


@functools.cache
def make_gemms(config) -> Gemms:
    """Those of a configuration."""
    s, dtype, ds_line, (left, right) = config.shape, config.dtype, config.ds_line, zip(*config.products)
    kv_box, q_box, ds_box = s.height * ROW, s.width * ROW, s.height * config.ds_line
    of_piece = config.ds // config.pieces
    words, keys = range(s.width // 16), range(s.height // 16)

    def steps_of(pieces, nbytes, steps):
        """Of each product of two pieces the steps in a tile of its piece, `nbytes` after the one before."""
        return tuple(piece * nbytes // 16 + step for piece in pieces for step in steps)

    def of_rows(steps, boxes):
        """Of both operands by rows."""
        a, b = ([step // 4 * (box // 16) + step % 4 * 2 for step in range(steps)] for box in (kv_box, q_box))
        return make_wgmma(s.width, dtype, steps=len(left) * steps, a_step=steps_of(left, boxes * kv_box, a),
                          b_step=steps_of(right, boxes * q_box, b), fresh=True)

    def of_words(columns, boxes):
        return make_wgmma(columns, dtype, steps=len(left) * len(words), a="registers", b_major="mn", fresh=config.split,
                          a_words=steps_of(left, 16 * len(words), words),
                          b_step=steps_of(right, boxes * q_box, [128 * w for w in words]))
    k_steps, of_k = [128 * k for k in keys], config.boxes[0] * kv_box
    if config.transposed:
        tiles = ceil_div(config.dq_parts[0][2], COLUMNS)
        dq = make_wgmma(s.width, dtype, steps=len(left) * len(keys), tiles=tiles, a_major="mn", b_major="mn",
                        a_step=steps_of(left, of_k, k_steps), b_step=steps_of(right, of_piece, [ds_line * k for k in keys]),
                        a_tile=kv_box // 16, fresh=True)
    else:
        dq = make_wgmma(config.dq_parts[0][2], dtype, steps=len(left) * len(keys), a_major="mn", b_major="mn",
                        a_step=steps_of(left, of_piece, k_steps), b_step=steps_of(right, of_k, k_steps), fresh=True)
    scores, gradients = map(of_rows, config.steps, config.boxes), map(of_words, config.gemm_columns, config.boxes)
    return Gemms(*scores, *gradients, dq, matrix_descriptor(16, 1024, 128), matrix_descriptor(q_box, 1024, 128),
                 matrix_descriptor(ds_box, 8 * ds_line, ds_line), matrix_descriptor(kv_box, 1024, 128))
