"""Dropout: elements set to zero at random, and the gradient, which remembers them as one bit each."""
from ..engine.dropout_bits import drawn
from ..host import seeds
from ..host.front import Operation, public
from ..host.scalars import shares
from ._problem import DropoutGradientProblem, DropoutProblem, make_backward, make_forward

__all__ = ["DropoutGradientProblem", "DropoutProblem", "dropout_bwd", "dropout_fwd"]

FORWARD = Operation("dropout_fwd", operands=("x", *seeds.ARRAYS), outputs=("y", "mask"), labels=("x", "seed", "offset"),
                    scalars=("seed", "offset", "threshold", "factor"), problem=make_forward, in_place=frozenset({"x"}))
_forward = FORWARD.call
BACKWARD = Operation("dropout_bwd", operands=("dy", "mask"), outputs=("dx",), scalars=("factor",), problem=make_backward,
                     in_place=frozenset({"dy"}))
_backward = BACKWARD.call


@public
def dropout_fwd(x, p, seed, *, offset=0, out=None, workspace=None, stream=None, **choice):
    """Dropout: zero each element with probability p and divide the others by 1 - p: ``y = keep * x / (1 - p)``.

    Parameters
    ----------
    x : array
        float64, float32, float16 or bfloat16; at most eight dimensions, arbitrary strides.
    p : float
        In [0, 1). Rounded to a multiple of 2**-16 below 1.
    seed, offset : int, or int64 array of one element
        64 bits. An array is on x's device and read by the kernel: a replayed CUDA graph uses a new mask once it has changed. The
        mask is a function of seed, offset and an element's position in x, in the order of its dimensions: for independent masks use
        different offsets.
    out : tuple (y, mask)
        Written and returned. y has arbitrary strides and may be exactly x; mask is contiguous.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    y : array, of x's framework
        Contiguous, unless `out` is given. Multiplied by ``1 / (1 - p)`` in float32 (float64 for float64) and rounded once; dropped
        elements are 0 even if they were NaN or infinite.
    mask : uint8 array (ceil(x.size / 8),)
        Element i of x is kept if bit ``i % 8`` of ``mask[i // 8]`` is set, as in `numpy.packbits` with ``bitorder="little"``. Bits past the
        last element are 0.

    Raises
    ------
    ValueError
        A probability outside [0, 1), a seed or an offset of more than 64 bits, an `out` of another shape or that partly overlaps x.
    TypeError
        Unsupported dtypes, a seed or offset that is neither an integer nor an int64 array, objects that are not device arrays, an immutable
        `out`.
    NotSupported
        A forced algorithm that cannot solve the problem.

    Notes
    -----
    Deterministic: the same mask from every algorithm, launch and device, and in the simulator; `dnnkern.device.philox` generates four words
    per eight elements. Mirrors cudnnDropoutForward, and the Philox dropout of cuDNN's and oneDNN's graphs.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> y, mask = dnnkern.dropout_fwd(np.arange(1, 11, dtype=np.float32), 0.5, seed=7)
    >>> y
    array([ 0.,  4.,  6.,  8., 10.,  0., 14.,  0., 18.,  0.], dtype=float32)
    >>> np.unpackbits(mask, bitorder="little")[:10]
    array([0, 1, 1, 1, 1, 0, 1, 0, 1, 0], dtype=uint8)
    """
    threshold, factor = drawn(*shares("dropout_fwd", p=p))
    arrays, words = seeds.split("dropout_fwd", seed, offset)
    return _forward((x, *arrays), out, (), (*words, threshold, factor), workspace, stream, choice)


@public
def dropout_bwd(dy, mask, p, *, out=None, workspace=None, stream=None, **choice):
    """The gradient of `dropout_fwd`: ``dx = keep * dy / (1 - p)``.

    Parameters
    ----------
    dy : array
        Gradient of the result; dtypes and strides as in `dropout_fwd`.
    mask : uint8 array (ceil(dy.size / 8),), packed
        As returned by `dropout_fwd`.
    p : float
        As passed to `dropout_fwd`.
    out : array of dy's shape and dtype
        Output, written and returned; arbitrary strides. May be exactly dy.
    workspace, stream, algo, allow, workspace_limit, exclude
        As in `dnnkern.matmul`.

    Returns
    -------
    dx : array, of dy's framework
        Packed, unless `out` is given; computed as `dropout_fwd` does.

    Raises
    ------
    ValueError
        A probability outside [0, 1), a mask of another length, an `out` of another shape or that partly overlaps an operand.
    TypeError, NotSupported
        As `dropout_fwd`.

    Notes
    -----
    Deterministic. Mirrors cudnnDropoutBackward.

    Examples
    --------
    >>> import numpy as np, dnnkern
    >>> dnnkern.dropout_bwd(np.ones(5, np.float32), np.array([0b10110], np.uint8), 0.5)
    array([0., 2., 2., 0., 2.], dtype=float32)
    """
    _, factor = drawn(*shares("dropout_bwd", p=p))
    return _backward((dy, mask), out, (), (factor,), workspace, stream, choice)
