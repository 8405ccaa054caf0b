"""The products of the gradients by tiles of keys, as what lies where in shared memory says (`config`)."""
import functools
from typing import Callable, NamedTuple

from ....device.index import ceil_div
from ....device.wgmma import make_wgmma, matrix_descriptor
from ....engine.hopper import ROW
from ..._wgmma import COLUMNS


class Products(NamedTuple):
    """Device functions of `device.wgmma.make_wgmma`, and what descriptors are made of: of tiles by rows, of tiles that pass by columns, of
    ds and of keys.

    Of float32 each is the sum of products of pieces. Its sums of dk and dv begin from zero, and are those of one box of columns at a time.

    score, value
        k q' and v do', from zero.
    first, second
        ds q and p do, the left operand in registers, added to sums.
    part
        ds' k, or its transpose, from zero.
    """
    score: Callable
    value: Callable
    first: Callable
    second: Callable
    part: Callable
    by_row: int
    by_column: int
    of_slopes: int
    of_keys: int


@functools.cache
def make_products(config) -> Products:
    """Those of a configuration."""
    s, dtype, line, (left, right) = config.shape, config.dtype, config.line, zip(*config.products)
    stay, passing, slope_box = s.height * ROW, s.width * ROW, s.height * config.line
    of_piece = config.slopes // config.pieces
    words, keys = range(s.width // 16), range(s.height // 16)

    def steps_of(pieces, nbytes, steps):
        """Of each product of two pieces the steps in a tile of its piece, `nbytes` behind the one before."""
        return tuple(piece * nbytes // 16 + step for piece in pieces for step in steps)

    def of_rows(steps, boxes):
        """Of both operands by rows."""
        a, b = ([step // 4 * (box // 16) + step % 4 * 2 for step in range(steps)] for box in (stay, passing))
        return make_wgmma(s.width, dtype, steps=len(left) * steps, a_step=steps_of(left, boxes * stay, a),
                          b_step=steps_of(right, boxes * passing, b), fresh=True)

    def of_words(columns, boxes):
        return make_wgmma(columns, dtype, steps=len(left) * len(words), a="registers", b_major="mn", fresh=config.split,
                          a_words=steps_of(left, 16 * len(words), words),
                          b_step=steps_of(right, boxes * passing, [128 * w for w in words]))
    k_steps, of_k = [128 * k for k in keys], config.boxes[0] * stay
    if config.turned:
        tiles = ceil_div(config.parts[0][2], COLUMNS)
        part = make_wgmma(s.width, dtype, steps=len(left) * len(keys), tiles=tiles, a_major="mn", b_major="mn",
                          a_step=steps_of(left, of_k, k_steps), b_step=steps_of(right, of_piece, [line * k for k in keys]),
                          a_tile=stay // 16, fresh=True)
    else:
        part = make_wgmma(config.parts[0][2], dtype, steps=len(left) * len(keys), a_major="mn", b_major="mn",
                          a_step=steps_of(left, of_piece, k_steps), b_step=steps_of(right, of_k, k_steps), fresh=True)
    scores, sums = map(of_rows, config.steps, config.boxes), map(of_words, config.passed, config.boxes)
    return Products(*scores, *sums, part, matrix_descriptor(16, 1024, 128), matrix_descriptor(passing, 1024, 128),
                    matrix_descriptor(slope_box, 8 * line, line), matrix_descriptor(stay, 1024, 128))
