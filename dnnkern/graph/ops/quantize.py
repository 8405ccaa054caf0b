"""Blocks of elements that share a scale: `block_scale_quantize`, `block_scale_dequantize`.

Scales in the order F8_128x4 are reordered in the workspace to or from rows, by one copy. That order is tiles of 128 rows by 4 blocks, in
which row r is the four bytes at ``16 * (r % 32) + 4 * (r // 32)`` (cuBLAS's documentation, "1D Block Scaling Factors Layout").
"""
import operator

from ...host.tensor import Tensor, packed_strides
from .._enums import DTYPE, data_type, tensor_reordering
from .._errors import InvalidValue
from .._infer import by_order
from .._part import Ref, known_alignment
from ._define import operation

NARROW = ("FP8_E4M3", "FP8_E5M2", "FP4_E2M1")
FLOATS, SCALES = ("float32", "float16", "bfloat16"), ("float8_e8m0fnu", "float8_e4m3fn")
ROWS, COLUMNS, GROUP = 128, 4, 32
"""Of a tile of F8_128x4, and how many of its rows lie 16 bytes apart."""


def _blocks(what, sizes):
    found = tuple(operator.index(n) for n in sizes)
    if any(n < 1 for n in found) or not found:
        raise InvalidValue(f"{what}: block_size is {sizes!r}; expected positive ints")
    return found


@operation(outputs="Y scale", tag="BLOCK_SCALE_QUANTIZE")
def block_scale_quantize(input, block_size, axis=None, transpose=False):
    """Quantize blocks along an axis, each with a scale: its largest magnitude through the largest element, rounded up.

    Parameters
    ----------
    input : tensor
    block_size : int
        Elements along the axis, whose dim it divides: 32 in MXFP8, 16 in NVFP4.
    axis : int, optional
        Default: the last one.
    transpose : bool
        The results' strides, where they are not set, are smallest along the axis.

    Returns
    -------
    list
        [Y, scale]: of type FP8_E4M3, FP8_E5M2 or FP4_E2M1, two elements a byte; and of FP8_E8M0 or FP8_E4M3, with blocks in place of
        elements along the axis. A scale whose order is F8_128x4 has its rows padded to 128 and its blocks to 4, with zeros.
    """
    (block,) = _blocks("block_scale_quantize", (block_size,))
    return {"X": input}, {"block_size": block, "axis": None if axis is None else operator.index(axis), "transpose": bool(transpose)}


@block_scale_quantize.infer
def _(node):
    dim, stride, block, axis = node.dim("X"), node.stride("X"), node.attributes["block_size"], node.attributes["axis"]
    axis = len(dim) - 1 if axis is None else axis
    node.expect(-len(dim) <= axis < len(dim), "X", f"axis {axis} of {len(dim)} dims", f"{-len(dim)} to {len(dim) - 1}")
    axis = node.attributes["axis"] = axis % len(dim)
    node.expect(dim[axis] % block == 0, "X", f"dims {dim}", f"blocks of {block} along axis {axis}")
    order = sorted(range(len(dim)), key=lambda a: (stride[a], -a))  # the fastest first
    if node.attributes["transpose"]:
        at = order.index(axis)
        order = order[at:] + order[:at]
    node.result("Y", dim, by_order(dim, order[::-1]) if node.attributes["transpose"] else stride)
    blocks = (*dim[:axis], dim[axis] // block, *dim[axis + 1:])
    node.result("scale", blocks, lambda found: by_order(found, order[::-1]), exact=False)
    _expect_scales(node, "scale", blocks, axis)


def _expect_scales(node, port, blocks, axis):
    """A tensor of scales has a block's dims; those of F8_128x4 are padded."""
    t = node.inputs.get(port) or node.outputs[port]
    if t._reordering is tensor_reordering.F8_128x4:
        node.expect(len(blocks) in (2, 3) and axis >= len(blocks) - 2, port, f"dims {t._dim} in the order F8_128x4",
                    "2 or 3 of them, blocks along one of the last two")
        blocks = _padded(blocks, axis)
    node.expect_dim(port, blocks)


def _padded(blocks, axis):
    """Dims of scales in the order F8_128x4."""
    rows = 2 * len(blocks) - 3 - axis
    return tuple(-(-n // m) * m for n, m in zip(blocks, ({axis: COLUMNS, rows: ROWS}.get(d, 1) for d in range(len(blocks)))))


@block_scale_quantize.lower
def _(part):
    x, block, axis = part.input("X"), part.attribute("block_size"), part.attribute("axis")
    dtype = part.spec_of("Y").dtype
    if dtype not in NARROW:
        part.refuse("Y", f"data type {dtype}", f"one of {', '.join(NARROW)}")
    x = x if x.dtype in FLOATS else part.converted(x, "float32")
    blocks = (*x.shape[:axis], x.shape[axis] // block, *x.shape[axis + 1:])
    y, scales = _narrow(part, "Y", axis), _Scales(part, "scale", axis, blocks)
    if scales.ref.dtype not in SCALES:
        part.refuse("scale", f"data type {part.spec_of('scale').dtype}", "FP8_E8M0 or FP8_E4M3")
    asked = "float4_e2m1fn_x2" if dtype == "FP4_E2M1" else y.dtype
    if scales.reordered and scales.ref.shape != blocks:  # what is padded
        part.fill(scales.plain.reinterpreted("uint8"), 0.0)
    part.call("block_scale_quantize", (x,), (y, scales.array), block, axis, asked, scales.ref.dtype)
    scales.done()


@operation(tag="BLOCK_SCALE_DEQUANTIZE")
def block_scale_dequantize(input, descale, block_size, is_negative_scale=False):
    """Each element times the scale of its block.

    Parameters
    ----------
    input : tensor
        FP8_E4M3, FP8_E5M2 or FP4_E2M1, two elements a byte; others with blocks of any shape, as nodes of `mul` would compute.
    descale : tensor
        With blocks in place of elements; in the order F8_128x4 rows padded to 128 and blocks to 4.
    block_size : sequence of int
        The elements of a block along the last dims; 1 in others.
    is_negative_scale : bool
        Whether scales may be negative; their type says so here.

    Returns
    -------
    tensor
        Of the input's dims and strides. What nothing but the graph reads is BFLOAT16 unless its type is set, where that holds all products:
        of 8- or 4-bit elements and scales.
    """
    return ({"X": input, "scale": descale},
            {"block_size": _blocks("block_scale_dequantize", block_size), "is_negative_scale": bool(is_negative_scale)})


block_scale_dequantize.alone = "scales of blocks are neither of rows nor of columns, as what a kernel makes of its operands is"


@block_scale_dequantize.infer
def _(node):
    dim, sizes = node.dim("X"), node.attributes["block_size"]
    node.expect(len(sizes) <= len(dim), "X", f"block_size {sizes} of {len(dim)} dims", f"{len(dim)} at most")
    sizes = node.attributes["block_size"] = (1,) * (len(dim) - len(sizes)) + sizes
    node.expect(all(n % b == 0 for n, b in zip(dim, sizes)), "X", f"dims {dim}", f"blocks of {sizes}")
    _expect_scales(node, "scale", tuple(n // b for n, b in zip(dim, sizes)), _axis(sizes))
    exact = node.inputs["X"]._type.name in NARROW and node.inputs["scale"]._type in (data_type.FP8_E8M0, data_type.FP8_E4M3)
    node.result("Y", dim, node.stride("X"), dtype=data_type.BFLOAT16 if exact and node.outputs["Y"].get_is_virtual() else None)


def _axis(sizes):
    """Along which blocks lie; the last one where they are single elements."""
    return next((d for d, n in enumerate(sizes) if n > 1), len(sizes) - 1)


@block_scale_dequantize.lower
def _(part):
    """By the family's kernel where blocks lie along one axis, else as products of dims that are split."""
    t, sizes, y = part.spec_of("X"), part.attribute("block_size"), part.output("Y")
    axis = _axis(sizes)
    scales = _Scales(part, "scale", axis, tuple(n // b for n, b in zip(t.dim, sizes)))
    if t.dtype not in NARROW or any(n > 1 for d, n in enumerate(sizes) if d != axis):
        return _product(part, scales.read(), sizes, y)
    written = part.into(y, FLOATS, "float32")
    part.call("block_scale_dequantize", (_narrow(part, "X", axis), scales.read()), (written,), sizes[axis], axis, written.dtype)
    part.done(written, y)


def _product(part, scale, sizes, y):
    """x and y with each dim as (blocks, elements of one), and a scale for all of these."""
    x = part.input("X")
    dtype = "float64" if "float64" in (x.dtype, scale.dtype, y.dtype) else "float32"

    def split(ref, shared):
        shape, strides = [], []
        for n, s, b in zip(ref.shape, ref.tensor.strides, sizes):
            shape += [n // (1 if shared else b), b]
            strides += [s if shared else s * b, 0 if shared else s]
        kept = [k for k, n in enumerate(shape) if n > 1] or [0]
        return ref.view([shape[k] for k in kept], [strides[k] for k in kept])
    x, scale, written = part.converted(x, dtype), part.converted(scale, dtype), part.into(y, (dtype,), dtype)
    part.call("binary", (split(x, False), split(scale, True)), (split(written, False),), "mul")
    part.done(written, y)


def _narrow(part, port, axis):
    """The array of elements of 8 bits, or of bytes that have two elements each."""
    t = part.spec_of(port)
    if t.dtype != "FP4_E2M1":
        return part.memory(t)
    others = [s for d, s in enumerate(t.stride) if d != axis and t.dim[d] > 1]
    if t.uid in part.views or t.stride[axis] != 1 or t.dim[axis] % 2 or any(s % 2 for s in others):
        part.refuse(port, f"dims {t.dim} and strides {t.stride} of FP4_E2M1", f"whole bytes of two elements along axis {axis}")
    strides = [1 if d == axis else s // 2 for d, s in enumerate(t.stride)]
    shape = [n // 2 if d == axis else n for d, n in enumerate(t.dim)]
    return Ref(Tensor(tuple(shape), tuple(strides), "uint8", known_alignment(t)), ("tensor", t.uid))


class _Scales:
    """The scales of a port as an array of blocks: in memory as they are, or reordered from or to F8_128x4."""

    def __init__(self, part, port, axis, blocks):
        self.part, self.axis, self.blocks, t = part, axis, blocks, part.spec_of(port)
        self.reordered = t.reordering == "F8_128x4"
        if not self.reordered:
            self.ref = part.memory(t)
            return
        if t.dtype not in DTYPE or DTYPE[t.dtype] not in SCALES or t.uid in part.views:
            part.refuse(port, f"data type {t.dtype}", "FP8_E8M0 or FP8_E4M3, which no node views, in the order F8_128x4")
        self.ref = Ref(Tensor(t.dim, packed_strides(t.dim), DTYPE[t.dtype], known_alignment(t)), ("tensor", t.uid))
        self.rows = 2 * len(blocks) - 3 - axis
        self.plain = part.temporary(t.dim, self.ref.dtype, by_order(t.dim, [0, self.rows, axis] if len(blocks) == 3 else [self.rows, axis]))

    def _tiles(self):
        """(the tensor's memory, the rows in the workspace), both by (matrix, tile of rows, tile of blocks, group of rows, row, block)."""
        dim = self.ref.shape
        count, rows, columns = (dim[0] if len(dim) == 3 else 1), dim[self.rows], dim[self.axis]
        shape = count, rows // ROWS, columns // COLUMNS, ROWS // GROUP, GROUP, COLUMNS
        tile = ROWS * COLUMNS
        given = rows * columns, columns // COLUMNS * tile, tile, COLUMNS, COLUMNS * ROWS // GROUP, 1
        plain = rows * columns, ROWS * columns, COLUMNS, GROUP * columns, columns, 1
        return [ref.view(shape, strides, dtype="uint8") for ref, strides in ((self.ref, given), (self.plain, plain))]

    def read(self):
        """The array, to be read."""
        if not self.reordered:
            return self.ref
        given, plain = self._tiles()
        self.part.copy(given, plain)
        return self.array

    @property
    def array(self):
        """The array as the family's kernels take it."""
        if not self.reordered:
            return self.ref
        return self.plain.view(self.blocks, self.plain.tensor.strides)

    def done(self):
        """What was written is reordered."""
        if self.reordered:
            given, plain = self._tiles()
            self.part.copy(plain, given)
