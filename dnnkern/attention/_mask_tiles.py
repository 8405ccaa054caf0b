"""Tiles of a boolean mask in shared memory, where TMA brings them beside those of k: a byte for each query and key, or for each key alone
where all queries of a head have the same."""
import functools

from ..device import cuda, device_function, f32, i32, u8, u32
from ..device.vec import load_shared_u32, pin
from ..host.launch import Argument
from ..host.tensormap import TensorMap
from ._checks import broadcast_strides
from ._scores import NEG_INF

PITCH = 128
"""Bytes of shared memory for the line of a mask by keys: a copy begins at a multiple of that."""


def mask_tiles(problem):
    """"rows" where TMA can read tiles of the mask, "keys" where it can and all rows are the same, otherwise "": bytes of a row side by side,
    and 16, or a multiple, from one to the next along the dimensions that are not broadcast."""
    p, t = problem, problem.mask
    if t is None or p.packed or t.alignment % 16 or t.shape[-1] != p.keys:
        return ""
    *steps, step = broadcast_strides(t)
    if step != 1 and p.keys > 1 or not all(s >= 0 and s % 16 == 0 and s < 2 ** 40 for s in steps):
        return ""
    return "rows" if steps[-1] else "keys"


def mask_map(problem, height, width):
    """Kernel parameter: the tensor map of a mask, by tiles of `height` rows, or by lines of one, of `width` keys."""
    t, strides = problem.mask, broadcast_strides(problem.mask)
    sizes = (1,) * (4 - t.ndim) + t.shape
    shape = tuple(n if s else 1 for n, s in zip(sizes[:3], strides)) + sizes[3:]
    rows = height if strides[2] else 1
    return Argument("tensormap", "mask", spec=TensorMap("uint8", shape, (*(s or 16 for s in strides[:3]), 1), (1, 1, rows, width),
                                                        width if strides[2] else 0, l2_promotion=256))


def mask_bytes(way, height, width):
    """Bytes of a tile in shared memory."""
    return {"": 0, "keys": PITCH, "rows": height * width}[way]


@functools.cache
def make_apply_mask_tile(width, way):
    """Device function ``apply_mask_tile(x, at, row, lane)``: scores whose byte is 0 become -inf. `at` is where the tile begins in shared
    memory: by "rows" of `width` bytes, swizzled over them, of which `row` is the first of the warp's 16; by "keys" one line for all."""
    LOG_ROWS = {64: 1, 128: 0}.get(width, 0)  # rows of 128 bytes, over which the swizzle goes on

    @device_function
    def hide(x, k, word, low, high):
        if word & low == 0:
            x[k] = f32(NEG_INF)
        if word & high == 0:
            x[k + 1] = f32(NEG_INF)

    @device_function
    def by_rows(x, at, row, lane):
        # a word is four neighbouring keys', two of them the thread's
        low = u32(0xFF) << u32((lane & 1) * 16)
        line = row + (lane >> 2)
        own = at + u32(line * width + ((line >> LOG_ROWS) & (width // 16 - 1)) * 16 + (lane & 2) * 2)
        for j in range(u32(width // 8)):
            piece = (own ^ (j // 2 * 16)) + j % 2 * 8
            for h in range(u32(2)):
                hide(x, 4 * j + 2 * h, load_shared_u32(piece + h * (8 * width)), low, low << 8)

    @device_function
    def by_keys(x, at, row, lane):
        low, own = u32(0xFF) << u32((lane & 1) * 16), at + u32((lane & 2) * 2)
        for j in range(u32(width // 8)):
            word = load_shared_u32(own + j * 8)
            for h in range(u32(2)):
                hide(x, 4 * j + 2 * h, word, low, low << 8)
    return by_rows if way == "rows" else by_keys


@functools.cache
def make_apply_mask_tile_transposed(width, box):
    """Device function ``apply_mask_tile(x, at, warp, thread_lane)`` for a transposed tile, whose rows are a warpgroup's 64 keys and whose
    columns are queries: the mask lies by queries, 64 bytes each, swizzled over them, and `box` bytes from 64 queries to the next."""
    hold = pin(1)

    @device_function
    def apply_mask_tile(x, at, warp, thread_lane):
        # what follows from the lane is computed in each step: kept, it would spill
        held = cuda.local.array(1, i32)
        held[0] = thread_lane
        hold(held)
        lane = held[0]
        # a warp's 16 keys are one piece of each query; a thread has a byte of the word, and the one 8 bytes after it
        pair = lane & 3
        mine, own = u32(0xFF) << u32((lane >> 2 & 3) * 8), at + u32(pair * 128 + (warp ^ pair) * 16 + (lane >> 2 & 4))
        for j in range(u32(width // 8)):
            for e in range(u32(2)):
                for h in range(u32(2)):
                    if load_shared_u32(own + (j // 8 * box + j % 8 * 512 + e * 64 + h * 8)) & mine == 0:
                        x[4 * j + 2 * h + e] = f32(NEG_INF)
    return apply_mask_tile


@functools.cache
def make_apply_mask_of_keys_transposed(width):
    """Device function ``apply_mask_of_keys(x, mask, at, key, last_key, step)``: rows of a transposed tile become -inf where the byte of key r
    is 0; those of the head begin at `at`, `step` bytes apart."""
    @device_function
    def apply_mask_of_keys(x, mask, at, key, last_key, step):
        for h in range(2):
            if mask[at + min(key + 8 * h, last_key) * step] == u8(0):
                for j in range(width // 8):
                    for e in range(2):
                        x[4 * j + 2 * h + e] = f32(NEG_INF)
    return apply_mask_of_keys
