"""Tiles of a boolean mask, which TMA brings to shared memory: a byte for each query and key, or for each key alone where all queries of a
head have the same. `_fragments` has what reads them."""
from ..host.launch import Argument
from ..host.tensormap import TensorMap
from ._checks import broadcast_strides

PITCH = 128
"""Bytes of shared memory for the line of a mask by keys: a copy begins at a multiple of that."""


def mask_tiles(problem):
    """What the mask is of, if TMA can read tiles of it: "rows" and keys, or "keys" where all rows are the same; otherwise "". Bytes of a
    row lie side by side, those along other dimensions 16, or a multiple, apart, or are the same."""
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
