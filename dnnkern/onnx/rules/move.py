"""What moves values: shapes, transpositions, slices, concatenation, padding, images as columns."""
import math

import numpy as np

from ...host.dtypes import ITEMSIZE
from .._errors import ModelError, Refused
from .._table import rule
from .._values import FLOATS, Value, empty
from .pointwise import only, type_named


def moved(node, function, x, *args, **kwargs):
    """A call that moves elements; booleans go as bytes."""
    if x.dtype != "bool":
        return node.call(function, x, *args, **kwargs)
    return node.call(function, x.viewed("uint8"), *args, **kwargs).viewed("bool")


# ---- shapes

@rule("Identity", (1, 13, 14, 16, 19, 21, 23, 24, 25), "a view", moves=True)
def identity(node, x):
    """The same memory."""
    return x


@rule("Dropout", (7, 10, 12, 13, 22), "a view")
def dropout(node, x, ratio=None, training=None):
    """Of inference."""
    if training is not None and bool(training.host()) and (ratio is None or float(ratio.host())):
        raise Refused("training: ONNX's masks are those of NumPy's generator")
    if node.is_wanted(1) and node.version < 10:
        raise Refused("a mask of floats")
    return x, Value(np.ones(x.shape, bool)) if node.is_wanted(1) else None


@rule("Reshape", (5, 13, 14, 19, 21, 23, 24, 25), "a view", moves=True)
def reshape(node, x, shape):
    """0 is the extent that x has, unless `allowzero`; -1 what is left."""
    wanted = shape.ints()
    if not node.attribute("allowzero", 0):
        if any(n == 0 and k >= x.ndim for k, n in enumerate(wanted)):
            raise ModelError(f"{node.label}: got shape {wanted} for x {x.shape}; expected 0 at dimensions that x has alone")
        wanted = [x.shape[k] if n == 0 else n for k, n in enumerate(wanted)]
    return _as_shape(node, x, wanted)


def _as_shape(node, x, wanted):
    known = math.prod(n for n in wanted if n != -1)
    if -1 in wanted and known:
        wanted = [x.size // known if n == -1 else n for n in wanted]
    if math.prod(wanted) != x.size or min(wanted, default=0) < 0:
        raise ModelError(f"{node.label}: got shape {tuple(wanted)} for x {x.shape}; expected one of {x.size} elements")
    return x.reshape(*wanted)


@rule("Flatten", (1, 9, 11, 13, 21, 23, 24, 25), "a view", moves=True)
def flatten(node, x):
    """A matrix."""
    axis = node.attribute("axis", 1)
    axis += x.ndim * (axis < 0)
    return x.reshape(math.prod(x.shape[:axis]), math.prod(x.shape[axis:]))


@rule("Squeeze", (1, 11, 13, 21, 23, 24, 25), "a view", moves=True)
def squeeze(node, x, axes=None):
    """Without these dimensions of size 1, or all of them."""
    axes = node.attribute("axes") if axes is None else axes.ints()
    axes = [k for k, n in enumerate(x.shape) if n == 1] if axes is None else [k % max(x.ndim, 1) for k in axes]
    if any(x.shape[k] != 1 for k in axes):
        raise ModelError(f"{node.label}: got axes {axes} for x {x.shape}; expected dimensions of size 1")
    return x.reshape(*(n for k, n in enumerate(x.shape) if k not in axes))


@rule("Unsqueeze", (1, 11, 13, 21, 23, 24, 25), "a view", moves=True)
def unsqueeze(node, x, axes=None):
    """With dimensions of size 1 at these axes of the result."""
    axes = node.attribute("axes") if axes is None else axes.ints()
    rank = x.ndim + len(axes)
    axes, left = {k % rank for k in axes}, iter(x.shape)
    if len(axes) != rank - x.ndim:
        raise ModelError(f"{node.label}: got an axis twice; expected each once")
    return x.reshape(*(1 if k in axes else next(left) for k in range(rank)))


@rule("Shape", (1, 13, 15, 19, 21, 23, 24, 25), "the host")
def shape_of(node, x):
    """On the host, whatever x is."""
    return Value(np.array(x.shape[slice(node.attribute("start", 0), node.attribute("end"))], np.int64), is_shape=True)


@rule("Size", (1, 13, 19, 21, 23, 24, 25), "the host")
def size_of(node, x):
    """On the host, whatever x is."""
    return Value(np.array(x.size, np.int64), is_shape=True)


@rule("ConstantOfShape", (9, 20, 21, 23, 24, 25), "`set_tensor`")
def constant_of_shape(node, shape):
    """Floats on the device, integers on the host: they may be shapes."""
    value = node.attribute("value", np.zeros(1, np.float32))
    if value.dtype.name not in FLOATS:
        raise Refused(f"dtype {value.dtype.name}")
    y = Value(device=empty(shape.ints(), value.dtype))
    node.call("set_tensor", y, float(value.reshape(-1)[0]))
    return y


@rule("BitCast", (26,), "a view")
def bit_cast(node, x):
    """The same memory read as another dtype of the same size."""
    dtype = type_named(node, "to", None)
    if ITEMSIZE.get(dtype) != ITEMSIZE.get(x.dtype, 0):
        raise Refused(f"{x.dtype} as {dtype}")
    return x.viewed(dtype)


# ---- moves

@rule("Transpose", (1, 13, 21, 23, 24, 25), "`transpose`", moves=True)
def transpose(node, x):
    """NumPy's; a view where dimensions of size 1 alone change places."""
    axes = node.attribute("perm") or list(range(x.ndim))[::-1]
    wide = [k for k in axes if 0 <= k < x.ndim and x.shape[k] != 1]
    if sorted(axes) == list(range(x.ndim)) and wide == sorted(wide):
        return x.reshape(*(x.shape[k] for k in axes))
    return moved(node, "transpose", x, axes)


@rule("Concat", (4, 11, 13), "`concat`", moves=True)
def concat(node, *arrays):
    """Along an axis."""
    if arrays[0].dtype == "bool":
        return node.call("concat", [a.viewed("uint8") for a in arrays], node.attribute("axis")).viewed("bool")
    return node.call("concat", list(arrays), node.attribute("axis"))


@rule("Split", (2, 11, 13, 18), "`strided_slice`", moves=True)
def split(node, x, sizes=None):
    """Pieces of these sizes, or of one size, the last one smaller."""
    axis = node.attribute("axis", 0) % x.ndim
    sizes = node.attribute("split") if sizes is None else sizes.ints()
    if sizes is None:
        count = node.attribute("num_outputs") or len(node.outputs)
        size = -(-x.shape[axis] // count)
        sizes = [size] * (count - 1) + [x.shape[axis] - size * (count - 1)]
    if sum(sizes) != x.shape[axis] or min(sizes) < 0 or len(sizes) != len(node.outputs):
        raise ModelError(f"{node.label}: got {len(node.outputs)} outputs of sizes {sizes}; expected sizes that add up to {x.shape[axis]}")
    firsts = np.cumsum([0, *sizes]).tolist()
    return [sliced(node, x, axis, first, first + size) for first, size in zip(firsts, sizes)]


def sliced(node, x, axis, first, last):
    """A stretch of x along an axis."""
    starts, stops = [None] * x.ndim, [None] * x.ndim
    starts[axis], stops[axis] = first, last
    return moved(node, "strided_slice", x, starts, stops)


@rule("Slice", (1, 10, 11, 13), "`strided_slice`", moves=True)
def slice_(node, x, starts=None, ends=None, axes=None, steps=None):
    """Python's, along some axes."""
    if starts is None:
        starts, ends, axes = (node.attribute(name) for name in ("starts", "ends", "axes"))
    else:
        starts, ends, axes, steps = (None if v is None else v.ints() for v in (starts, ends, axes, steps))
    axes = range(len(starts)) if axes is None else [k % x.ndim for k in axes]
    found = [[None] * x.ndim, [None] * x.ndim, [1] * x.ndim]
    for axis, start, end, step in zip(axes, starts, ends, steps or [1] * len(starts)):
        n = x.shape[axis]
        if step < 0 and start < -n:
            end = start = 0  # nothing, where Python's clamps would leave one element
        start, end, step = slice(start, end, step).indices(n)
        found[0][axis], found[1][axis], found[2][axis] = start, None if end < 0 else end, step
    return moved(node, "strided_slice", x, *found)


@rule("Pad", (2, 11, 13, 18, 19, 21, 23, 24, 25), "`pad`, `strided_slice`", moves=True)
def pad(node, x, pads=None, value=None, axes=None):
    """With a value, edges or mirrored; what is negative is cropped first."""
    mode = node.attribute("mode", "constant")
    if mode not in ("constant", "edge", "reflect"):
        raise Refused(f"mode {mode!r}")
    pads = node.attribute("pads") if pads is None else pads.ints()
    axes = range(x.ndim) if axes is None else [k % x.ndim for k in axes.ints()]
    both = [(0, 0)] * x.ndim
    for k, axis in enumerate(axes):
        both[axis] = pads[k], pads[k + len(axes)]
    if any(n < 0 for pair in both for n in pair):
        x = moved(node, "strided_slice", x, [max(-before, 0) for before, _ in both],
                  [n - max(-after, 0) for n, (_, after) in zip(x.shape, both)])
        both = [(max(before, 0), max(after, 0)) for before, after in both]
    value = node.attribute("value", 0.0) if value is None else value.host().reshape(-1)[0].item()
    if x.dtype in ("int64", "uint64") and abs(value) > 2 ** 53:
        raise Refused(f"value {value}")
    return moved(node, "pad", x, both, mode=mode, **({"value": float(value)} if mode == "constant" else {}))


@rule("Expand", (8, 13), "`pad`", moves=True)
def expand(node, x, shape):
    """Dimensions of size 1 repeated: padded with what is at their edge."""
    return expanded(node, x, np.broadcast_shapes(x.shape, tuple(shape.ints())))


def expanded(node, x, shape):
    """x, broadcast to a shape, in memory."""
    x = x.reshape(*[1] * (len(shape) - x.ndim), *x.shape)
    if 0 in shape:
        return Value(device=empty(shape, x.device().dtype))
    pads = [(0, n - m) for n, m in zip(shape, x.shape)]
    return moved(node, "pad", x, pads, mode="edge") if any(n for _, n in pads) else x


@rule("Tile", (6, 13), "`pad`", moves=True)
def tile(node, x, repeats):
    """Each dimension repeated: one more before it, of size 1, is."""
    repeats = repeats.ints()
    narrow = [n for r, size in zip(repeats, x.shape) for n in ((1, size) if r != 1 else (size,))]
    wide = [n for r, size in zip(repeats, x.shape) for n in ((r, size) if r != 1 else (size,))]
    if 0 in x.shape:
        return Value(device=empty([r * n for r, n in zip(repeats, x.shape)], x.device().dtype))
    return expanded(node, x.reshape(*narrow), tuple(wide)).reshape(*(r * n for r, n in zip(repeats, x.shape)))


# ---- images

@rule("DepthToSpace", (1, 11, 13, 28), "`depth_to_space`, `transpose`")
def depth_to_space(node, x):
    """In both orders of channels."""
    block, mode = node.attribute("blocksize"), node.attribute("mode", "DCR")
    if mode == "DCR":
        return moved(node, "depth_to_space", x, block)
    n, c, h, w = x.shape
    c //= block * block
    y = moved(node, "transpose", x.reshape(n, c, block, block, h, w), (0, 1, 4, 2, 5, 3))
    return y.reshape(n, c, h * block, w * block)


@rule("SpaceToDepth", (1, 13, 28), "`space_to_depth`, `transpose`")
def space_to_depth(node, x):
    """In both orders of channels."""
    block, mode = node.attribute("blocksize"), node.attribute("mode", "DCR")
    if mode == "DCR":
        return moved(node, "space_to_depth", x, block)
    n, c, h, w = x.shape
    h, w = h // block, w // block
    y = moved(node, "transpose", x.reshape(n, c, h, block, w, block), (0, 1, 3, 5, 2, 4))
    return y.reshape(n, c * block * block, h, w)


@rule("Col2Im", (18,), "`col2im`")
def columns_to_image(node, columns, image, block):
    """The sum of the columns in each pixel."""
    only((columns,), FLOATS)
    image, block = image.ints(), block.ints()
    n = len(image)
    pads = node.attribute("pads") or [0] * 2 * n
    shape = (columns.shape[0], columns.shape[1] // math.prod(block), *image)
    return node.call("col2im", columns, shape, tuple(block), stride=tuple(node.attribute("strides") or [1] * n),
                     padding=tuple(zip(pads[:n], pads[n:])), dilation=tuple(node.attribute("dilations") or [1] * n))
