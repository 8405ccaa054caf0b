"""`block_scale_quantize` and `block_scale_dequantize`."""
from ...host.front import Operation, public
from ...host.scalars import integer
from ._problem import DEQUANTIZE, QUANTIZE, make_dequantize, make_quantize

BLOCK_SCALE_QUANTIZE = Operation(QUANTIZE, operands=("x",), outputs=("y", "scale"), problem=make_quantize)
_quantize = BLOCK_SCALE_QUANTIZE.call
BLOCK_SCALE_DEQUANTIZE = Operation(DEQUANTIZE, operands=("x", "scale"), outputs=("y",), problem=make_dequantize)
_dequantize = BLOCK_SCALE_DEQUANTIZE.call


@public
def block_scale_quantize(x, block_size, *, axis=-1, dtype="float8_e4m3fn", scale_dtype=None, out=None, workspace=None, stream=None,
                         **choice):
    """Quantize blocks of neighbours, each with a scale of its own: ``scale = amax(|block|) / largest``, rounded up, ``y = block / scale``.

    Parameters
    ----------
    x : array
        float32, float16 or bfloat16; one to eight dimensions, arbitrary strides.
    block_size : int
        Elements of a block along the axis, whose extent it divides: 32 in MXFP8, 16 in NVFP4.
    axis : int
        The dimension along which blocks lie.
    dtype : dtype
        float8_e4m3fn (up to 448), float8_e5m2 (57344), or the name "float4_e2m1fn_x2" (6).
    scale_dtype : dtype, optional
        float8_e8m0fnu, powers of two from 2**-127 to 2**127, or float8_e4m3fn; default: the latter for "float4_e2m1fn_x2", else the former.
    out : tuple of arrays (y, scale)
        Outputs, written and returned; arbitrary strides. Overlap with x is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array, of x's framework and shape
        Contiguous, unless `out` is given. With "float4_e2m1fn_x2" uint8, half as long along the axis: two elements a byte, the first in the
        lower bits.
    scale : array
        x's shape with blocks in place of elements along the axis.

    Raises
    ------
    ValueError
        A block size that does not divide the extent, an axis that x has not, an `out` of another shape or that overlaps.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. Elements are rounded to nearest even of the exact quotient by a power of two, else of its float32, and saturate. A scale
    is the least of its type with which no element exceeds the largest, so that they saturate only beyond 448 times that with scales of
    float8_e4m3fn. The scale of a block with a NaN is NaN; with an infinity it is the largest. As cuDNN's documentation of block scaling has
    it; the sample conversion of OCP Microscaling Formats (MX) 1.0, section 6.3, rounds scales down, and saturates more.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> y, scale = dnnkern.block_scale_quantize(np.array([1, -2, 896, 3, 0, 0, 0.25, 0.125], np.float32), 4)
    >>> y.astype(float)
    array([  0.5,  -1. , 448. ,   1.5,   0. ,   0. , 256. , 128. ])
    >>> scale.astype(float).tolist()
    [2.0, 0.0009765625]
    """
    block = integer(QUANTIZE, "block_size", block_size, 1)
    return _quantize((x,), out, (block, integer(QUANTIZE, "axis", axis), dtype, scale_dtype), (), workspace, stream, choice)


@public
def block_scale_dequantize(x, scale, block_size, *, axis=-1, dtype="float32", out=None, workspace=None, stream=None, **choice):
    """Undo `block_scale_quantize`: ``y = dtype(x * scale)``.

    Parameters
    ----------
    x : array
        float8_e4m3fn, float8_e5m2, or uint8: two e2m1 a byte along the axis, the first in the lower bits. Arbitrary strides.
    scale : array
        x's shape with blocks in place of elements along the axis; float8_e8m0fnu, float8_e4m3fn, float32, float16 or bfloat16; arbitrary
        strides.
    block_size : int
        Elements of a block along the axis, whose extent it divides.
    axis : int
        The dimension along which blocks lie.
    dtype : dtype
        float32, float16 or bfloat16.
    out : array of that dtype
        Output, written and returned; arbitrary strides. Overlap with an operand is an error.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array, of x's framework and shape
        Contiguous, unless `out` is given; of uint8 twice as long along the axis.

    Raises
    ------
    ValueError
        Shapes that do not fit, an axis that x has not, an `out` of another shape or that overlaps.
    TypeError
        Unsupported dtypes, objects that are not device arrays, an immutable `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic. Products are float32, rounded to nearest even. The operation of cuDNN's name.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> x = np.array([0x21, 0x43, 0xf7, 0x08], np.uint8)
    >>> dnnkern.block_scale_dequantize(x, np.array([2, 0.5], np.float16), 4)
    array([ 1.,  2.,  3.,  4.,  3., -3., -0.,  0.], dtype=float32)
    """
    block = integer(DEQUANTIZE, "block_size", block_size, 1)
    return _dequantize((x, scale), out, (block, integer(DEQUANTIZE, "axis", axis), dtype), (), workspace, stream, choice)
